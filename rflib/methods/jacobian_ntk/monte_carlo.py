"""The kernels' induction over layers, taken literally, with expectations by sampling.

Source: Kim and Yang (ICML 2024), whose block induction reads, with (u, u_1 … u_d; u', …) Gaussian
with covariance Σˡ and D = E[φ'(u) φ'(u')] with its derivatives in x and x':
Σˡ⁺¹_αβ = E[φ'(u) u_α φ'(u') u'_β] (and φ(u) where an index is 0), Θˡ⁺¹ = Σˡ⁺¹ + (Θˡ D)_αβ, the
product differentiated by the rule of Leibniz; D_αβ = E[φ''(u) u_α φ''(u') u'_β].

How one samples decides whether a Gram matrix stays positive. Joint draws, of the whole Gaussian of
all rows, give Gram matrices of samples, which are positive semidefinite, and so is what follows.
Independent draws for each pair of rows turn it indefinite, by an amount that falls like m^(-1/2).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks, keys
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.duals import derivatives
from rflib.methods.jacobian_ntk.empirical import leibniz
from rflib.methods.jacobian_ntk.kernels import flatten
from rflib.methods.jacobian_ntk.network import Mlp, Rows, check

WAYS = ("joint", "pairs")
BATCH = 1000  # Gaussian draws held at once


def _start(net: Mlp, x: Array, x2: Array) -> Float[Array, "N M P P"]:
    """Σ⁰: x·x' with its derivatives, [[x·x', x_β], [x'_α, δ_αβ]], scaled."""
    n, m, d = len(x), len(x2), x.shape[1]
    weight, bias = net.weight_scales(d)[0] ** 2, net.bias_scales()[0] ** 2
    top = jnp.concatenate(
        [(weight * (x @ x2.T) + bias)[..., None], jnp.broadcast_to(weight * x[:, None], (n, m, d))],
        -1,
    )
    eye = jnp.broadcast_to(weight * jnp.eye(d, dtype=x.dtype), (n, m, d, d))
    left = jnp.broadcast_to(weight * x2[None], (n, m, d))[..., None]
    return jnp.concatenate([top[:, :, None], jnp.concatenate([left, eye], -1)], 2)


def _root(matrix: Array) -> Array:
    """R with R Rᵀ = the matrix, negative eigenvalues (of sampled pairs) taken as 0."""
    values, vectors = jnp.linalg.eigh((matrix + jnp.swapaxes(matrix, -1, -2)) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]


def features(net: Mlp, g: Array) -> tuple[Array, Array]:
    """c (φ(u), φ'(u) u_α) and c (φ'(u), φ''(u) u_α) from draws [..., 1+d] of (u, u_α)."""
    value, first, second = (net.gain * each for each in derivatives(net.phi.phi, g[..., 0], 2))
    inner = g[..., 1:]
    return (
        jnp.concatenate([value[..., None], first[..., None] * inner], -1),
        jnp.concatenate([first[..., None], second[..., None] * inner], -1),
    )


def _moments(
    net: Mlp, key: Array, covariance: Array, rows: int, samples: int
) -> tuple[Array, Array]:
    """E[h hᵀ] and E[ḣ ḣᵀ] [rows, rows, 1+d, 1+d] over `samples` draws of all rows together."""
    root = _root(covariance)
    size = len(covariance)
    batch = min(BATCH, samples)

    def add(total: Array, number: Array) -> tuple[Array, None]:
        draws = jax.random.normal(keys.named(key, number), (batch, size), root.dtype) @ root.T
        live = number * batch + jnp.arange(batch) < samples
        both = features(net, draws.reshape(batch, rows, -1))
        flat = jnp.stack([each.reshape(batch, size) for each in both])
        return total + jnp.einsum("tmp,tmq,m->tpq", flat, flat, live.astype(root.dtype)), None

    zero = jnp.zeros((2, size, size), root.dtype)
    total, _ = jax.lax.scan(add, zero, jnp.arange(-(-samples // batch)))
    parts = (total / samples).reshape(2, rows, size // rows, rows, size // rows)
    h, slope = jnp.swapaxes(parts, 2, 3)
    return h, slope


def _advance(net: Mlp, layer: int, d: int, theta: Array, h: Array, slope: Array) -> Any:
    scale, bias = net.weight_scales(d)[layer] ** 2, net.bias_scales()[layer] ** 2
    sigma = (scale * h).at[..., 0, 0].add(bias)
    return sigma, sigma + scale * leibniz(theta, slope)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _joint(net: Mlp, key: Array, x: Array, samples: int) -> tuple[Array, Array]:
    sigma = theta = _start(net, x, x)
    found = []
    for layer in range(1, net.depth + 1):
        part = keys.named(key, "layer", layer)
        moments = _moments(net, part, flatten(sigma), len(x), samples)
        sigma, theta = _advance(net, layer, x.shape[1], theta, *moments)
        found.append((sigma, theta))
    return _stacked(net, found)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _by_pairs(net: Mlp, key: Array, x: Array, samples: int) -> tuple[Array, Array]:
    n = len(x)
    left, right = np.triu_indices(n)
    sigma = theta = _start(net, x, x)
    found = []
    for layer in range(1, net.depth + 1):
        part = keys.named(key, "layer", layer)

        def moments(number: Array, part: Array = part, sigma: Array = sigma) -> tuple[Array, Array]:
            both = jnp.stack([jnp.asarray(left)[number], jnp.asarray(right)[number]])
            block = sigma[both[:, None], both[None, :]]
            h, slope = _moments(net, keys.named(part, number), flatten(block), 2, samples)
            return h[0, 1], slope[0, 1]

        upper = jax.lax.map(moments, jnp.arange(len(left)))
        both = tuple(_mirrored(each, left, right, n) for each in upper)
        sigma, theta = _advance(net, layer, x.shape[1], theta, *both)
        found.append((sigma, theta))
    return _stacked(net, found)


def _mirrored(upper: Array, left: np.ndarray, right: np.ndarray, n: int) -> Array:
    """All pairs from those with i <= j: B(x', x) is the transpose of B(x, x')."""
    turned = jnp.swapaxes(upper, -1, -2)
    own = jnp.asarray(left == right)[:, None, None]
    upper = jnp.where(own, (upper + turned) / 2, upper)
    full = jnp.zeros((n, n, *upper.shape[1:]), upper.dtype)
    return full.at[right, left].set(turned).at[left, right].set(upper)


def _stacked(net: Mlp, found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    sigma, theta = (jnp.stack(each) * net.kappa**2 for each in zip(*found, strict=True))
    return sigma, theta


def monte_carlo(
    key: Array, net: Mlp, x: Rows, samples: int, *, draws: str = "joint"
) -> tuple[Float[Array, "L N N P P"], Float[Array, "L N N P P"]]:
    """(κ² Σ, κ² Θ) by sampling, for every depth 1 … L: two arrays [L, N, N, 1+d, 1+d].

    Args:
        key: random key. net: the network. x: inputs [N, d].
        samples: m, Gaussian draws a layer ("joint") or a layer and pair of rows ("pairs").
        draws: "joint": of all N (1+d) coordinates together, positive semidefinite by construction,
            each layer O(m N² (1+d)²); "pairs": independent for each pair of rows, of the 2 (1+d)
            coordinates of the pair; the pair and its mirror image share draws, so that the result
            is symmetric, but it need not be positive.

    Precision is that of JAX: call it inside `jax.enable_x64(True)` for float64.

    Raises:
        UserError: an unknown way of drawing, no samples, or an activation that is not smooth.
    """
    check(net)
    checks.positive_int("samples", samples)
    if not net.phi.smooth:
        raise UserError(f"activation={net.phi.name!r} has no second derivative to be sampled")
    run = {"joint": _joint, "pairs": _by_pairs}[checks.one_of("draws", draws, WAYS)]
    x = jnp.asarray(x)
    return run(net, key, x.astype(jnp.promote_types(x.dtype, jnp.float32)), samples)
