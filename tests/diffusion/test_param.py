"""Parametrisations convert into one another, and the preconditioned denoiser is the identity."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.diffusion.param import KINDS, convert, noised, precondition_edm, to_x0


def _levels(dtype):
    logsnr = jnp.linspace(-8, 8, 17, dtype=dtype)
    return jnp.sqrt(jax.nn.sigmoid(logsnr)), jnp.sqrt(jax.nn.sigmoid(-logsnr))


def _round_trips(dtype, kinds):
    alpha, sigma = _levels(dtype)
    x0 = jax.random.normal(jax.random.key(0), (17, 5), dtype)
    eps = jax.random.normal(jax.random.key(1), (17, 5), dtype)
    xt = noised(x0, eps, alpha, sigma)
    worst = 0.0
    for one, other in itertools.product(kinds, kinds):
        start = convert(
            "eps" if one != "x0" else "x0", one, eps if one != "x0" else x0, xt, alpha, sigma
        )
        there = convert(one, other, start, xt, alpha, sigma)
        back = convert(other, one, there, xt, alpha, sigma)
        scale = np.maximum(np.abs(start), 1)
        worst = max(worst, float(np.max(np.abs(back - start) / scale)))
    return worst


def test_round_trips_are_exact_in_double_precision(float64):
    assert _round_trips(jnp.float64, KINDS) < 1e-12


def test_round_trips_lose_a_division_in_single_precision():
    """3e-5 where α or σ divides; 2e-6 through v, which divides by neither."""
    assert _round_trips(jnp.float32, KINDS) < 3e-5
    alpha, sigma = _levels(jnp.float32)
    x0, eps = (jax.random.normal(jax.random.key(i), (17, 5)) for i in (0, 1))
    xt = noised(x0, eps, alpha, sigma)
    v = alpha[:, None] * eps - sigma[:, None] * x0
    np.testing.assert_allclose(convert("v", "x0", v, xt, alpha, sigma), x0, atol=2e-6)
    np.testing.assert_allclose(convert("v", "eps", v, xt, alpha, sigma), eps, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_recovers_the_clean_image(kind, float64):
    alpha, sigma = _levels(jnp.float64)
    x0, eps = (jax.random.normal(jax.random.key(i), (17, 5), jnp.float64) for i in (0, 1))
    a, s = alpha[:, None], sigma[:, None]
    out = {"x0": x0, "eps": eps, "v": a * eps - s * x0, "score": -eps / s, "flow": eps - x0}[kind]
    found = to_x0(kind, out, noised(x0, eps, alpha, sigma), alpha, sigma)
    np.testing.assert_allclose(found, x0, atol=1e-11)


def test_vanishing_signal_gives_a_finite_clean_image():
    x = jnp.ones((2, 3))
    assert np.all(np.isfinite(to_x0("eps", x * 0.5, x, jnp.zeros(()), jnp.ones(()))))


def test_preconditioned_denoiser_of_gaussian_data_needs_no_network():
    """For N(0, s²) data the optimal denoiser is c_skip x: a network that returns 0 is optimal."""
    denoise = precondition_edm(lambda x, noise: jnp.zeros_like(x), 0.7)
    x, sigma = jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), jnp.asarray([0.2, 5.0])
    optimal = x * (0.49 / (0.49 + np.square(sigma)))[:, None]
    np.testing.assert_allclose(denoise(x, sigma), optimal, rtol=1e-6)
    inputs = []
    denoise = precondition_edm(lambda x, noise: inputs.append((x, noise)) or x, 0.7)
    denoise(x, sigma)
    np.testing.assert_allclose(
        inputs[0][0], x / np.sqrt(0.49 + np.square(sigma))[:, None], rtol=1e-6
    )
    np.testing.assert_allclose(inputs[0][1], np.log(sigma) / 4, rtol=1e-6)


def test_unknown_kind_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"epsilon.*eps"):
        to_x0("epsilon", jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.ones(()), jnp.ones(()))
