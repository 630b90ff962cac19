"""The exact transition law: k_t = Bin(k_0, f) + Bin(S - k_0, 1 - f), f = (1 + w)/2.

Each of the S particles is where it was with probability f.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.diffusion.ctmc import log_factorials, two_binomials_log_pmf

METHODS = ("particles", "binomial", "normal")
LARGEST_TABLE = 1024


def log_prob(
    k: Int[Array, "..."], k0: Int[Array, "..."], size: int, w: Array | float
) -> Float[Array, "..."]:
    """log p(k | k0) where the signal is w; the arguments broadcast; O(S) work an entry."""
    w = jnp.asarray(w)
    _bound(size)
    return two_binomials_log_pmf(k, k0, size, (1 + w) / 2, (1 - w) / 2)


def log_pmf(size: int, w: Array | float) -> Float[Array, "states states"]:
    """log p(k | k0) as a matrix [k, k0], [S + 1, S + 1]; O(S³) work in S + 1 pieces."""
    k = jnp.arange(size + 1)
    w = jnp.asarray(w)

    def column(k0: Array) -> Array:
        return log_prob(k, k0[None], size, w[None])

    if size <= 64:
        return jax.vmap(column, out_axes=1)(k)
    return jax.lax.map(column, k).T


def _bound(size: int) -> None:
    if size > LARGEST_TABLE:
        raise UserError(
            f"size={size}: the exact law takes O(S) work a coordinate; it is for at most "
            f"{LARGEST_TABLE} particles, beyond which the Gaussian law is the one to use"
        )


def stationary_log_pmf(size: int) -> Float[np.ndarray, " states"]:
    """log Bin(S, ½), float64."""
    table = log_factorials(size)
    return table[-1] - table - table[::-1] - size * np.log(2.0)


def sample(
    key: Array,
    k0: Int[Array, "..."],
    w: Array | float,
    size: int,
    method: str = "auto",
) -> Int[Array, "..."]:
    """k_t ~ p(· | k0), int32; w broadcasts against k0.

    "particles": S uniforms a coordinate, exact, for small S. "binomial": two binomial draws,
    exact. "normal": a normal number of the exact mean and variance, rounded to the lattice.
    "auto": the first up to S = 64, the last from S = 4096.
    """
    one_of("method", method, ("auto", *METHODS))
    if method == "auto":
        method = "particles" if size <= 64 else "binomial" if size < 4096 else "normal"
    w = jnp.broadcast_to(w, k0.shape)
    if method == "particles":
        u = jax.random.uniform(key, (*k0.shape, size), w.dtype)
        particle = jnp.arange(size).reshape((1,) * k0.ndim + (size,))
        signed = jnp.where(particle < k0[..., None], w[..., None], -w[..., None])
        return jnp.sum(u < (1 + signed) / 2, -1, dtype=jnp.int32)
    if method == "binomial":
        key_stay, key_come = jax.random.split(key)
        stay = jax.random.binomial(key_stay, k0.astype(w.dtype), (1 + w) / 2)
        come = jax.random.binomial(key_come, (size - k0).astype(w.dtype), (1 - w) / 2)
        return (stay + come).astype(jnp.int32)
    w = jnp.asarray(w)
    mean = size / 2 + w * (k0.astype(w.dtype) - size / 2)
    noise = jnp.sqrt(size / 4 * (1 - jnp.square(w))) * jax.random.normal(key, k0.shape, w.dtype)
    return jnp.clip(jnp.round(mean + noise), 0, size).astype(jnp.int32)


def moments(
    k0: Int[Array, "..."], size: int, w: Array | float
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """(mean, variance) of k_t: S/2 + w (k0 - S/2) and (S/4)(1 - w²)."""
    w = jnp.asarray(w)
    mean = size / 2 + w * (k0.astype(w.dtype) - size / 2)
    return mean, jnp.broadcast_to(size / 4 * (1 - jnp.square(w)), mean.shape)
