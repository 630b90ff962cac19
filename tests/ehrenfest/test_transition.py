"""The transition law against matrix exponentials, its moments, symmetries and limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm

from rflib.core.errors import UserError
from rflib.methods.ehrenfest import theory, transition
from rflib.methods.ehrenfest.process import (
    draw_initial,
    forward_rates,
    jump_moments,
    make_process,
)

_log_pmf = jax.jit(transition.log_pmf, static_argnums=0)


def _pmf(size, tau):
    return np.exp(np.asarray(_log_pmf(size, np.exp(-tau))))


@pytest.mark.parametrize("size", [1, 4, 20, 60])
def test_law_is_the_matrix_exponential_of_the_generator(size, float64):
    law = jax.jit(lambda tau: jnp.exp(transition.log_pmf(size, jnp.exp(-tau))))
    for tau in (0.05, 0.7, 2.0):
        exact = expm(theory.generator(size) * tau)
        np.testing.assert_allclose(law(tau), exact, atol=1e-10)
        columns = [theory.transition_column(size, k0, np.exp(-tau)) for k0 in range(size + 1)]
        np.testing.assert_allclose(np.transpose(columns), exact, atol=1e-10)


def test_no_time_is_the_identity_and_long_time_the_stationary_law(float64):
    law = jax.jit(lambda w: jnp.exp(transition.log_pmf(6, w)))
    np.testing.assert_array_equal(law(1.0), np.eye(7))
    stationary = np.exp(transition.stationary_log_pmf(6))
    np.testing.assert_allclose(law(0.0), np.tile(stationary[:, None], 7), atol=1e-14)


def test_mean_and_variance_are_exact_and_laws_compose(float64):
    size, w, k = 20, np.exp(-0.7), np.arange(21)
    p, q = _pmf(size, 0.7), _pmf(size, 0.4)
    mean, variance = transition.moments(jnp.asarray(k), size, w)
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-10)
    np.testing.assert_allclose(k @ p, mean, atol=1e-10)
    np.testing.assert_allclose(k**2 @ p - (k @ p) ** 2, variance, atol=1e-10)
    np.testing.assert_allclose(p @ q, _pmf(size, 1.1), atol=1e-10)
    x = np.asarray(make_process(size).to_x(jnp.asarray(k)))
    np.testing.assert_allclose(x @ p, w * x, atol=1e-10)
    np.testing.assert_allclose(x**2 @ p - (x @ p) ** 2, 1 - w * w, atol=1e-10)


def test_binomial_law_is_stationary_in_detailed_balance_with_the_spectrum_of_integers(float64):
    size = 20
    generator, law = theory.generator(size), np.exp(transition.stationary_log_pmf(size))
    np.testing.assert_allclose(law, stats.binom.pmf(np.arange(size + 1), size, 0.5), rtol=1e-12)
    np.testing.assert_allclose(generator @ law, 0, atol=1e-12)
    flow = generator * law[None]
    np.testing.assert_allclose(flow, flow.T, atol=1e-12)
    eigenvalues = np.sort(np.linalg.eigvals(generator).real)[::-1]
    np.testing.assert_allclose(eigenvalues, -np.arange(size + 1.0), atol=1e-6)


@pytest.mark.parametrize("size", [1, 16, 100])
def test_forward_jump_moments_are_those_of_the_limit_for_every_size(size, float64):
    process = make_process(size)
    k = jnp.arange(size + 1)
    rates = forward_rates(k, size, 1.7)
    drift, spread = jump_moments(rates, process.delta)
    np.testing.assert_allclose(drift, -1.7 * process.to_x(k), atol=1e-12)
    np.testing.assert_allclose(spread, 2 * 1.7, rtol=1e-12)
    np.testing.assert_array_equal([rates.birth[-1], rates.death[0]], 0)
    x, root = process.to_x(k), np.sqrt(size)
    np.testing.assert_allclose(rates.birth, 1.7 * root / 4 * (root - x), atol=1e-9)


def test_generator_is_that_of_the_forward_rates(float64):
    rates = forward_rates(jnp.arange(8), 7, 1.0)
    np.testing.assert_allclose(np.diag(theory.generator(7), -1), rates.birth[:-1])
    np.testing.assert_allclose(np.diag(theory.generator(7), 1), rates.death[1:])


@pytest.mark.parametrize("method", ["particles", "binomial"])
def test_samples_follow_the_law(method):
    """2e5 draws against the exact pmf: chi-square p > 1e-3; integers in range."""
    size, k0, w = 16, 5, np.exp(-0.7)
    start = jnp.full((200_000,), k0, jnp.int32)
    draw = jax.jit(lambda key: transition.sample(key, start, w, size, method))
    k = np.asarray(draw(jax.random.key(4)))
    assert k.dtype == np.int32 and k.min() >= 0 and k.max() <= size
    expected = theory.transition_column(size, k0, w) * len(k)
    kept = expected > 5
    observed = np.bincount(k, minlength=size + 1)
    observed, expected = (np.append(a[kept], a[~kept].sum()) for a in (observed, expected))
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_wide_lattices_are_sampled_with_the_exact_mean_and_variance():
    size, w = 65536, 0.6
    start = jnp.full((100_000,), size // 2 + 100, jnp.int32)
    k = np.asarray(jax.jit(lambda key: transition.sample(key, start, w, size))(jax.random.key(0)))
    assert k.dtype == np.int32
    deviation = np.sqrt(size / 4 * (1 - w * w))
    assert abs(k.mean() - size / 2 - 60) < 4 * deviation / np.sqrt(len(k))
    assert abs(k.std() / deviation - 1) < 0.01


def test_law_tends_to_the_ornstein_uhlenbeck_process_as_one_over_the_size():
    """Total variation from x_0 = 1 at t = .7 to the mass in lattice cells."""
    found = []
    for size in (25, 100, 400, 1600):
        k0 = round(np.sqrt(size) / 2 + size / 2)  # x_0 = 1
        law = theory.transition_column(size, k0, np.exp(-0.7))
        found.append(0.5 * np.abs(law - theory.limit_mass(size, 1.0, np.exp(-0.7))).sum())
    np.testing.assert_allclose(found, [6.39e-3, 1.58e-3, 3.93e-4, 9.8e-5], rtol=0.01)
    np.testing.assert_allclose(np.divide(found[:-1], found[1:]), 4, atol=0.1)


def test_initial_states_have_the_stationary_law_or_its_limit():
    process = make_process(16)
    for kind in ("binomial", "gaussian"):
        k = np.asarray(draw_initial(jax.random.key(1), (50_000,), process, kind))
        assert k.dtype == np.int32
        observed = np.bincount(k, minlength=17) / len(k)
        exact = stats.binom.pmf(np.arange(17), 16, 0.5)
        assert 0.5 * np.abs(observed - exact).sum() < 0.02, kind
    with pytest.raises(UserError, match="gaussian"):
        draw_initial(jax.random.key(1), (2,), make_process(65536), "binomial")


def test_states_and_positions_convert_without_loss_even_on_wide_lattices():
    process = make_process(65536)
    k = jnp.asarray([0, 1, 32767, 32768, 32769, 65535, 65536], jnp.int32)
    np.testing.assert_array_equal(process.to_k(process.to_x(k)), k)
    np.testing.assert_array_equal(
        process.to_x(k)[jnp.asarray([0, 3, 4, 6])], [-256, 0, 2 / 256, 256]
    )
    np.testing.assert_array_equal(process.to_k(jnp.asarray([-1e6, 1e6])), [0, 65536])


@pytest.mark.parametrize("schedule", ["song", "cosine", "cosine_ddpm"])
def test_process_shares_its_schedule_with_the_diffusion(schedule):
    process = make_process(16, schedule)
    t = process.times(4)
    assert t.shape == (5,) and float(t[0]) == pytest.approx(0.99)
    np.testing.assert_allclose(process.sig2(t), 1 - jnp.square(process.w(t)), atol=1e-6)
    np.testing.assert_allclose(process.w(jnp.zeros(())), 1)


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="schedule='linear'"):
        make_process(4, "linear")
    with pytest.raises(UserError, match="t_max"):
        make_process(4, t_max=1.5)
    with pytest.raises(UserError, match="method"):
        transition.sample(jax.random.key(0), jnp.zeros(2, jnp.int32), 0.5, 4, "table")
    with pytest.raises(UserError, match="65536"):
        transition.log_prob(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), 65536, 0.5)
