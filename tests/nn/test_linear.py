"""The affine map, its initial values, and GELU."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kstest, norm

from rflib.nn.linear import Linear, gelu


def test_linear_starts_as_uniform_within_one_over_root_fan_in_bias_included():
    params = Linear(16, 4096).init(jax.random.key(0), jnp.zeros((1, 16)))["params"]
    for leaf in (params["weight"], params["bias"]):
        values = np.asarray(leaf).ravel()
        assert kstest(values, "uniform", (-0.25, 0.5)).pvalue > 1e-3
        assert np.abs(values).max() <= 0.25
    assert params["weight"].shape == (4096, 16)


def test_linear_is_x_times_the_transposed_weight_plus_bias():
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4)), rng.normal(size=5)
    params = {"weight": jnp.asarray(weight, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    result = Linear(4, 5).apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(result, x @ weight.T + bias, rtol=1e-5, atol=1e-5)


def test_gelu_is_the_error_function_version():
    assert abs(float(gelu(jnp.float32(1.0))) - 0.8413447) < 1e-7  # tanh would give 0.841192
    x = np.linspace(-6, 6, 241)
    np.testing.assert_allclose(gelu(jnp.asarray(x, jnp.float32)), x * norm.cdf(x), atol=1e-6)
