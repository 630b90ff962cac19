"""Steps that stay on the probability simplex; it is the last axis, all others are batch."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def project_simplex(x: Float[Array, "*lead n"]) -> Float[Array, "*lead n"]:
    """The nearest point of the simplex: argmin_y |y - x|² with y >= 0 and sum y = 1.

    y = max(x - theta, 0) with theta = max_k (x_(1) + ... + x_(k) - 1)/k over the sorted entries
    x_(1) >= x_(2) >= ...: exact after one sort (Held, Wolfe and Crowder, Mathematical Programming
    6, 1974). Any finite x; with one entry the answer is 1.
    """
    # Only differences count; near the largest entry they lose nothing to rounding.
    x = x - jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True))
    ordered = jnp.sort(x, -1, descending=True)
    counts = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    theta = jnp.max((jnp.cumsum(ordered, -1) - 1) / counts, -1, keepdims=True)
    return jnp.maximum(x - theta, 0)


def entropy_step(
    x: Float[Array, "*lead n"], direction: Float[Array, "*lead n"]
) -> Float[Array, "*lead n"]:
    """x exp(direction), renormalised: the mirror step of negative entropy.

    It maximises <direction, y> - KL(y || x) over the simplex. Taken on logarithms, so a direction
    of any finite size neither overflows nor leaves the simplex. An entry of x that is 0 stays 0;
    a row must have one entry that is not.
    """
    support = x > 0
    logs = jnp.where(support, jnp.log(jnp.where(support, x, 1)), -jnp.inf)
    return jax.nn.softmax(logs + direction, -1)
