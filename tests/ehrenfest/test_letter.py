"""The letter-E law: its exact reversal, and the floors of the rate models at small S."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from rflib.diffusion.master_equation import grid_sub_steps, integrate_grid
from rflib.diffusion.metrics import total_variation
from rflib.methods.ehrenfest import data, ratio, reverse, theory, transition
from rflib.methods.ehrenfest.process import make_process

SIZE = 16
PROCESS = make_process(SIZE, "song")
LAW = data.letter_e(SIZE)
GRID = jnp.stack(jnp.meshgrid(*[jnp.arange(SIZE + 1)] * 2, indexing="ij"))  # [2, S + 1, S + 1]


def _moments(t):
    """p_t and the posterior means and second moments of both coordinates of x_0, on the grid."""
    kernel = jnp.exp(transition.log_pmf(SIZE, PROCESS.w(t)))
    p = kernel @ LAW @ kernel.T
    x = PROCESS.to_x(GRID)
    mean, second = (
        jnp.stack([kernel @ (x[d] ** power * LAW) @ kernel.T / p for d in (0, 1)])
        for power in (1, 2)
    )
    return p, mean, second


def _shifted(p, step):
    """p at x ± δ in each coordinate, 0 beyond the grid."""
    pad = jnp.pad(p, 1)
    n = SIZE + 1
    return jnp.stack([pad[1 + step : 1 + step + n, 1:-1], pad[1:-1, 1 + step : 1 + step + n]])


def _rates(model):
    def rates(t):
        p, mean, second = _moments(t)
        x, w, variance, delta = PROCESS.to_x(GRID), PROCESS.w(t), PROCESS.sig2(t), PROCESS.delta
        m1 = x - w * mean
        m2 = jnp.square(x) - 2 * w * x * mean + w**2 * second
        found = {
            "exact": lambda: ratio.Ratios(_shifted(p, 1) / p[None], _shifted(p, -1) / p[None]),
            "eps": lambda: ratio.score(-m1 / variance, delta),
            "taylor1": lambda: ratio.taylor1(x, w * mean, variance, delta),
            "taylor2": lambda: ratio.taylor2(m1, m2, variance, delta),
        }[model]()
        return reverse.assemble(found, GRID, SIZE, PROCESS.rate(t))

    return rates


@functools.lru_cache
def _floor(model):
    ts = jnp.asarray(np.geomspace(0.99, 0.01, 100))
    rates = jax.jit(lambda ts: jax.lax.map(lambda t: _rates(model)(t)[:2], ts))
    birth, death = rates(ts)
    steps = grid_sub_steps(np.asarray(birth), np.asarray(death), np.asarray(ts))
    one = binom.pmf(np.arange(SIZE + 1), SIZE, 0.5)
    start = jnp.asarray(np.outer(one, one))
    law = jax.jit(integrate_grid, static_argnums=4)(start, birth, death, ts, steps)
    assert float(law.leaked) < 1e-8 and abs(float(law.p.sum()) - 1) < 1e-8
    return total_variation(np.asarray(law.p), np.asarray(_moments(0.01)[0]))


def test_exact_rates_return_the_letter(float64):
    assert _floor("exact") < 5e-4


@pytest.mark.parametrize(
    ("model", "expected"), [("eps", 0.062), ("taylor2", 0.245), ("taylor1", 0.192)]
)
def test_perfectly_trained_models_keep_a_floor_at_small_size(model, expected, float64):
    """What no training removes at S = 16, where δ² is not small against σ²."""
    np.testing.assert_allclose(_floor(model), expected, atol=1e-3)


def test_tabulated_network_rates_are_those_of_every_state(float64):
    """`tabulate` of a network that looks the exact posterior mean up, against the direct table."""
    ts = jnp.asarray([0.5, 0.1])

    def network(x, t):
        _, mean, _ = _moments(t[0])
        k = PROCESS.to_k(x)
        clean = mean[:, k[:, 0], k[:, 1]].T
        w, variance = PROCESS.w(t[0]), PROCESS.sig2(t[0])
        return ((x - w * clean) / jnp.sqrt(variance))[..., None]

    rates = reverse.rate_function("eps", network, PROCESS)
    birth, death = jax.jit(lambda ts: theory.tabulate(rates, PROCESS, ts, 2))(ts)
    assert birth.shape == (2, 2, SIZE + 1, SIZE + 1)
    direct = jax.jit(_rates("eps"))(0.1)
    np.testing.assert_allclose(birth[1], direct.birth, atol=1e-9)
    np.testing.assert_allclose(death[1], direct.death, atol=1e-9)
