"""Baselines: the continuous-time bound by enumeration, D3PM tables and posteriors, rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from rflib.core.errors import UserError
from rflib.diffusion import samplers
from rflib.methods.ehrenfest import baselines, chains
from rflib.methods.ehrenfest.baselines import d3pm_loss
from rflib.methods.ehrenfest.data import Embedding
from rflib.methods.ehrenfest.process import make_process

SIZE = 4
P0 = np.random.default_rng(0).dirichlet(np.ones(SIZE + 1))
# One time, so that expectations over x are enough: λ = 1, w = exp(-.6).
PROCESS = make_process(SIZE, "constant", t_min=0.6, t_max=0.6001)
CHAINS = {"ehrenfest": chains.ehrenfest(SIZE), "uniform": chains.uniform(SIZE + 1)}


def _exact_logits(chain):
    """log p(x, x_0) at w = exp(-.6) as [x, x_0]."""
    return np.log(expm(0.6 * chain.generator) * P0[None])


def _enumerated(chain, logits):
    """E[Σ r̄(y|x) - Z(x) log r̄(x|x̃)] over x and one jump, term by term; D = 1."""
    w = jnp.exp(jnp.asarray(-0.6))
    states = jnp.arange(SIZE + 1)[:, None]
    ratios = chains.posterior_ratios(chain, logits[:, None], states, w)[:, 0]
    rates = chains.reverse_rates(chain, ratios, states[:, 0], 1.0)  # [x, y]
    p = np.exp(_exact_logits(chain)).sum(1)
    jumps = chain.generator * (1 - np.eye(SIZE + 1))  # [y, x]
    reached = jnp.where(jumps > 0, jnp.log(jnp.where(jumps > 0, rates, 1)), 0)  # log r̄(x|y)
    return jnp.sum(p * rates.sum(1)) - jnp.sum(p[None] * jumps * reached)


@pytest.mark.parametrize("name", CHAINS)
def test_bound_has_zero_gradient_at_the_exact_reversal(name, float64):
    chain = CHAINS[name]
    gradient = jax.jit(jax.grad(lambda logits: _enumerated(chain, logits)))
    exact = jnp.asarray(_exact_logits(chain))
    assert np.abs(gradient(exact)).max() < 1e-8
    assert np.abs(gradient(exact + jnp.eye(SIZE + 1))).max() > 1e-3


@functools.lru_cache
def _monte_carlo(name, one_pass, count=8_000):
    chain = CHAINS[name]
    x0 = jnp.asarray(np.random.default_rng(1).choice(SIZE + 1, (count, 1), p=P0), jnp.int32)
    logits = jnp.asarray(_exact_logits(chain) + 0.5 * np.eye(SIZE + 1), jnp.float32)

    @jax.jit
    def run(key):
        apply = lambda p, x, t: logits[x]  # noqa: E731
        keys = jax.random.split(key, 8)
        options = {"ce_weight": 0.0, "one_pass": one_pass}

        def part(given):
            key, x0 = given
            return baselines.bound_loss(apply, {}, key, x0, chain, PROCESS, **options)[0]

        return jax.lax.map(part, (keys, x0.reshape(8, -1, 1)))

    # Back from the mean over the short interval of times to the value at one time.
    each = np.asarray(run(jax.random.key(0))) / (PROCESS.t_max - PROCESS.t_min)
    return each.mean(), each.std() / np.sqrt(8), float(_enumerated(chain, logits))


@pytest.mark.parametrize("name", CHAINS)
def test_estimate_of_the_bound_is_unbiased_with_two_passes(name):
    mean, error, exact = _monte_carlo(name, False)
    assert abs(mean - exact) < 4 * error + 1e-3


def test_one_pass_is_biased_in_one_dimension():
    mean, error, exact = _monte_carlo("uniform", True)
    assert abs(mean - exact) > 10 * error


def test_jumps_choose_coordinates_by_rate_and_neighbours_by_rate():
    chain = CHAINS["ehrenfest"]
    x = jnp.broadcast_to(jnp.asarray([[0, 3]]), (40_000, 2))
    place, value = jax.jit(lambda key: baselines.draw_jump(key, chain, x))(jax.random.key(0))
    place, value = np.asarray(place), np.asarray(value)
    assert abs(place.mean() - 0.5) < 0.02  # the total rate is S/2 in every state
    assert set(value[place == 0].tolist()) == {1}
    up = (value[place == 1] == 4).mean()
    assert abs(up - 0.25) < 0.02 and set(value[place == 1].tolist()) == {2, 4}


def test_d3pm_transitions_are_stochastic_symmetric_and_end_uniform():
    tables = baselines.d3pm_gauss(17)
    assert tables.step.shape == (200, 17, 17) and tables.total.shape == (201, 17, 17)
    for table in tables:
        np.testing.assert_allclose(table.sum(2), 1, atol=1e-12)
        assert table.min() >= 0
    np.testing.assert_allclose(tables.step, np.swapaxes(tables.step, 1, 2), atol=1e-15)
    flat = [0.5 * np.abs(tables.total[t] - 1 / 17).sum(1).max() for t in (100, 200)]
    np.testing.assert_allclose(flat, [0.13, 0.002], atol=0.006)


def test_d3pm_reverse_step_is_bayes_rule_for_known_data():
    tables = baselines.d3pm_gauss(5, steps=6, first=0.05, last=0.4)
    t, xt = 4, jnp.arange(5)[:, None]
    step = jax.jit(lambda logits: baselines.d3pm_reverse(tables, logits, xt, jnp.asarray(t)))
    for x0 in range(5):
        sure = jnp.where(jnp.arange(5) == x0, 0.0, -jnp.inf)
        found = step(jnp.broadcast_to(sure, (5, 1, 5)))
        joint = tables.total[t - 1][x0][:, None] * tables.step[t - 1]  # [x_{t-1}, x_t]
        np.testing.assert_allclose(np.exp(found[:, 0]), (joint / joint.sum(0)).T, atol=1e-5)


def test_d3pm_loss_is_least_at_the_exact_reversal_and_sampling_returns_the_data():
    tables = baselines.d3pm_gauss(5, steps=40, first=0.05, last=0.6)
    prior = jnp.log(jnp.asarray(P0, jnp.float32))

    def network(x, t):
        """The optimum for one coordinate: the law of x_0 without the likelihood of x_t."""
        return jnp.broadcast_to(prior.reshape(1, 1, -1), (*x.shape, 5))

    x0 = jnp.asarray(np.random.default_rng(1).choice(5, (4000, 5), p=P0), jnp.int32)

    @jax.jit
    def run(key):
        drawn = baselines.d3pm_sample(key, network, tables, (4000, 5))
        values = [
            d3pm_loss(lambda p, x, t: p * network(x, t), p, key, x0, tables, ce_weight=0.0)[0]
            for p in (1.0, 0.7, 1.4)
        ]
        return drawn, values

    drawn, values = run(jax.random.key(0))
    observed = np.bincount(np.asarray(drawn).ravel(), minlength=5) / drawn.size
    assert 0.5 * np.abs(observed - P0).sum() < 0.03
    assert values[0] < values[1] and values[0] < values[2]


def test_rounded_ddpm_returns_integer_data():
    """The exact noise of data that are two lattice points."""
    embedding = Embedding("small", 17)
    process = make_process(embedding.size, "song")
    points = process.to_x(jnp.asarray([3, 12]))

    def eps(x, t):
        w, variance = (f(t)[:, None] for f in (process.w, process.sig2))
        gaps = (x[..., None] - w[..., None] * points.reshape(1, 1, 2)) / jnp.sqrt(variance)[
            ..., None
        ]
        weights = jax.nn.softmax(-jnp.square(gaps) / 2, -1)
        return jnp.sum(weights * gaps, -1)

    @jax.jit
    def run(key):
        x = baselines.ddpm_sample(key, eps, process, (2000, 1), process.times(100))
        flow = baselines.ddpm_sample(
            key, eps, process, (2000, 1), process.times(20), samplers.ddim()
        )
        return embedding.decode_x(x, process), embedding.decode_x(flow, process)

    for values in map(np.asarray, run(jax.random.key(0))):
        assert set(values.ravel().tolist()) <= {3, 12}
        assert abs((values == 3).mean() - 0.5) < 0.06


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="states=1"):
        baselines.d3pm_gauss(1)
