"""Quantile losses, CRPS and conformal intervals against their definitions and theorems."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import stats

from experiments.forecasting import models
from rflib.core.errors import UserError
from rflib.methods.leddam import intervals
from rflib.methods.leddam.baselines import DLinear
from rflib.methods.leddam.quantile_head import LEAST_SCALE, QuantileHead
from tests.leddam.forecasters import FAST, initial, shaken, windows

NINE = tuple(round(0.1 * i, 1) for i in range(1, 10))


# Pinball loss.


@pytest.mark.parametrize("level", [0.05, 0.5, 0.8])
def test_the_mean_pinball_loss_is_least_at_the_quantile(level: float) -> None:
    y = np.sort(np.random.default_rng(0).gamma(2, size=101)).astype(np.float32)
    guess, target = np.broadcast_arrays(y[:, None], y[None])
    loss = intervals.pinball(jnp.asarray(guess)[..., None], jnp.asarray(target), (level,))
    best = y[np.asarray(loss)[..., 0].mean(1).argmin()]
    assert np.mean(y < best) <= level <= np.mean(y <= best)


def test_pinball_is_its_definition_and_half_the_absolute_error_at_the_median() -> None:
    rng = np.random.default_rng(1)
    q, y = rng.normal(size=(4, 5, 3)).astype(np.float32), rng.normal(size=(4, 5))
    y = y.astype(np.float32)
    levels = (0.1, 0.5, 0.7)
    found = np.asarray(intervals.pinball(jnp.asarray(q), jnp.asarray(y), levels))
    for place, level in enumerate(levels):
        e = y - q[..., place]
        np.testing.assert_allclose(found[..., place], np.where(e > 0, level, level - 1) * e,
                                   rtol=1e-6)  # fmt: skip
    np.testing.assert_allclose(found[..., 1], np.abs(y - q[..., 1]) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "levels",
    [
        *((0.1, 0.9), (0.5, 0.1), (0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (), (math.nan, 0.5)),
        *(("a", 0.5), (None, 0.5)),
    ],
)
def test_levels_that_are_no_growing_shares_around_the_median_are_refused(levels: tuple) -> None:
    with pytest.raises(UserError, match=r"quantiles=.* must"):
        intervals.check_levels(levels)


# CRPS.


def _brute_force(cdf: object, y: float, low: float = -12.0, high: float = 12.0) -> float:
    """∫ (F(z) - 1{z >= y})² dz by midpoints of cells that end at y, where the integrand jumps."""
    total = 0.0
    for a, b in ((low, y), (y, high)):
        z = a + (b - a) * (np.arange(400_000) + 0.5) / 400_000
        total += float(np.mean((cdf(z) - (z >= y)) ** 2) * (b - a))  # type: ignore[operator]
    return total


@pytest.mark.parametrize("y", [-3.0, -0.4, 0.31, 1.0, 5.0])
def test_crps_of_quantiles_equals_the_integral(y: float) -> None:
    levels, q = (0.1, 0.5, 0.6, 0.9), (-1.0, 0.2, 0.4, 2.0)
    found = intervals.crps_quantiles(jnp.asarray(q), jnp.asarray(y), levels)
    truth = _brute_force(lambda z: np.interp(z, q, levels, left=0.0, right=1.0), y)
    assert abs(float(found) - truth) < 2e-4


def test_crps_of_equal_quantiles_is_the_absolute_error() -> None:
    y = jnp.asarray([-1.5, 0.0, 2.0])
    found = intervals.crps_quantiles(jnp.zeros((3, 9)), y, NINE)
    np.testing.assert_allclose(found, np.abs(y), rtol=1e-6)


@pytest.mark.parametrize("y", [-2.0, 0.1, 0.77])
def test_crps_of_an_ensemble_equals_the_integral_and_the_double_sum(y: float) -> None:
    x = np.random.default_rng(2).normal(size=7).astype(np.float32)
    found = float(intervals.crps_ensemble(jnp.asarray(x), jnp.asarray(y)))
    pairs = np.abs(x[:, None] - x[None]).mean() / 2
    assert abs(found - (np.abs(x - y).mean() - pairs)) < 1e-6
    truth = _brute_force(lambda z: np.searchsorted(np.sort(x), z, "right") / 7, y)
    assert abs(found - truth) < 2e-4


@pytest.mark.parametrize("y", [-1.3, 0.0, 0.6])
def test_many_quantiles_or_members_give_the_crps_of_the_normal_distribution(y: float) -> None:
    """σ (z (2 Φ(z) - 1) + 2 φ(z) - 1/√π) (Gneiting and Raftery 2007)."""
    truth = y * (2 * stats.norm.cdf(y) - 1) + 2 * stats.norm.pdf(y) - 1 / np.sqrt(np.pi)
    levels = tuple(np.arange(1, 1000) / 1000)
    q = jnp.asarray(stats.norm.ppf(levels), jnp.float32)
    assert abs(float(intervals.crps_quantiles(q, jnp.asarray(y), levels)) - truth) < 1e-4
    assert abs(float(intervals.crps_ensemble(q, jnp.asarray(y))) - truth) < 1e-3


def test_crps_of_midpoint_quantiles_is_twice_the_mean_pinball_loss() -> None:
    """CRPS = 2 ∫ pinball dτ, a finite sum for an ensemble and the levels (i - 1/2) / m."""
    x = np.sort(np.random.default_rng(3).normal(size=(6, 8)), -1).astype(np.float32)
    y, levels = jnp.linspace(-2, 2, 6), tuple((np.arange(8) + 0.5) / 8)
    double = 2 * np.mean(intervals.pinball(jnp.asarray(x), y, levels), -1)
    np.testing.assert_allclose(intervals.crps_ensemble(jnp.asarray(x), y), double, rtol=1e-5)


# Conformal intervals.


@pytest.mark.parametrize(
    ("count", "alpha", "rank"), [(9, 0.1, 9), (8, 0.1, 9), (19, 0.1, 18), (99, 0.05, 95)]
)
def test_the_rank_is_exact_where_floating_point_numbers_are_not(count, alpha, rank) -> None:
    assert intervals.conformal_rank(count, alpha) == rank


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9])
def test_the_fewest_scores_are_just_enough(alpha: float) -> None:
    least = intervals.least_scores(alpha)
    assert intervals.conformal_rank(least, alpha) <= least
    assert intervals.conformal_rank(least - 1, alpha) > least - 1
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(UserError, match="alpha"):
            intervals.conformal_rank(9, alpha)


def test_the_radius_is_a_score_of_its_own_place_and_leaves_gaps_out() -> None:
    scores = np.random.default_rng(4).exponential(size=(19, 2, 3))
    radius = intervals.conformal_radius(scores, 0.1)
    np.testing.assert_array_equal(radius, np.sort(scores, 0)[17])
    holed = np.concatenate([scores, np.full((5, 2, 3), np.nan)])
    np.random.default_rng(5).shuffle(holed)
    np.testing.assert_array_equal(intervals.conformal_radius(holed, 0.1), radius)
    holed[:, 1, 2] = np.nan
    holed[:8, 1, 2] = 1.0  # 8 scores are too few for alpha = .1
    assert intervals.conformal_radius(holed, 0.1)[1, 2] == np.inf


def _within_binomial(hits: int, trials: int, low: float, high: float) -> bool:
    """Whether `hits` is no surprise (1e-6 a side) for some probability in [low, high]."""
    return bool(
        hits >= stats.binom.ppf(1e-6, trials, low)
        and hits <= stats.binom.ppf(1 - 1e-6, trials, high)
    )


@pytest.mark.parametrize("alpha", [0.1, 0.35])
def test_split_conformal_covers_exchangeable_data_and_not_much_more(alpha: float) -> None:
    """Lei et al. 2018, theorem 2.2: in [1 - α, 1 - α + 1/(n+1)] over calibration and test draws."""
    rng, trials, n = np.random.default_rng(6), 20_000, 25
    y = rng.standard_cauchy(size=(n + 1, trials, 1))  # no moments: nothing is asked of the data
    forecast = np.full_like(y, 0.7)  # and nothing of the forecaster
    radius = intervals.conformal_radius(intervals.absolute_scores(forecast, y)[:n], alpha)
    interval = intervals.split_conformal(forecast[n:], radius)
    hits = int(intervals.covered(interval, y[n:]).sum())
    assert _within_binomial(hits, trials, 1 - alpha, 1 - alpha + 1 / (n + 1))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])  # quantiles too close, right, too far apart
def test_conformal_quantiles_cover_exchangeable_data_whatever_the_quantiles(
    spread: float, scaled: bool
) -> None:
    rng, trials, n, alpha = np.random.default_rng(7), 20_000, 29, 0.2
    size = rng.uniform(0.2, 2, size=(n + 1, trials, 1))
    y = size * rng.normal(size=size.shape)
    low, high = -1.28 * spread * size, 1.28 * spread * size
    scores = intervals.quantile_scores(low, high, y, scaled=scaled)
    radius = intervals.conformal_radius(scores[:n], alpha)
    if spread != 1:
        assert (np.sign(radius) == np.sign(1 - spread)).mean() > 0.99
    interval = intervals.conformal_quantiles(low[n:], high[n:], radius, scaled=scaled)
    assert (interval.low <= interval.high).all()
    hits = int(intervals.covered(interval, y[n:]).sum())
    if scaled:
        assert (interval.low < interval.high).all()
    if spread > 1 and not scaled:  # crossed bounds are one point, which never covers less
        assert hits >= stats.binom.ppf(1e-6, trials, 1 - alpha)
    else:
        assert _within_binomial(hits, trials, 1 - alpha, 1 - alpha + 1 / (n + 1))


def test_intervals_grow_as_alpha_falls() -> None:
    rng = np.random.default_rng(8)
    y, forecast = rng.normal(size=(2, 60, 4, 3))
    scores = intervals.absolute_scores(forecast, y)
    widths = [intervals.conformal_radius(scores, a) for a in (0.5, 0.3, 0.1, 0.05, 0.02)]
    assert all((a <= b).all() for a, b in itertools.pairwise(widths))
    assert (widths[0] < widths[-2]).all()


def test_coverage_counts_observed_values_by_horizon_and_series() -> None:
    y = np.array([[[0.0, 5.0]], [[np.nan, 0.5]], [[2.0, np.nan]]])
    interval = intervals.Interval(np.full_like(y, -1), np.full_like(y, 1))
    np.testing.assert_allclose(intervals.coverage(interval, y), [2 / 4])
    np.testing.assert_allclose(intervals.coverage(interval, y, (0, 1)), [1 / 2, 1 / 2])
    nothing = np.full((2, 1, 1), np.nan)
    assert np.isnan(intervals.coverage(intervals.Interval(nothing, nothing), nothing)).all()


# The head.


def _head(levels: tuple[float, ...] = (0.05, 0.3, 0.5, 0.9)) -> QuantileHead:
    return QuantileHead(DLinear(n_series=3, seq_len=12, pred_len=5, kernel_size=5), levels)


def test_quantiles_never_cross_and_the_median_is_the_forecaster() -> None:
    head = _head()
    v, x = shaken(head), windows(head)
    q = np.asarray(FAST(head, v, x)[0])
    assert q.shape == (4, 5, 3, 4)
    assert (np.diff(q, axis=-1) > 0).all()
    frozen = {"frozen": v["extra"]["frozen"]["forecaster"]}
    point = {"params": v["params"]["forecaster"], "extra": frozen}
    np.testing.assert_array_equal(q[..., 2], FAST(head.forecaster, point, x)[0])


def test_at_first_the_gaps_are_those_of_a_normal_distribution_as_wide_as_the_window() -> None:
    head = _head()
    x = windows(head)
    q = np.asarray(FAST(head, initial(head), x)[0])
    scale = np.sqrt(x.var(1) + 1e-5 + LEAST_SCALE**2)[:, None, :, None]
    gaps = np.diff(stats.norm.ppf(head.levels))
    np.testing.assert_allclose(np.diff(q, axis=-1) / scale, np.broadcast_to(gaps, (4, 5, 3, 3)),
                               rtol=1e-3)  # fmt: skip


def test_a_single_level_is_the_forecaster_alone() -> None:
    head = _head((0.5,))
    v = shaken(head)
    assert set(v["params"]) == {"forecaster"}
    assert FAST(head, v, windows(head))[0].shape == (4, 5, 3, 1)


def test_a_head_needs_a_forecaster_with_sizes() -> None:
    with pytest.raises(UserError, match="Dense has no field n_series"):
        QuantileHead(nn.Dense(3), NINE)


def test_every_parameter_of_the_head_is_trained() -> None:
    head = _head()
    v, x = shaken(head), jnp.asarray(windows(head))

    def loss(params: dict) -> jax.Array:
        q = FAST(head, {"params": params, "extra": v["extra"]}, x)[0]
        return jnp.mean(intervals.pinball(q, jnp.zeros(q.shape[:3]), head.levels))

    gradient = jax.grad(loss)(v["params"])
    assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(gradient))


def test_the_forecaster_inside_a_trained_head_is_its_point_forecast() -> None:
    """What figures and claims look at: the model without its quantiles."""
    head = _head()
    view, x = {**shaken(head), "ema": None}, jnp.asarray(windows(head))
    inside = models.core(head, view)
    assert isinstance(inside[0], DLinear)
    assert models.core(*inside) == inside
    np.testing.assert_array_equal(models.forecast(*inside, x), models.forecast(head, view, x))
    assert models.quantiles(*inside, x) is None
