"""Gaussian expectations of activations against quadrature, differentiation and printed values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import duals

POINTS = [(1.0, 1.0, 0.3), (1.0, 1.0, -0.8), (0.5, 2.0, 0.4), (3.0, 0.2, 0.1)]
SMOOTH = [name for name, each in duals.ACTIVATIONS.items() if each.smooth]
PRINTED = {
    "erf": (0.128188433698, -0.358121695950, 0.162822829086, 0.040699864407),
    "gelu": (0.162677219806, -0.060777908071, 0.188473333939, 0.069419141643),
}


dual = jax.jit(duals.dual, static_argnums=0)


def points() -> list[jax.Array]:
    return [jnp.asarray(each) for each in zip(*POINTS, strict=True)]


def quadrature(first, second, nodes=80, points=POINTS) -> np.ndarray:
    """E[first(u) second(v)] at POINTS by a product rule of its own, in NumPy."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    found, first, second = [], jax.jit(first), jax.jit(second)
    for a, b, s in points:
        u = np.sqrt(a) * z
        v = s / np.sqrt(a) * z[:, None] + np.sqrt(b - s * s / a) * z[None]
        found.append(
            w
            @ (np.asarray(first(jnp.asarray(u)))[:, None] * np.asarray(second(jnp.asarray(v))))
            @ w
        )
    return np.array(found)


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_duals_are_the_printed_values_and_those_of_quadrature(float64, name):
    phi = duals.ACTIVATIONS[name].phi
    k = dual(name, *points()).k
    np.testing.assert_allclose(k, PRINTED[name], atol=6e-13, rtol=0)
    # Quadrature of erf at variance 3 is good to 1e-9 only; the printed value pins it.
    np.testing.assert_allclose(k, quadrature(phi, phi, 160), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_derivatives_in_the_covariance_are_expectations_of_derivatives(float64, name):
    phi = duals.ACTIVATIONS[name].phi
    found = dual(name, *points())
    _, first, second = (
        jax.jit(lambda x, order=order: duals.derivatives(phi, x, order)[order])
        for order in range(3)
    )
    np.testing.assert_allclose(found.s, quadrature(first, first, 160), atol=1e-9, rtol=0)
    np.testing.assert_allclose(found.ss, quadrature(second, second, 160), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", list(duals.ACTIVATIONS))
def test_all_derivatives_are_those_of_k_and_second_ones_in_the_variances_follow(float64, name):
    """Each field is a derivative of the one below it, by JAX: one order at a time."""
    every = jnp.stack(points(), 1)
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda point: duals.dual(name, *point))))(every)
    found = dual(name, *points())
    for mine, other in (
        (found.a, slopes.k[:, 0]),
        (found.b, slopes.k[:, 1]),
        (found.s, slopes.k[:, 2]),
        (found.as_, slopes.a[:, 2]),
        (found.as_, slopes.s[:, 0]),
        (found.bs, slopes.b[:, 2]),
        (found.ss, slopes.s[:, 2]),
        (found.ss / 4, slopes.a[:, 1]),
        (found.ass, slopes.as_[:, 2]),
        (found.bss, slopes.bs[:, 2]),
        (found.sss, slopes.ss[:, 2]),
        (found.sss / 4, slopes.as_[:, 1]),
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", SMOOTH)
def test_quadrature_of_any_smooth_function_gives_all_ten(float64, name):
    act = duals.ACTIVATIONS[name]
    inside = [each[:3] for each in points()]  # the fourth point is beyond 64 nodes for erf
    exact = dual(name, *inside)
    found = jax.jit(duals.from_function(act.phi).dual)(*inside)
    for mine, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-9)


def test_quadrature_of_a_polynomial_is_exact_and_regular_at_equal_and_zero_inputs(float64):
    def cubic(x):
        return x**3 - 3 * x  # the third Hermite polynomial: E = 6 s³ at unit variances

    act = duals.from_function(cubic, n_quad=8)
    one = jnp.ones(3)
    s = jnp.array([1.0, 0.5, -1.0])
    np.testing.assert_allclose(jax.jit(lambda s: act.dual(one, one, s).k)(s), 6 * s**3, atol=1e-9)
    np.testing.assert_allclose(duals.second_moment(act), 6, atol=1e-9)
    assert duals.from_function(cubic, n_quad=8) is act
    zero = jnp.zeros(1)
    for each in jax.jit(duals.from_function(jnp.tanh, n_quad=8).dual)(zero, zero, zero):
        assert np.isfinite(each).all()


def test_normalisers_are_the_known_second_moments_and_python_floats():
    for name, moment in (("erf", 2 / np.pi * np.arcsin(2 / 3)), ("relu", 0.5), ("identity", 1.0)):
        assert duals.second_moment(duals.ACTIVATIONS[name]) == pytest.approx(moment, abs=1e-15)
    assert duals.second_moment(duals.ACTIVATIONS["gelu"]) == pytest.approx(
        0.42522148257029874, abs=1e-15
    )
    assert type(duals.normaliser("gelu")) is float


def test_gelu_is_the_exact_one_and_not_the_usual_approximation(float64):
    x = jnp.linspace(-4, 4, 81)
    np.testing.assert_allclose(
        duals.resolve("gelu").phi(x), x * jax.scipy.stats.norm.cdf(x), atol=1e-14
    )

    def usual(x):
        return jax.nn.gelu(x, approximate=True)

    wide = [(9.0, 9.0, 9.0), (4.0, 4.0, -3.2)]
    exact = dual("gelu", *(jnp.asarray(each) for each in zip(*wide, strict=True))).k
    assert abs(quadrature(usual, usual, 200, wide) - exact).max() > 1e-4


def test_single_precision_stays_single():
    for name in ("erf", "gelu"):
        for each in dual(name, jnp.float32(1), jnp.float32(1), jnp.float32(0.5)):
            assert each.dtype == jnp.float32


def test_mistakes_are_explained():
    with pytest.raises(UserError, match=r"'glu' is not one of 'erf'.*did you mean 'gelu'"):
        duals.dual("glu", 1.0, 1.0, 0.0)
    with pytest.raises(UserError, match="use activation='relu'"):
        duals.from_function(jax.nn.relu)
