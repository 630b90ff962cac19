"""The network itself: its formula, its Jacobian, its sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import network
from rflib.methods.jacobian_ntk.network import Mlp


def test_network_is_the_written_formula(float64):
    net = Mlp(
        2, "erf", kappa=0.1, sigma_w=(1.5, 0.7, 1.1), sigma_b=(0.3, 0.2, 0.1), divide_by_d=True
    )
    params = network.init(jax.random.key(0), net, 3, 8, outputs=2)
    x = np.array([0.2, -0.5, 0.9])
    c = (2 / np.pi * np.arcsin(2 / 3)) ** -0.5

    def phi(g):
        return c * np.asarray(jax.lax.erf(jnp.asarray(g)))

    w = {name: np.asarray(each) for name, each in params.items()}
    g = 1.5 * 3**-0.5 * w["first"] @ x + 0.3 * w["first_bias"]
    g = 0.7 * 8**-0.5 * w["hidden"][0] @ phi(g) + 0.2 * w["hidden_bias"][0]
    f = 0.1 * (1.1 * 8**-0.5 * w["last"] @ phi(g) + 0.1 * w["last_bias"])
    np.testing.assert_allclose(network.apply(net, params, x), f, rtol=1e-12)


def test_jacobian_is_that_of_central_differences(float64):
    net = Mlp(3, "gelu")
    params = network.init(jax.random.key(0), net, 3, 8, outputs=2)
    x = np.random.default_rng(0).normal(size=(4, 3))
    every = jax.jit(network.all_values, static_argnums=0)(net, params, x)
    assert every.shape == (4, 4, 2)
    np.testing.assert_allclose(
        every[..., 0], jax.jit(network.values, static_argnums=0)(net, params, x), rtol=1e-12
    )
    call = jax.jit(jax.vmap(lambda row: network.apply(net, params, row)))
    for alpha, way in enumerate(1e-5 * np.eye(3)):
        slope = (call(x + way) - call(x - way)) / 2e-5
        np.testing.assert_allclose(every[:, 1 + alpha], slope, atol=1e-8)


def test_sizes_precision_and_movement():
    params = network.init(jax.random.key(0), Mlp(3), 5, 7)
    assert trees.size(params) == 7 * 5 + 2 * 7 * 7 + 7
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert set(network.init(jax.random.key(0), Mlp(1, sigma_b=0.1), 5, 7)) == {
        *("first", "hidden", "last", "first_bias", "hidden_bias", "last_bias")
    }
    moved = jax.tree.map(lambda leaf: 1.1 * leaf, params)
    assert network.movement(moved, params) == pytest.approx(0.1, rel=1e-5)


def test_mistakes_are_explained():
    with pytest.raises(UserError, match=r"kappa=0 must lie in \(0"):
        network.init(jax.random.key(0), Mlp(1, kappa=0), 2, 3)
    with pytest.raises(UserError, match="width=0 must be"):
        network.init(jax.random.key(0), Mlp(1), 2, 0)
    with pytest.raises(UserError, match="'gelo' is not one of"):
        network.init(jax.random.key(0), Mlp(1, "gelo"), 2, 3)
