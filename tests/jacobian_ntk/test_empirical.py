"""Kernels of finite networks: three forms, their mean over draws, and the rate in the width."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import empirical, network
from rflib.methods.jacobian_ntk.kernels import flatten, jacobian_nngp, jacobian_ntk
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.theory import power_law


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(3, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[2] *= 1.2
    return rows


def relative(one, other) -> float:
    return float(abs(one - other).max() / abs(other).max())


@pytest.mark.parametrize(
    "net",
    [
        Mlp(3, "erf", kappa=0.3),
        Mlp(3, "gelu", sigma_w=(1.0, 1.2, 0.8, 1.1), sigma_b=0.2, divide_by_d=True),
    ],
    ids=["plain", "odd"],
)
def test_three_forms_agree(float64, x, net):
    params = network.init(jax.random.key(0), net, 3, 32, outputs=2)
    columns = 0.7 * x[:2]

    outputs = (0, 1) if net.biased else (0, 0)
    forms = empirical.FORMS[: 2 if net.biased else 3]  # the operator form costs a compilation

    @jax.jit
    def all_forms(params, x, columns):
        return [
            empirical.empirical_jntk(net, params, x, columns, form=form, outputs=outputs)
            for form in forms
        ]

    layers, *others = all_forms(params, x, columns)
    for other in others:
        assert relative(other, layers) < 1e-9


def test_product_with_a_vector_is_that_of_the_matrix(float64, x):
    net = Mlp(2, "erf")
    v = np.random.default_rng(1).normal(size=(3, 4))

    @jax.jit
    def both(params, x, v):
        layers = empirical.empirical_jntk(net, params, x)
        return layers, empirical.empirical_matvec(net, params, x, v)

    same, product = both(network.init(jax.random.key(0), net, 3, 32), x, v)
    assert relative(product.ravel(), flatten(same) @ v.ravel()) < 1e-12


def test_values_of_the_layers_are_those_of_the_network(float64, x):
    net = Mlp(2, "gelu", kappa=0.5, sigma_b=0.3)
    params = network.init(jax.random.key(1), net, 3, 16)
    hidden = jax.jit(empirical.layer_jets, static_argnums=0)(net, params, x)[0][-1]
    expected = 0.5 * 16**-0.5 * (hidden @ params["last"][0])
    expected = expected.at[:, 0].add(0.5 * 0.3 * params["last_bias"][0])
    found = jax.jit(network.values, static_argnums=0)(net, params, x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def moments(net, x, draws, width=256):
    """Mean and standard error over draws of the finite NNGP and NTK blocks."""

    def one(key):
        params = network.init(key, net, 3, width)
        both = (empirical.empirical_jnngp, empirical.empirical_jntk)
        return jnp.stack([each(net, params, x) for each in both])

    @jax.jit
    def run(keys):
        return jax.lax.map(one, keys, batch_size=20)

    found = np.asarray(run(jax.random.split(jax.random.key(7), draws)))
    return found.mean(0), found.std(0, ddof=1) / draws**0.5


@pytest.mark.parametrize(("depth", "draws"), [(1, 2000), (2, 1200), (3, 800)])
def test_mean_over_networks_is_the_limit(x, depth, draws):
    net = Mlp(depth, "erf" if depth == 2 else "gelu", kappa=0.5)
    mean, error = moments(net, x.astype(np.float32), draws)
    with jax.enable_x64(True):
        limits = np.stack([jacobian_nngp(net, x), jacobian_ntk(net, x)])
    # At depth 1 the NNGP blocks are unbiased at any width; beyond, the bias is of order 1/n.
    bias = 3 * depth / 256 * np.abs(limits) if depth > 1 else 0
    assert (np.abs(mean - limits) <= np.maximum(4.5 * error, bias) + 1e-6).all()


def test_error_of_one_network_falls_like_the_square_root_of_the_width(x):
    net, widths, draws = Mlp(2, "erf"), (64, 256, 1024), 6
    with jax.enable_x64(True):
        limit = np.asarray(jacobian_ntk(net, x))

    @functools.partial(jax.jit, static_argnums=1)
    def kernels(keys, width):
        def one(key):
            return empirical.empirical_jntk(net, network.init(key, net, 3, width), x32)

        return jax.lax.map(one, keys)

    x32 = x.astype(np.float32)
    keys = jax.random.split(jax.random.key(3), draws)
    errors = [np.sqrt(np.mean((np.asarray(kernels(keys, n)) - limit) ** 2)) for n in widths]
    fit = power_law(np.array(widths, float), np.array(errors))
    assert 0.35 <= fit.exponent <= 0.65
    assert fit.width(fit.error(300.0)) == pytest.approx(300)


def test_product_rule_is_that_of_derivatives(float64):
    """Blocks of a product of scalar kernels, against JAX on that product."""

    def first(u, v):
        return jnp.sin(u[0] * v[1]) + u @ v

    def second(u, v):
        return jnp.exp(u[1] - v[0]) * (u @ v + 1)

    def block(kernel, u, v):
        left, right = jax.grad(kernel, 0)(u, v), jax.grad(kernel, 1)(u, v)
        mixed = jax.jacfwd(jax.grad(kernel, 0), 1)(u, v)
        top = jnp.concatenate([kernel(u, v)[None], right])[None]
        return jnp.concatenate([top, jnp.concatenate([left[:, None], mixed], 1)])[None, None]

    u, v = jnp.array([0.3, -0.4]), jnp.array([1.1, 0.2])
    both = jax.jit(lambda u, v: block(lambda u, v: first(u, v) * second(u, v), u, v))(u, v)
    rule = jax.jit(lambda u, v: empirical.leibniz(block(first, u, v), block(second, u, v)))
    found = rule(u, v)
    np.testing.assert_allclose(found, both, rtol=1e-12)


def test_an_unknown_form_is_refused(x):
    params = network.init(jax.random.key(0), Mlp(1), 3, 4)
    with pytest.raises(UserError, match="form='layer' is not one of 'layers'"):
        empirical.empirical_jntk(Mlp(1), params, x, form="layer")
