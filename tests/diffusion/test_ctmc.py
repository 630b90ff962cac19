"""Simulation of jump processes against laws from matrix exponentials and SciPy's pmfs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm
from scipy.special import erf

from rflib.core.errors import UserError
from rflib.diffusion import ctmc
from rflib.diffusion.ctmc import Rates
from rflib.diffusion.master_equation import birth_death_generator

COUNT = 20_000
MEANS = [0.0, 1e-3, 0.3, 2.0, 4.0, 9.0, 30.0, 49.0, 51.0, 400.0]


@pytest.fixture(scope="module")
def counts():
    """Poisson numbers of each mean, in groups that take each branch."""
    draw = jax.jit(ctmc.poisson)
    groups = (MEANS[:5] + [0.05] * 5, MEANS, MEANS[8:] + [70.0] * 8)  # one shape, one program
    found = {}
    for i, group in enumerate(groups):
        mean = jnp.broadcast_to(jnp.asarray(group)[:, None], (len(group), COUNT))
        found[i] = np.asarray(draw(jax.random.key(i), mean))
    return groups, found


def test_poisson_numbers_follow_the_pmf_in_every_branch(counts):
    for i, group in enumerate(counts[0]):
        for mean, drawn in zip(group, counts[1][i], strict=True):
            assert drawn.dtype == np.int32
            assert drawn.min() >= 0
            if mean == 0:
                assert drawn.max() == 0
                continue
            if mean > ctmc.LARGE_MEAN:  # the rounded normal: first two moments and range
                assert abs(drawn.mean() - mean) < 5 * np.sqrt(mean / COUNT)
                assert abs(drawn.var() / mean - 1) < 0.06
                continue
            edges = np.unique(stats.poisson.ppf(np.linspace(0.01, 0.999, 12), mean)).astype(int)
            cdf = np.concatenate([[0], stats.poisson.cdf(edges, mean), [1]])
            observed = np.histogram(drawn, np.concatenate([[-0.5], edges + 0.5, [1e9]]))[0]
            expected = np.diff(cdf) * COUNT
            kept = expected > 5
            assert (
                stats.chisquare(
                    observed[kept], expected[kept] * observed[kept].sum() / expected[kept].sum()
                ).pvalue
                > 1e-4
            ), mean


def test_poisson_has_its_mean_and_variance(counts):
    for i, group in enumerate(counts[0]):
        for mean, drawn in zip(group, counts[1][i], strict=True):
            assert abs(drawn.mean() - mean) <= 5 * np.sqrt(mean / COUNT), (i, mean)


def test_sum_of_two_binomials_is_their_convolution(float64):
    size, stay, switch = 9, 0.7, 0.2
    k = jnp.arange(size + 1)
    for k0 in (0, 4, 9):
        found = jnp.exp(ctmc.two_binomials_log_pmf(k, jnp.asarray([k0]), size, stay, switch))
        parts = [
            stats.binom.pmf(np.arange(n + 1), n, p) for n, p in ((k0, stay), (size - k0, switch))
        ]
        np.testing.assert_allclose(found, np.convolve(*parts), atol=1e-13)


def test_binomials_with_certain_outcomes_and_impossible_states_are_exact():
    k = jnp.asarray([-1, 0, 3, 5, 6])
    found = ctmc.two_binomials_log_pmf(k, jnp.asarray([3]), 5, jnp.asarray(1.0), jnp.asarray(0.0))
    np.testing.assert_array_equal(found, [-np.inf, -np.inf, 0, -np.inf, -np.inf])


def test_leaps_stay_on_the_lattice_and_report_what_they_clipped():
    k = jnp.asarray([0, 5, 10])
    rates = Rates(jnp.asarray([0.0, 0.0, 50.0]), jnp.asarray([40.0, 0.0, 0.0]))
    leap = jax.jit(lambda key: ctmc.tau_leap(key, k, rates, jnp.asarray(1.0), 10))(
        jax.random.key(0)
    )
    np.testing.assert_array_equal(leap.k, [0, 5, 10])
    np.testing.assert_allclose(leap.clipped, 2 / 3, rtol=1e-6)


def test_euler_step_has_the_probabilities_of_its_rates():
    k = jnp.full((200_000,), 3, jnp.int32)
    for up, down in ((1.0, 2.0), (9.0, 18.0)):
        rates = Rates(jnp.full(k.shape, up), jnp.full(k.shape, down))
        moved = ctmc.euler_categorical(jax.random.key(1), k, rates, jnp.asarray(0.1), 6).k - 3
        scale = max(1.0, 0.1 * (up + down))
        expected = np.array([0.1 * down, scale - 0.1 * (up + down), 0.1 * up]) / scale
        observed = np.bincount(np.asarray(moved) + 1, minlength=3) / len(k)
        np.testing.assert_allclose(observed, expected, atol=0.005)


@functools.partial(jax.jit, static_argnums=2)
def _paths(key, k, window):
    """Birth-death with time-dependent rates: births 2 t, deaths k t."""
    ts = jnp.asarray([2.0, 1.0, 0.0])
    rates = lambda k, t: jnp.stack([jnp.where(k < 6, 2 * t, 0), k * t], -1)  # noqa: E731
    keys = jax.random.split(key, k.shape[0])
    return jax.vmap(lambda key, k: ctmc.gillespie(key, k, rates, ts, window=window))(keys, k)


def test_thinned_paths_have_the_law_of_the_master_equation():
    """Rates proportional to t: the law is that of constant rates at internal time (4 - s²)/2."""
    count = 20_000
    found = _paths(jax.random.key(0), jnp.full((count, 1), 5, jnp.int32), 0.5)
    k = np.arange(7.0)
    generator = birth_death_generator(np.full(7, 2.0), k)
    for place, tau in ((0, 1.5), (1, 2.0)):
        exact = expm(generator * tau)[:, 5]
        observed = np.bincount(np.asarray(found.states)[:, place, 0], minlength=7) / count
        assert 0.5 * np.abs(observed - exact).sum() < 3 / np.sqrt(count)
    assert found.states.dtype == jnp.int32
    assert int(found.halvings.sum()) == 0  # the bound of the window's ends holds for these rates


def test_short_windows_count_jumps_exactly_and_long_ones_are_halved_and_counted():
    """A pure birth process with a peak of the rate: a Poisson number of jumps, mean its integral.

    A window as long as the peak, without slack, is halved; redrawing then costs 2 % in the mean.
    """

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def run(keys, window, slack):
        rates = lambda k, t: 30 * jnp.exp(-8 * jnp.square(t - 0.5))[None, None]  # noqa: E731
        ts, jump = jnp.asarray([1.0, 0.0]), lambda k, d, e: k + 1
        options = {"jump": jump, "window": window, "slack": slack}
        k = jnp.zeros(1, jnp.int32)
        return jax.vmap(lambda key: ctmc.gillespie(key, k, rates, ts, **options))(keys)

    keys = jax.random.split(jax.random.key(0), 4000)
    mean = 30 * np.sqrt(np.pi / 8) * erf(np.sqrt(2))
    exact = run(keys, 0.1, 1.2)
    assert int(exact.halvings.sum()) == 0
    assert abs(float(exact.count.mean()) - mean) < 4 * np.sqrt(mean / 4000)
    rough = run(keys, 1.0, 1.0)
    assert int(rough.halvings.sum()) > 1000
    assert abs(float(rough.count.mean()) / mean - 1) < 0.04
    np.testing.assert_array_equal(rough.count, rough.states[:, -1, 0])


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="window"):
        ctmc.gillespie(
            jax.random.key(0), jnp.zeros(1, jnp.int32), lambda k, t: k, jnp.ones(2), window=0
        )
