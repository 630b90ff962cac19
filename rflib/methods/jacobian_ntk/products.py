"""Kernels that are never formed: products with a vector in O(N M d), and what is solved by them.

The blocks of Kim and Yang (ICML 2024) are five rank-one terms and a multiple of the identity, so
that a product needs three matrix products [N, M] x [M, d] and no block at all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks
from rflib.methods.jacobian_ntk.kernels import Pairs, as_inputs, pairs
from rflib.methods.jacobian_ntk.network import Columns, Mlp, Rows
from rflib.methods.jacobian_ntk.spectra import largest

KINDS = ("jnngp", "jntk")


def product(
    g: Pairs, x: Float[Array, "N d"], x2: Float[Array, "M d"], v: Float[Array, "M 1+d"]
) -> Float[Array, "N 1+d"]:
    """Σ_j B(x_i, x'_j) v_j from the eight scalars of every pair."""
    v0, jac = v[:, 0], v[:, 1:]
    along = x @ jac.T  # x_i · V_j
    own = jnp.sum(x2 * jac, 1)[None, :]  # x'_j · V_j
    first = jnp.sum(g.value * v0[None, :] + 2 * g.b * own + g.c * along, 1)
    left = jnp.sum(2 * g.a * v0[None, :] + 4 * g.ab * own + 2 * g.ac * along, 1)
    right = g.c * v0[None, :] + 2 * g.bc * own + g.cc * along
    return jnp.concatenate([first[:, None], left[:, None] * x + right @ x2 + g.c @ jac], 1)


def jntk_matvec(
    net: Mlp,
    x: Rows,
    v: Float[Array | np.ndarray, "M 1+d"],
    x2: Columns | None = None,
    *,
    chunk: int | None = None,
    kind: str = "jntk",
) -> Float[Array, "N 1+d"]:
    """K(x, x2) v without the matrix: O(N M d) work, O(chunk · M) memory.

    Args:
        net, x, x2: as `kernels.jacobian_ntk`, whose precision and errors it shares.
        v: one vector, the rows of x2 with 1+d components each.
        chunk: rows of x at a time; default all.
        kind: "jntk" or "jnngp".
    """
    which = KINDS.index(checks.one_of("kind", kind, KINDS))
    x, x2 = as_inputs(net, x, x2, derivatives=True)
    chunk = len(x) if chunk is None else checks.positive_int("chunk", chunk)
    return _chunked(net, which, min(chunk, len(x)), x, x2, jnp.asarray(v, x.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _chunked(net: Mlp, which: int, chunk: int, x: Array, x2: Array, v: Array) -> Array:
    def rows(part: Array) -> Array:
        return product(pairs(net, part, x2)[which], part, x2, v)

    whole = len(x) // chunk * chunk
    out = jax.lax.map(rows, x[:whole].reshape(-1, chunk, x.shape[1])).reshape(whole, -1)
    return out if whole == len(x) else jnp.concatenate([out, rows(x[whole:])])


class Solution(NamedTuple):
    """α [N, 1+d] with F(x) = K(x, X) α; the relative residual |A z − r| / |r|; the iterations."""

    coefficients: np.ndarray
    residual: float
    iterations: int


def block_inverse(
    net: Mlp, x: Float[Array, "N d"], root: Float[Array, "1+d"], ridge: Any
) -> Callable[[Array], Array]:
    """r [N, 1+d] -> (s B(x_i, x_i) s + ridge)⁻¹ r_i: every example's own block, inverted.

    The block acts as a 2 x 2 matrix on the value and the radial direction, and as the multiple
    λ G_c + ridge of the identity on the rest. root: s = (1, √λ, …, √λ).
    """
    g = jax.vmap(lambda row: pairs(net, row[None], row[None])[1])(x)
    g = Pairs(*(each[:, 0, 0] for each in g))
    size = jnp.sum(x * x, 1)
    length = jnp.sqrt(size)
    unit = x / jnp.where(length > 0, length, 1.0)[:, None]
    lam = root[1] ** 2
    corner = g.value + ridge
    mixed = root[1] * (g.a + g.b + g.c) * length
    radial = lam * ((4 * g.ab + 2 * g.ac + 2 * g.bc + g.cc) * size + g.c) + ridge
    rest = lam * g.c + ridge
    det = corner * radial - mixed * mixed

    def apply(r: Any) -> Array:
        along = jnp.sum(unit * r[:, 1:], 1)
        value = (radial * r[:, 0] - mixed * along) / det
        inner = (corner * along - mixed * r[:, 0]) / det
        across = (r[:, 1:] - along[:, None] * unit) / rest[:, None]
        return jnp.concatenate([value[:, None], inner[:, None] * unit + across], 1)

    return apply


@functools.partial(jax.jit, static_argnums=(0, 1))
def _solve(
    net: Mlp, maxiter: int, x: Array, right: Array, root: Array, ridge: Array, tol: Array
) -> tuple[Array, Array, Array]:
    g = pairs(net, x, x)[1]
    inverse = block_inverse(net, x, root, ridge)

    def system(z: Array) -> Array:
        return root[None] * product(g, x, x, root[None] * z) + ridge * z

    goal = tol * jnp.linalg.norm(right)

    def go_on(state: tuple[Any, ...]) -> Array:
        _, r, *_, step = state
        return (jnp.linalg.norm(r) > goal) & (step < maxiter)

    def iterate(state: tuple[Any, ...]) -> tuple[Any, ...]:
        z, r, way, old, step = state
        image = system(way)
        length = old / jnp.vdot(way, image)
        z, r = z + length * way, r - length * image
        better = inverse(r)
        new = jnp.vdot(r, better)
        return z, r, better + new / old * way, new, step + 1

    start = inverse(right)
    state = (jnp.zeros_like(right), right, start, jnp.vdot(right, start), 0)
    z, *_, step = jax.lax.while_loop(go_on, iterate, state)
    left = jnp.linalg.norm(system(z) - right) / jnp.linalg.norm(right)
    return z, left, step


def solve(
    net: Mlp,
    x: Rows,
    targets: np.ndarray,
    *,
    lam: float,
    ridge: float = 0.0,
    tol: float = 1e-8,
    maxiter: int = 1000,
) -> Solution:
    """Conjugate gradients on (s K s + ridge) z = s Y in float64, K never formed; α = s z.

    The eight scalars of all pairs are kept (64 N² bytes); preconditioned by every example's block.

    Args:
        x: training inputs [N, d]. targets: Y [N, 1+d], the values and the wanted Jacobians.
        lam: λ > 0, the coefficient of the Jacobian; s = (1, √λ, …, √λ).
        ridge: added to the diagonal; N ρ for the ridge ρ of `dynamics`.
        tol, maxiter: of the relative residual, and of iterations.

    Raises:
        UserError: lam <= 0, ridge < 0, or as `kernels.jacobian_ntk`.
    """
    checks.in_range("lam", lam, 0, open_low=True)
    checks.in_range("ridge", ridge, 0)
    checks.positive_int("maxiter", maxiter)
    with jax.enable_x64(True):
        rows, _ = as_inputs(net, np.asarray(x, np.float64), None, derivatives=True)
        root = jnp.full(1 + rows.shape[1], lam**0.5).at[0].set(1.0)
        right = root[None] * jnp.asarray(targets, jnp.float64)
        numbers = (jnp.asarray(ridge, jnp.float64), jnp.asarray(tol, jnp.float64))
        z, left, step = _solve(net, maxiter, rows, right, root, *numbers)
        return Solution(np.asarray(root[None] * z), float(left), int(step))


def largest_eigenvalue(net: Mlp, x: Rows, *, kind: str = "jntk", tol: float = 1e-8) -> float:
    """λ_max of the Gram matrix of x by Lanczos on products, in float64, without the matrix."""
    which = KINDS.index(checks.one_of("kind", kind, KINDS))
    n, side = len(x), 1 + x.shape[1]
    with jax.enable_x64(True):
        rows, _ = as_inputs(net, np.asarray(x, np.float64), None, derivatives=True)
        g = pairs(net, rows, rows)[which]
        apply = jax.jit(product)

        def times(v: np.ndarray) -> np.ndarray:
            return np.asarray(apply(g, rows, rows, jnp.asarray(v.reshape(n, side)))).ravel()

        return largest(times, n * side, tol=tol)
