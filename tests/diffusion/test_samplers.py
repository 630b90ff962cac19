"""Samplers on Gaussian and mixture data, whose denoisers are known in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.diffusion import samplers
from rflib.diffusion.samplers import Inpaint, Level, Method, draw_normal, sample
from rflib.diffusion.schedule import DiscreteSchedule, linear_betas, vp_linear

MEAN, STD = 1.5, 0.5
SCHEDULE = vp_linear()


def posterior_mean(x, t):
    """E[x_0 | x_t] for N(MEAN, STD²) data."""
    a, s = SCHEDULE.alpha(t)[:, None], SCHEDULE.sigma(t)[:, None]
    return MEAN + a * STD**2 * (x - a * MEAN) / (a**2 * STD**2 + s**2)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _affine(method, steps):
    """(mean, variance) at t = 1e-3 from N(0, 1): a deterministic sampler is an affine map."""
    ts = jnp.linspace(1, 1e-3, steps + 1, dtype=jnp.float64)
    x = jnp.asarray([[0.0], [1.0]], jnp.float64)
    end = sample(jax.random.key(0), posterior_mean, x, ts, SCHEDULE, METHODS[method]).x
    return end[0, 0], jnp.square(end[1, 0] - end[0, 0])


METHODS = {
    "ddim": samplers.ddim(),
    "pf_euler": samplers.pf_euler(),
    "heun": samplers.heun(),
    "dpmpp_2m": samplers.dpmpp_2m(),
}


def _variance_error(method, steps):
    return float(_affine(method, steps)[1] / STD**2 - 1)


def test_many_steps_of_ddim_and_few_of_heun_recover_gaussian_data(float64):
    for method, steps in (("ddim", 1000), ("heun", 60)):
        mean, variance = _affine(method, steps)
        np.testing.assert_allclose(mean, MEAN, rtol=0.01)
        np.testing.assert_allclose(variance, STD**2, rtol=0.01)


def test_euler_has_order_one_and_heun_order_two(float64):
    """Errors of the variance: .1715, .0895 for DDIM (Euler in σ/α) and .0164, .0044 for Heun."""
    coarse, fine = (abs(_variance_error("ddim", n)) for n in (30, 60))
    np.testing.assert_allclose([coarse, fine], [0.1715, 0.0895], atol=1e-3)
    assert abs(coarse / fine - 2) < 0.2
    coarse, fine = (abs(_variance_error("heun", n)) for n in (30, 60))
    np.testing.assert_allclose([coarse, fine], [0.0164, 0.0044], atol=2e-4)
    assert abs(coarse / fine - 4) < 0.5


def test_other_solvers_of_the_same_ode_converge_with_their_order(float64):
    """The exact flow maps the variance at t = 1 to that at t = 1e-3 of the noised data."""
    t = jnp.asarray([1, 1e-3])
    last, first = (float(v) for v in (1 - jnp.square(SCHEDULE.alpha(t)) * (1 - STD**2))[::-1])
    for method, order, steps in (("dpmpp_2m", 2, 500), ("pf_euler", 1, 1000)):
        coarse, fine = (
            float(_affine(method, n)[1]) / (last / first) - 1 for n in (steps, 2 * steps)
        )
        assert abs(fine) < 0.01, method
        assert abs(np.log2(coarse / fine) - order) < 0.3, method


def _level(t):
    t = jnp.asarray(t)
    return Level(t, SCHEDULE.alpha(t), SCHEDULE.sigma(t), SCHEDULE.rate(t), SCHEDULE.diffusion(t))


@pytest.mark.parametrize("method", [samplers.ddpm(), samplers.ddim(1.0)])
def test_ancestral_step_draws_from_the_gaussian_posterior(method, float64):
    """q(x_s | x_t, x_0) by completing the square of q(x_t | x_s) q(x_s | x_0)."""
    t, s, x0, xt = _level(0.5), _level(0.35), 0.4, -1.2
    forward = t.alpha / s.alpha
    beta = t.sigma**2 - forward**2 * s.sigma**2
    precision = 1 / s.sigma**2 + forward**2 / beta
    mean = (s.alpha * x0 / s.sigma**2 + forward * xt / beta) / precision
    x = jnp.full((4, 50000), xt)
    denoise = lambda x, t: jnp.full_like(x, x0)  # noqa: E731
    step = jax.jit(lambda key: method.step(key, denoise, x, t, s, ())[0])
    key = jax.random.key(3)
    moved = step(key)
    noise = draw_normal(key, x)
    np.testing.assert_allclose(moved, mean + noise / np.sqrt(precision), atol=1e-9)


def test_larger_variance_of_ddpm_is_that_of_the_forward_step(float64):
    t, s = _level(0.5), _level(0.35)
    x = jnp.zeros((1, 1))
    draws = [
        samplers.ddpm(v).step(jax.random.key(0), lambda x, t: x, x, t, s, ())[0]
        for v in ("posterior", "beta", "interp")
    ]
    small, large, middle = (float(d[0, 0]) for d in draws)
    np.testing.assert_allclose(large / small, t.sigma / s.sigma, rtol=1e-9)
    np.testing.assert_allclose(middle**2, small * large, rtol=1e-9)


def test_respaced_table_with_all_indices_samples_as_the_original():
    table = DiscreteSchedule.from_betas(linear_betas(40))
    full = table.respace(np.arange(40))
    x = jax.random.normal(jax.random.key(0), (3, 2))
    denoise = lambda x, t: jnp.tanh(x) * t[:, None]  # noqa: E731

    @functools.partial(jax.jit, static_argnums=0)
    def run(which):
        each = (table, full, table.respace(np.arange(0, 40, 3)))[which]
        ts = jnp.asarray(each.times[::-1].copy(), jnp.float32)
        return sample(jax.random.key(1), denoise, x, ts, each.schedule(), samplers.ddim()).x0

    np.testing.assert_array_equal(run(0), run(1))
    assert not np.allclose(run(0), run(2), atol=1e-4)


def test_stochastic_samplers_draw_a_mixture_of_gaussians():
    """1e5 samples in 50 bins, analytic score: total variation below .03."""
    means, stds, weights = np.array([-1.0, 1.2]), np.array([0.3, 0.5]), np.array([0.4, 0.6])

    def denoise(x, t):
        a, s = SCHEDULE.alpha(t)[:, None], SCHEDULE.sigma(t)[:, None]
        parts = [
            (w, a * m, a**2 * d**2 + s**2, m, d)
            for w, m, d in zip(weights, means, stds, strict=True)
        ]
        logs = jnp.stack(
            [jnp.log(w / jnp.sqrt(v)) - (x - c) ** 2 / (2 * v) for w, c, v, *_ in parts]
        )
        each = jnp.stack([m + a * d**2 * (x - c) / v for _, c, v, m, d in parts])
        return jnp.sum(jax.nn.softmax(logs, 0) * each, 0)

    from scipy.stats import norm

    edges = np.linspace(-3, 3.5, 51)
    cdfs = [w * norm.cdf(edges, m, d) for w, m, d in zip(weights, means, stds, strict=True)]
    truth = np.diff(sum(cdfs))

    @functools.partial(jax.jit, static_argnums=0)
    def run(name):
        x = jax.random.normal(jax.random.key(0), (100_000, 1))
        ts = jnp.linspace(1, 1e-3, 201)
        return sample(jax.random.key(1), denoise, x, ts, SCHEDULE, STOCHASTIC[name]).x0

    for name in STOCHASTIC:
        found = np.histogram(run(name), edges)[0] / 1e5
        assert 0.5 * np.abs(found - truth).sum() < 0.03, name


STOCHASTIC = {"em_sde": samplers.em_sde(), "ddpm": samplers.ddpm()}


def test_keys_of_examples_make_a_batch_independent_of_its_splitting():
    keys = jax.random.split(jax.random.key(0), 6)
    x = jax.random.normal(jax.random.key(1), (6, 3))
    ts = jnp.linspace(1, 1e-2, 6)

    @jax.jit
    def run(keys, x):
        denoise = lambda x, t: 0.5 * x  # noqa: E731
        return sample(keys, denoise, x, ts, SCHEDULE, samplers.ddpm()).x0

    whole = run(keys, x)
    parts = np.concatenate([run(keys[:3], x[:3]), run(keys[3:], x[3:])])
    np.testing.assert_allclose(whole, parts, rtol=1e-6)
    np.testing.assert_array_equal(whole, run(keys, x))
    assert not np.allclose(whole, run(jax.random.split(jax.random.key(5), 6), x))


@pytest.mark.parametrize("name", METHODS)
def test_deterministic_methods_do_not_use_their_key(name):
    x, ts = jnp.ones((1, 1)), jnp.linspace(1, 0.1, 4)
    run = jax.jit(lambda key: sample(key, lambda x, t: 0.1 * x, x, ts, SCHEDULE, METHODS[name]).x)
    np.testing.assert_array_equal(run(jax.random.key(0)), run(jax.random.key(1)))


def test_inpainting_keeps_what_is_known_and_traces_every_other_state():
    known = jnp.asarray([[2.0, 2.0, 0.0]])
    mask = jnp.asarray([[1.0, 1.0, 0.0]])
    ts = jnp.linspace(1, 1e-3, 9)

    @functools.partial(jax.jit, static_argnums=0)
    def run(mode):
        x = jnp.zeros((1, 3))
        inpaint = Inpaint(mask, known, mode)
        method = samplers.ddim()
        options = {"inpaint": inpaint, "trace_every": 2}
        return sample(jax.random.key(0), lambda x, t: 0.1 * x, x, ts, SCHEDULE, method, **options)

    clean, noised = run("clean"), run("noised")
    np.testing.assert_array_equal(clean.x[0, :2], 2)
    assert clean.trace is not None and noised.trace is not None
    assert clean.trace.shape == (4, 1, 3)
    np.testing.assert_array_equal(clean.trace[-1], clean.x)
    sigma = float(SCHEDULE.sigma(jnp.asarray(1e-3)))
    assert np.all(np.abs(noised.x[0, :2] - 2) < 6 * sigma)
    assert np.std(noised.trace[0, 0, :2]) > 0.01


def test_wrong_arguments_are_named():
    x, method = jnp.zeros((1, 1)), Method(lambda x: (), lambda *a: (a[2], a[2], ()))
    key, denoise = jax.random.key(0), lambda x, t: x
    with pytest.raises(UserError, match="two times"):
        sample(key, denoise, x, jnp.ones(1), SCHEDULE, method)
    with pytest.raises(UserError, match="trace_every"):
        sample(key, denoise, x, jnp.linspace(1, 0, 6), SCHEDULE, method, trace_every=2)
    with pytest.raises(UserError, match="variance"):
        samplers.ddpm("large")
