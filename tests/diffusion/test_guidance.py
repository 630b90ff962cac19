"""Guidance is one operation in all parametrisations; wrappers against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.diffusion import guidance
from rflib.diffusion.param import KINDS, convert
from rflib.diffusion.schedule import vp_linear


def _pair():
    return (jax.random.normal(jax.random.key(i), (4, 3)) for i in (0, 1))


@pytest.mark.parametrize("space", KINDS)
def test_guidance_is_the_same_in_every_space(space):
    cond, free = _pair()
    xt = jax.random.normal(jax.random.key(2), (4, 3))
    a, s = jnp.asarray(0.8), jnp.asarray(0.6)
    there = [convert("eps", space, e, xt, a, s) for e in (cond, free)]
    back = convert(space, "eps", guidance.cfg(*there, 3.0), xt, a, s)
    np.testing.assert_allclose(back, guidance.cfg(cond, free, 3.0), atol=1e-5)


def test_guidance_scales_zero_and_one_are_the_two_predictions():
    cond, free = _pair()
    np.testing.assert_array_equal(guidance.cfg(cond, free, 0.0), free)
    np.testing.assert_allclose(guidance.cfg(cond, free, 1.0), cond, rtol=1e-5)


def test_one_call_on_a_doubled_batch_equals_two_calls():
    model = lambda x, t, c: x * t[:, None] + c  # noqa: E731
    x, c = _pair()
    t = jnp.arange(4.0)
    null = jnp.zeros_like(c)
    one = guidance.doubled(model, c, null, 2.5)(x, t)
    two = guidance.guided(lambda x, t: model(x, t, c), lambda x, t: model(x, t, null), 2.5)(x, t)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_composition_is_the_weighted_mean_whatever_the_scale_of_the_weights():
    functions = [lambda x, t: x, lambda x, t: 3 * x, lambda x, t: 0 * x]
    x, t = jnp.ones((2, 2)), jnp.zeros(2)
    np.testing.assert_allclose(guidance.compose(functions, [1, 1, 2])(x, t), x, rtol=1e-6)
    np.testing.assert_allclose(guidance.compose(functions, [3, 3, 6])(x, t), x, rtol=1e-6)
    np.testing.assert_allclose(guidance.compose(functions[:2], [2, -1])(x, t), -x, rtol=1e-6)
    with pytest.raises(UserError, match="weights"):
        guidance.compose(functions, [1, -1, 0])


def test_classifier_guidance_turns_a_prior_into_the_posterior_denoiser():
    """x_0 ~ N(0, 1) and y = x_0 + noise: the guided mean is E[x_0 | x_t, y]."""
    schedule, tau, y = vp_linear(), 0.5, 1.3
    t = jnp.asarray([0.3, 0.6])
    a, s = schedule.alpha(t)[:, None], schedule.sigma(t)[:, None]

    def log_prob(x, t):
        # x_0 | x_t ~ N(a x, s²), hence y | x_t ~ N(a x, s² + tau²).
        return jnp.sum(-((y - a * x) ** 2) / (2 * (s**2 + tau**2)), 1)

    prior = lambda x, t: a * x  # noqa: E731
    x = jnp.asarray([[0.2], [-0.7]])
    steered = guidance.classifier_guidance(prior, log_prob, schedule, 1.0)(x, t)
    exact = a * x + s**2 / (s**2 + tau**2) * (y - a * x)
    np.testing.assert_allclose(steered, exact, rtol=1e-5)


def test_threshold_bounds_outliers_and_leaves_the_rest():
    x0 = jnp.concatenate([jnp.linspace(-0.9, 0.9, 99), jnp.asarray([50.0])])[None]
    np.testing.assert_allclose(guidance.dynamic_threshold(x0, 0.9)[0, :99], x0[0, :99])
    assert float(guidance.dynamic_threshold(x0, 0.9)[0, 99]) == 1
    assert float(jnp.max(guidance.dynamic_threshold(4 * x0, 1.0))) == 1


def test_rescaling_restores_the_contrast_of_the_conditional_prediction():
    cond, free = _pair()
    strong = guidance.cfg(cond, free, 7.5)
    found = guidance.rescale(strong, cond, 1.0)
    np.testing.assert_allclose(jnp.std(found, 1), jnp.std(cond, 1), rtol=1e-5)
    np.testing.assert_array_equal(guidance.rescale(strong, cond, 0.0), strong)
