"""Weights against finite differences, sampled times, and the floor of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.diffusion.losses import WEIGHTS, bin_means, denoise_loss, sample_time, weight
from rflib.diffusion.param import KINDS
from rflib.diffusion.schedule import cosine, vp_linear


def test_bound_weight_is_half_the_slope_of_gamma(float64):
    """By central differences, for ε; and for x_0 times the signal-to-noise ratio."""
    t, h = jnp.linspace(0.05, 0.95, 10), 1e-5
    for schedule in (vp_linear(), cosine()):
        slope = (schedule.gamma(t + h) - schedule.gamma(t - h)) / (2 * h)
        np.testing.assert_allclose(weight("elbo", schedule, t, "eps"), slope / 2, rtol=1e-4)
        snr = jnp.exp(schedule.logsnr(t))
        np.testing.assert_allclose(weight("elbo", schedule, t, "x0"), snr * slope / 2, rtol=1e-4)


def test_weighted_loss_does_not_depend_on_the_space_of_the_error(float64):
    x0 = jax.random.normal(jax.random.key(0), (8, 3), jnp.float64)
    schedule, t_range = vp_linear(), (0.1, 0.9)

    @jax.jit
    def losses(key):
        """Unweighted in each space, and the times of the draw."""
        model = lambda p, x, t, c: 0.3 * x  # noqa: E731
        runs = [
            denoise_loss(model, {}, key, x0, schedule, target=target, t_range=t_range)
            for target in KINDS
        ]
        t = runs[0][1].t
        factors = {w: [weight(w, schedule, t, k) for k in KINDS] for w in WEIGHTS}
        one = denoise_loss(model, {}, key, x0, schedule, weighting="p2", t_range=t_range)[0]
        return [each for each, _ in runs], factors, one

    plain, factors, one = losses(jax.random.key(1))
    for weighting in set(WEIGHTS) - {"simple"}:
        weighted = [np.asarray(p * f) for p, f in zip(plain, factors[weighting], strict=True)]
        np.testing.assert_allclose(weighted, [weighted[0]] * len(KINDS), rtol=1e-9)
    np.testing.assert_allclose(one, plain[KINDS.index("eps")] * factors["p2"][KINDS.index("eps")])


def test_snr_weight_of_eps_is_one_and_min_snr_is_capped():
    t = jnp.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(weight("snr", vp_linear(), t, "eps"), 1, rtol=1e-5)
    assert float(jnp.max(weight("min_snr", vp_linear(), t, "x0"))) == 5


def test_loss_of_the_optimal_linear_denoiser_is_the_conditional_variance(float64):
    """For N(0, s²) data E|ε - E[ε|x]|² = s² α²/(α² s² + σ²), averaged over t; measured 0.2 %."""
    s, schedule = 0.5, vp_linear()

    def best(params, x, t, cond):
        a, n = schedule.alpha(t), schedule.sigma(t)
        return (n / (a**2 * s**2 + n**2))[:, None] * x

    x0 = s * jax.random.normal(jax.random.key(0), (40000, 1), jnp.float64)
    each, _ = jax.jit(lambda k: denoise_loss(best, {}, k, x0, schedule))(jax.random.key(1))
    t = jnp.linspace(0, 1, 20001)[1:]
    a, n = schedule.alpha(t), schedule.sigma(t)
    floor = jnp.mean(s**2 * a**2 / (a**2 * s**2 + n**2))
    np.testing.assert_allclose(jnp.mean(each), floor, rtol=0.02)


def test_mask_takes_entries_out_of_the_loss_even_if_they_are_nan():
    x0 = jnp.ones((2, 3, 2)).at[:, 0].set(jnp.nan)
    mask = jnp.ones((2, 3, 2)).at[:, 0].set(0)

    @jax.jit
    def loss(key):
        zero = lambda p, x, t, c: jnp.zeros_like(x)  # noqa: E731
        options = {"mask": mask, "target": "x0", "predict": "x0"}
        return denoise_loss(zero, {}, key, x0, vp_linear(), **options)

    each, seen = loss(jax.random.key(0))
    np.testing.assert_allclose(each, 1, rtol=1e-6)
    assert seen.xt.shape == x0.shape and seen.t.shape == (2,)


def test_times_fill_their_strata():
    key = jax.random.key(3)
    t = sample_time(key, 16, "stratified")
    np.testing.assert_array_equal(np.floor(t * 16), np.arange(16))
    t = np.sort(sample_time(key, 16, "antithetic"))
    np.testing.assert_allclose(np.diff(t), 1 / 16, atol=1e-6)
    t = np.asarray(sample_time(key, 1000, "discrete", 4))
    assert set(t.tolist()) == {0.25, 0.5, 0.75, 1.0}
    t = np.asarray(sample_time(key, 4000, "uniform"))
    assert abs(t.mean() - 0.5) < 0.02 and t.min() >= 0 and t.max() < 1
    with pytest.raises(UserError, match="steps"):
        sample_time(key, 4, "discrete")


def test_bins_hold_means_and_say_when_they_are_empty():
    means = bin_means(jnp.asarray([1.0, 3.0, 5.0]), jnp.asarray([0.01, 0.09, 1.0]))
    np.testing.assert_allclose(means[jnp.asarray([0, 9])], [2, 5])
    assert np.all(np.isnan(means[1:9]))
