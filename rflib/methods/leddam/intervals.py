"""How a forecast says what it does not know: quantile losses, CRPS, conformal intervals.

Nothing here depends on the forecaster. What is trained on is in jax.numpy; what is calibrated on
residuals after training is in float64 NumPy.

Coverage, exactly. Let the n scores of the calibration windows and that of the next window be
exchangeable, at one horizon and series. Then the interval whose radius is the k-th smallest of
the n scores, k = ceil((n + 1)(1 - alpha)), holds the next value with probability at least
1 - alpha, and at most 1 - alpha + 1/(n + 1) if scores never tie, whatever the forecaster and the
distribution (Lei et al., "Distribution-free predictive inference for regression", JASA 2018,
theorem 2.2). Windows of a time series are *not* exchangeable: neighbours overlap, and the series
drifts. There the number is a target and not a guarantee, which is why `coverage` is measured on
later windows.
"""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from rflib.core.checks import in_range, positive_int
from rflib.core.errors import UserError

LEAST_WIDTH = 1e-9  # of two quantiles, where scores are scaled by it

# Quantiles and CRPS.


def check_levels(levels: Sequence[Any]) -> tuple[float, ...]:
    """`levels` as floats; UserError unless they grow, lie in (0, 1) and include 0.5."""
    try:
        found = tuple(float(level) for level in levels)
    except (TypeError, ValueError):
        raise UserError(f"quantiles={levels!r} must be numbers in (0, 1)") from None
    growing = all(low < high for low, high in itertools.pairwise(found))
    if not growing or 0.5 not in found or not 0 < found[0] <= found[-1] < 1:
        raise UserError(
            f"quantiles={found} must grow, lie in (0, 1) and include 0.5, the point forecast"
        )
    return found


def pinball(
    quantiles: Float[Array, "*lead levels"],
    target: Float[Array, "*lead"],
    levels: tuple[float, ...],
) -> Float[Array, "*lead levels"]:
    """max(τ (y - q), (τ - 1)(y - q)) at each level τ: its mean over y is least at y's τ-quantile.

    At τ = 1/2 it is half the absolute error.
    """
    level = jnp.asarray(levels, quantiles.dtype).reshape((1,) * target.ndim + (-1,))
    excess = target[..., None] - quantiles
    return jnp.maximum(level * excess, (level - 1) * excess)


def crps_quantiles(
    quantiles: Float[Array, "*lead levels"],
    target: Float[Array, "*lead"],
    levels: tuple[float, ...],
) -> Float[Array, "*lead"]:
    """∫ (F(z) - 1{z >= y})² dz of the distribution that the quantiles describe, in closed form.

    F is linear between neighbouring quantiles, and the mass below the lowest and above the highest
    level sits on these two quantiles. Same unit as the target. quantiles: not decreasing.
    """
    level = jnp.asarray(levels, quantiles.dtype).reshape((1,) * target.ndim + (-1,))
    y = target[..., None]
    left, right = quantiles[..., :-1], quantiles[..., 1:]
    low, high = level[..., :-1], level[..., 1:]
    cut = jnp.clip(y, left, right)
    width = right - left
    share = jnp.where(width > 0, (cut - left) / jnp.where(width > 0, width, 1), 0)
    middle = low + (high - low) * share  # F at the cut
    before = (cut - left) * (low**2 + low * middle + middle**2)
    after = (right - cut) * ((1 - middle) ** 2 + (1 - middle) * (1 - high) + (1 - high) ** 2)
    # Beyond the outer quantiles F is 0 or 1, and differs from the step between them and y only.
    outside = jnp.maximum(quantiles[..., 0] - target, 0) + jnp.maximum(
        target - quantiles[..., -1], 0
    )
    return jnp.sum(before + after, -1) / 3 + outside


def crps_ensemble(
    members: Float[Array, "*lead members"], target: Float[Array, "*lead"]
) -> Float[Array, "*lead"]:
    """CRPS of the empirical distribution of m members: mean |x - y| - Σ_ij |x_i - x_j| / (2 m²).

    The double sum is taken over sorted members, Σ_i (2 i - m + 1) x_(i) / m²: O(m log m).
    (Gneiting and Raftery, "Strictly proper scoring rules", JASA 2007, equation 21.)
    """
    count = members.shape[-1]
    weight = jnp.asarray((2 * np.arange(count) - count + 1) / count**2, members.dtype)
    weight = weight.reshape((1,) * target.ndim + (-1,))
    error = jnp.mean(jnp.abs(members - target[..., None]), -1)
    return error - jnp.sum(weight * jnp.sort(members, -1), -1)


# Conformal intervals: split conformal prediction, horizon by horizon and series by series.


class Interval(NamedTuple):
    """low <= high, each [B, S, N]."""

    low: np.ndarray
    high: np.ndarray


