"""The evidence bound: an equality for the exact reversal, and unbiased estimates of it."""

import jax
import jax.numpy as jnp
import numpy as np

from rflib.diffusion.ctmc import Rates
from rflib.diffusion.metrics import kl_divergence
from rflib.methods.ehrenfest import elbo, ratio, reverse, theory, transition
from rflib.methods.ehrenfest.process import make_process

SIZE = 4
PROCESS = make_process(SIZE, "constant", t_min=0.01, t_max=1.5)
P0 = np.random.default_rng(0).dirichlet(np.ones(SIZE + 1))
ENTROPY = -(P0 * np.log(P0)).sum()


def _rates(p0, factor=1.0):
    def rates(k, t):
        law = transition.log_pmf(SIZE, PROCESS.w(t)) + jnp.log(jnp.asarray(p0))[None]
        found = ratio.marginal(jax.nn.logsumexp(law, 1), k)
        exact = reverse.assemble(found, k, SIZE, PROCESS.rate(t))
        return Rates(factor * exact.birth, exact.death / factor)

    return rates


def _bound(p0, log_reference, factor=1.0):
    joint = transition.log_pmf(SIZE, PROCESS.w(0.01)) + jnp.log(jnp.asarray(p0))[None]
    posterior = jax.nn.log_softmax(joint, 1)
    run = jax.jit(lambda p, r: elbo.exact_bound(_rates(p0, factor), PROCESS, p, r))
    return run(posterior, log_reference)


def test_bound_of_the_exact_reversal_is_the_entropy_of_the_data(float64):
    reference = jnp.log(jnp.asarray(theory.marginal(P0, np.exp(-1.5))))
    bound = _bound(P0, reference)
    np.testing.assert_allclose(P0 @ bound.total, ENTROPY, atol=1e-8)
    for term in bound:
        assert np.all(np.asarray(term) >= -1e-12)


def test_another_reference_law_costs_its_divergence_from_the_marginal(float64):
    stationary = transition.stationary_log_pmf(SIZE)
    bound = _bound(P0, jnp.asarray(stationary))
    extra = kl_divergence(theory.marginal(P0, np.exp(-1.5)), np.exp(stationary))
    np.testing.assert_allclose(P0 @ bound.total, ENTROPY + extra, atol=1e-8)


def test_wrong_rates_loosen_the_bound(float64):
    reference = jnp.log(jnp.asarray(theory.marginal(P0, np.exp(-1.5))))
    assert P0 @ _bound(P0, reference, 1.3).total > ENTROPY + 0.05


def test_estimate_of_the_path_bound_agrees_with_the_enumeration():
    """Two independent coordinates: twice the exact bound for one, within 4 standard errors."""
    stationary = jnp.asarray(transition.stationary_log_pmf(SIZE), jnp.float32)
    with jax.enable_x64(True):
        exact = _bound(P0, jnp.asarray(transition.stationary_log_pmf(SIZE)))
        exact = [np.asarray(term) for term in exact]
    draws = np.random.default_rng(1).choice(SIZE + 1, (4000, 2), p=P0)
    k0 = jnp.asarray(draws, jnp.int32)
    marginals = jnp.broadcast_to(jnp.log(jnp.asarray(P0, jnp.float32)), (2, SIZE + 1))
    run = jax.jit(lambda key: elbo.path_bound(key, _rates(P0), k0, PROCESS, marginals, floor=0.0))
    found = run(jax.random.key(0))
    for name, term, column in zip(found._fields, found, exact, strict=True):
        expected = column[draws].sum(1)
        gap = np.asarray(term) - expected
        assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap)) + 1e-4, name
    assert stationary.shape == (SIZE + 1,)


def test_rates_clipped_to_zero_have_an_infinite_bound_unless_floored():
    k0 = jnp.asarray([[1], [3]], jnp.int32)
    marginals = jnp.zeros((1, SIZE + 1))
    nothing = lambda k, t: Rates(jnp.zeros(k.shape), jnp.zeros(k.shape))  # noqa: E731

    def run(floor):
        call = jax.jit(
            lambda key: (
                elbo.path_bound(key, nothing, k0, PROCESS, marginals, floor=floor, times=4).total
            )
        )
        return np.asarray(call(jax.random.key(0)))

    assert np.all(np.isinf(run(0.0))) and np.all(np.isfinite(run(1e-6)))


def test_bits_divide_nats_by_the_number_of_dimensions():
    np.testing.assert_allclose(elbo.bits_per_dimension(jnp.asarray(64 * np.log(2.0)), 64), 1)
