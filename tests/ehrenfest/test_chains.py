"""Any finite chain: laws, lemma, loss and reversal on six states, for four chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from rflib.core.errors import UserError
from rflib.diffusion.master_equation import integrate_generator, reverse_generator
from rflib.methods.ehrenfest import chains
from rflib.methods.ehrenfest.process import make_process

RNG = np.random.default_rng(0)


def _random_generator(size):
    rates = RNG.uniform(0.1, 1, (size, size)) * (RNG.uniform(size=(size, size)) < 0.7)
    rates *= 1 - np.eye(size)
    rates[np.arange(size), np.arange(size) - 1] += 0.3  # a cycle, so that all states connect
    return rates - np.diag(rates.sum(0))


CHAINS = {
    "ehrenfest": chains.ehrenfest(5),
    "uniform": chains.uniform(6),
    "absorbing": chains.absorbing(5),
    "general": chains.general(_random_generator(6)),
}
EACH = pytest.mark.parametrize("name", CHAINS)


def _data_law(chain):
    return np.random.default_rng(1).dirichlet(np.ones(chain.values))


@EACH
def test_law_is_the_exponential_of_the_generator(name, float64):
    chain = CHAINS[name]
    np.testing.assert_allclose(chain.generator.sum(0), 0, atol=1e-14)
    for tau in (0.05, 0.8):
        law = jnp.exp(chain.log_law(jnp.exp(-tau)))
        np.testing.assert_allclose(law, expm(chain.generator * tau), atol=1e-10)
    far = expm(chain.generator * 60.0)[:, 0]
    np.testing.assert_allclose(far, chain.initial, atol=1e-8)


@EACH
def test_regression_of_conditional_ratios_gives_the_marginal_ratios(name, float64):
    """The closed-form conditional mean over the exact joint law of (x, x_0)."""
    chain, w = CHAINS[name], jnp.exp(jnp.asarray(-0.6))
    p0 = _data_law(chain)
    law = np.exp(np.asarray(chain.log_law(w)))[:, : chain.values]
    joint = law * p0[None]
    x, x0 = (jnp.asarray(a.reshape(-1, 1)) for a in np.indices(joint.shape))
    target = np.asarray(chains.conditional_ratios(chain, x, x0, w))[:, 0]
    # Pairs that cannot occur have weight 0 and no ratio.
    weighted = np.where(joint.reshape(-1, 1) > 0, target, 0) * joint.reshape(-1, 1)
    mean = weighted.reshape(*joint.shape, -1).sum(1) / joint.sum(1)[:, None]
    exact = chains.marginal_ratios(chain, jnp.asarray(p0), w)
    np.testing.assert_allclose(mean, exact, atol=1e-10)
    # The same from a categorical posterior network that is right.
    states = jnp.arange(chain.states)[:, None]
    prior = jnp.broadcast_to(jnp.log(jnp.asarray(p0)), (chain.states, 1, chain.values))
    logits = jnp.log(jnp.asarray(law))[:, None] + prior
    by_posterior = chains.posterior_ratios(chain, logits, states, w)
    np.testing.assert_allclose(by_posterior[:, 0], exact, atol=1e-10)
    if name == "absorbing":
        # The posterior alone, without the impossible values masked by the caller.
        unmasked = chains.posterior_ratios(chain, prior, states, w)
        np.testing.assert_allclose(unmasked[-1, 0], exact[-1], atol=1e-10)
        assert np.count_nonzero(exact[:-1]) == 0  # only m has reverse jumps


@EACH
def test_loss_has_zero_gradient_at_the_marginal_ratios(name, float64):
    """Enumerated over (x, x_0) at one time; a table of K² outputs."""
    chain, w = CHAINS[name], jnp.exp(jnp.asarray(-0.6))
    p0 = _data_law(chain)
    joint = np.exp(np.asarray(chain.log_law(w)))[:, : chain.values] * p0[None]
    x, x0 = (jnp.asarray(a.reshape(-1, 1)) for a in np.indices(joint.shape))
    weights = jnp.asarray(joint.reshape(-1))
    target = chains.conditional_ratios(chain, x, x0, w)[:, 0]
    target = jnp.where((weights > 0)[:, None], target, 0)
    exact = chains.marginal_ratios(chain, jnp.asarray(p0), w)

    def loss(table):
        used = exact[x[:, 0]] > 0
        error = jnp.where(used, table[x[:, 0]] - target, 0)
        return jnp.sum(weights[:, None] * jnp.square(error))

    gradient = jax.jit(jax.grad(loss))
    assert np.abs(gradient(exact)).max() < 1e-8
    assert np.abs(gradient(exact + 0.1)).max() > 1e-4


@EACH
def test_reversed_rates_are_exact_and_return_the_data(name, float64):
    """Against p(y)/p(x) r(x|y) as matrices, and by the master equation from τ = 4 to 1e-3."""
    chain = CHAINS[name]
    p0 = np.zeros(chain.states)
    p0[: chain.values] = _data_law(chain)
    states = jnp.arange(chain.states)

    @jax.jit
    def table(tau):
        w = jnp.exp(-tau)
        ratios = chains.marginal_ratios(chain, jnp.asarray(p0[: chain.values]), w)
        return chains.reverse_rates(chain, ratios, states, 1.0).T  # [y, x]

    def generator(tau):
        rates = np.asarray(table(tau))
        return rates - np.diag(rates.sum(0))

    p = expm(chain.generator * 0.7) @ p0
    np.testing.assert_allclose(generator(0.7), reverse_generator(chain.generator, p), atol=1e-9)
    start = expm(chain.generator * 4.0) @ p0
    law = integrate_generator(generator, start, 4.0, 1e-3, rtol=1e-10)
    np.testing.assert_allclose(law, expm(chain.generator * 1e-3) @ p0, atol=1e-6)


@EACH
def test_trained_loss_value_and_noise_follow_the_exact_law(name):
    """The Monte-Carlo loss of the exact ratios, and the draws of x_t behind it."""
    chain = CHAINS[name]
    process = make_process(5, "constant", t_min=0.5, t_max=0.5001)
    p0 = _data_law(chain)
    x0 = jnp.asarray(np.random.default_rng(2).choice(chain.values, (4000, 5), p=p0), jnp.int32)
    w = process.w(jnp.asarray(0.5))
    exact = chains.marginal_ratios(chain, jnp.asarray(p0, jnp.float32), w)

    @jax.jit
    def run(key):
        apply = lambda p, x, t: exact[x] + p  # noqa: E731
        best, _ = chains.ratio_loss(apply, 0.0, key, x0, chain, process)
        worse, each = chains.ratio_loss(apply, 0.2, key, x0, chain, process)
        return best, worse, each, chains.noise(key, chain, x0, w)

    best, worse, each, x = run(jax.random.key(0))
    assert worse > best and each.shape == (4000,)
    observed = np.bincount(np.asarray(x).ravel(), minlength=chain.states) / x.size
    law = np.exp(np.asarray(chain.log_law(w)))[:, : chain.values] @ p0
    assert 0.5 * np.abs(observed - law).sum() < 0.015


@EACH
def test_euler_jumps_with_a_posterior_network_draw_the_data(name):
    chain = CHAINS[name]
    process = make_process(5, "constant", t_min=0.01, t_max=4.0)
    p0 = _data_law(chain)
    prior = jnp.log(jnp.asarray(p0, jnp.float32))

    @jax.jit
    def run(key):
        def network(x, t):
            law = chain.log_law(process.w(t)[0])[:, : chain.values]
            return law[x] + prior.reshape(1, 1, -1)

        rates = chains.rate_function(chain, process, network, "posterior")
        start = chains.draw_initial(key, chain, (8_000, 1))
        ts = jnp.asarray(np.geomspace(4.0, 0.01, 61), jnp.float32)
        return chains.sample(key, start, rates, ts)

    x = np.asarray(run(jax.random.key(0)))
    p = expm(chain.generator * 0.01)[:, : chain.values] @ p0
    observed = np.bincount(x.ravel(), minlength=chain.states) / x.size
    assert 0.5 * np.abs(observed - p).sum() < 0.04


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="columns"):
        chains.general(np.eye(3))
    with pytest.raises(UserError, match="rates >= 0"):
        chains.general(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    with pytest.raises(UserError, match="head"):
        chains.rate_function(CHAINS["uniform"], make_process(5), lambda x, t: x, "logits")