def conformal_rank(count: int, alpha: float) -> int:
    """k = ceil((n + 1)(1 - alpha)): the rank, from 1, of the score that is the radius.

    k > n means that n scores are too few for this alpha: only the whole line covers enough.
    """
    positive_int("count", count, zero=True)
    in_range("alpha", alpha, 0, 1, open_low=True, open_high=True)
    # In floating-point numbers (9 + 1)(1 - .1) is above 9 at times: one rank too many.
    return math.ceil((count + 1) * (1 - Fraction(str(float(alpha)))))


def least_scores(alpha: float) -> int:
    """The fewest scores with a finite radius: ceil(1/alpha) - 1."""
    in_range("alpha", alpha, 0, 1, open_low=True, open_high=True)
    return math.ceil(1 / Fraction(str(float(alpha)))) - 1


def absolute_scores(
    forecast: Float[np.ndarray, "*lead"], target: Float[np.ndarray, "*lead"]
) -> Float[np.ndarray, "*lead"]:
    """|y - ŷ|; NaN where y is."""
    return np.abs(np.asarray(target, np.float64) - forecast)


def quantile_scores(
    low: Float[np.ndarray, "*lead"],
    high: Float[np.ndarray, "*lead"],
    target: Float[np.ndarray, "*lead"],
    *,
    scaled: bool = False,
) -> Float[np.ndarray, "*lead"]:
    """max(low - y, y - high): how far y is outside of two forecast quantiles, negative inside.

    Romano, Patterson and Candès, "Conformalized quantile regression" (NeurIPS 2019).

    scaled: over high - low (Sesia and Candès, Stat 2020): at least -1/2, so that the interval
        never closes. To be preferred where the width of the quantiles drifts: a radius that
        narrows wide ones by a fixed amount leaves nothing of narrower ones.
    """
    target = np.asarray(target, np.float64)
    outside = np.maximum(low - target, target - high)
    return outside / np.maximum(high - low, LEAST_WIDTH) if scaled else outside


def conformal_radius(
    scores: Float[np.ndarray, "windows *rest"], alpha: float
) -> Float[np.ndarray, "*rest"]:
    """The finite-sample quantile of the scores along the first axis, for each place of the rest.

    scores: NaN where nothing was observed; n counts the others. Infinite where n is too small.
    """
    scores = np.asarray(scores, np.float64)
    count = len(scores)
    flat = np.sort(scores.reshape(count, -1), axis=0)  # NaN last
    seen = np.sum(~np.isnan(flat), axis=0)
    ranks = np.array([conformal_rank(n, alpha) for n in range(count + 1)])[seen]
    radius = np.full(flat.shape[1], np.inf)
    enough = ranks <= seen
    radius[enough] = flat[ranks[enough] - 1, np.flatnonzero(enough)]
    return radius.reshape(scores.shape[1:])


def split_conformal(
    forecast: Float[np.ndarray, "windows steps series"], radius: Float[np.ndarray, "steps series"]
) -> Interval:
    """ŷ ± radius; the radius is that of `absolute_scores` of other windows."""
    return Interval(forecast - radius[None], forecast + radius[None])


def conformal_quantiles(
    low: Float[np.ndarray, "windows steps series"],
    high: Float[np.ndarray, "windows steps series"],
    radius: Float[np.ndarray, "steps series"],
    *,
    scaled: bool = False,
) -> Interval:
    """Two forecast quantiles moved apart by the radius of `quantile_scores` of other windows.

    scaled: the radius is in widths of the quantiles, as those scores were.

    A negative radius moves them together; where they would cross, both are their mean: one point in
    the place of the empty set, which covers no less.
    """
    move = radius[None] * np.maximum(high - low, LEAST_WIDTH) if scaled else radius[None]
    lower, upper = low - move, high + move
    middle = (low + high) / 2
    crossed = lower > upper
    return Interval(np.where(crossed, middle, lower), np.where(crossed, middle, upper))


def covered(
    interval: Interval, target: Float[np.ndarray, "windows steps series"]
) -> Bool[np.ndarray, "windows steps series"]:
    """Whether low <= y <= high; False where y is NaN."""
    return (interval.low <= target) & (target <= interval.high)


def coverage(
    interval: Interval,
    target: Float[np.ndarray, "windows steps series"],
    axes: tuple[int, ...] = (0, 2),
) -> np.ndarray:
    """Share of the observed values (not NaN) that the interval holds, over `axes`; NaN if none.

    The default axes leave one number a horizon; (0, 1) one a series; (0,) both.
    """
    seen = np.sum(~np.isnan(target), axis=axes)
    inside = np.sum(covered(interval, target), axis=axes)
    return np.where(seen > 0, inside / np.maximum(seen, 1), np.nan)
