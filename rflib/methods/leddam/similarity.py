"""How good a decomposition is: does the trend follow the series, and the rest keep its rhythm?

Leddam (ICML 2024) and its supplement compare kernels by these two numbers. The authors print no
formulas; these are ours, and only the order of two kernels under them means anything.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range
from rflib.core.errors import UserError

Series = Float[Array | np.ndarray, "*lead T"]
Other = Float[Array | np.ndarray, "..."]  # shapes are checked by the functions, in words


def dtw(a: Series, b: Other) -> Float[Array, "*lead"]:
    """Least Σ |a_i - b_j| over monotone alignments (dynamic time warping), [..., T] and [..., U].

    D(i, j) = |a_i - b_j| + min(D(i-1, j), D(i, j-1), D(i-1, j-1)) from D(0, 0) = |a_0 - b_0|, whole
    anti-diagonals at a time: T + U - 1 steps over vectors of T. Sizes T, U >= 1, no band; leading
    axes are independent pairs. Values only: it has no useful gradient.
    """
    a, b = jnp.asarray(a, jnp.result_type(a, b, jnp.float32)), jnp.asarray(b)
    rows, columns = a.shape[-1], b.shape[-1]
    if a.shape[:-1] != b.shape[:-1] or not rows or not columns:
        raise UserError(f"DTW needs pairs of series: {list(a.shape)} and {list(b.shape)}")
    # Entry i of diagonal k is cell (i, k - i): a window on b reversed, infinite outside b.
    edge = jnp.full((*b.shape[:-1], rows - 1), jnp.inf, a.dtype)
    reversed_b = jnp.concatenate([edge, b[..., ::-1].astype(a.dtype), edge], -1)

    def after(x: Array) -> Array:
        return jnp.concatenate([jnp.full_like(x[..., :1], jnp.inf), x[..., :-1]], -1)

    def diagonal(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], None]:
        last, corner = carry  # diagonal k - 1, and diagonal k - 2 moved on by one
        start = rows + columns - 2 - k
        cost = jnp.abs(a - jax.lax.dynamic_slice_in_dim(reversed_b, start, rows, -1))
        best = jnp.minimum(jnp.minimum(last, after(last)), corner)
        return (cost + best, after(last)), None

    nowhere = jnp.full_like(a, jnp.inf)
    first = (nowhere, nowhere.at[..., 0].set(0.0))
    (end, _), _ = jax.lax.scan(diagonal, first, jnp.arange(rows + columns - 1))
    return end[..., -1]


def dtw_similarity(raw: Series, trend: Other) -> Float[Array, "*lead"]:
    """1 / (1 + DTW(raw, trend) / T), in (0, 1]: 1 if and only if one is a warped copy of the other.

    raw, trend: [..., T]; each row is a pair. Depends on the units of the series: compare kernels
    on the same, standardised, windows.
    """
    _alike(raw, trend)
    return 1 / (1 + dtw(raw, trend) / raw.shape[-1])


def spectral_similarity(raw: Series, seasonal: Other, share: float = 0.25) -> Float[Array, "*lead"]:
    """Cosine of the two amplitude spectra at the frequencies where `raw` is strongest, in [0, 1].

    raw, seasonal: [..., T], T >= 2; each row is a pair.
    share: of the ⌊T/2⌋ frequencies above 0 (never the mean), in (0, 1], rounded up.
    Phases and a common factor do not matter. 0 where either has no amplitude at all there.
    """
    _alike(raw, seasonal)
    in_range("share", share, 0, 1, open_low=True)
    in_range("T", raw.shape[-1], 2)
    of_raw, of_seasonal = (jnp.abs(jnp.fft.rfft(x, axis=-1))[..., 1:] for x in (raw, seasonal))
    count = -int(-of_raw.shape[-1] * share // 1)
    strongest, where = jax.lax.top_k(of_raw, count)
    kept = jnp.take_along_axis(of_seasonal, where, -1)
    norms = jnp.linalg.norm(strongest, axis=-1) * jnp.linalg.norm(kept, axis=-1)
    cosine = jnp.sum(strongest * kept, -1) / jnp.where(norms > 0, norms, 1)
    return jnp.minimum(cosine, 1)


def _alike(raw: Series, part: Other) -> None:
    if raw.shape != part.shape:
        raise UserError(f"a part {list(part.shape)} of another shape than raw {list(raw.shape)}")
