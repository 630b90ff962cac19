"""Normalisation layers against explicit numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.nn import variables
from rflib.nn.norm import BatchNorm, LayerNorm


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(3.0, 2.0, (6, 3, 5)).astype(np.float32)


def prepared(module: BatchNorm, rows: np.ndarray) -> dict:
    start = variables.init(module, jax.random.key(0), rows.shape)
    start["params"] = {"scale": jnp.array([1.0, 2.0, 0.5]), "bias": jnp.array([0.0, -1.0, 3.0])}
    return start


def test_batch_norm_of_axis_1_uses_one_mean_and_biased_variance_a_channel(rows):
    module = BatchNorm(3, axis=1)
    start = prepared(module, rows)
    result, _ = variables.apply(module, start, jnp.asarray(rows), train=True)
    for n, (scale, bias) in enumerate([(1.0, 0.0), (2.0, -1.0), (0.5, 3.0)]):
        part = rows[:, n].astype(np.float64)
        expected = scale * (part - part.mean()) / np.sqrt(part.var() + 1e-5) + bias
        np.testing.assert_allclose(result[:, n], expected, atol=2e-6)


def test_running_averages_take_a_tenth_of_the_batch_with_unbiased_variance(rows):
    module = BatchNorm(3, axis=1)
    start = prepared(module, rows)
    mean, var = np.zeros(3), np.ones(3)
    extra = start["extra"]
    for step in range(3):
        batch = rows + step
        _, extra = variables.apply(
            module, {**start, "extra": extra}, jnp.asarray(batch), train=True
        )
        part = batch.astype(np.float64).transpose(1, 0, 2).reshape(3, -1)
        mean = 0.9 * mean + 0.1 * part.mean(1)
        var = 0.9 * var + 0.1 * part.var(1, ddof=1)
    np.testing.assert_allclose(extra["batch_stats"]["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(extra["batch_stats"]["var"], var, rtol=1e-5)


def test_inference_uses_the_running_averages_and_leaves_them_alone(rows):
    module = BatchNorm(3, axis=1)
    start = prepared(module, rows)
    stats = {"mean": jnp.array([1.0, 2.0, 3.0]), "var": jnp.array([4.0, 0.25, 1.0])}
    start["extra"] = {"batch_stats": stats}
    result, extra = variables.apply(module, start, jnp.asarray(rows))
    scale, bias = np.array([1.0, 2.0, 0.5]), np.array([0.0, -1.0, 3.0])
    mean, var = np.asarray(stats["mean"]), np.asarray(stats["var"])
    factor = (scale / np.sqrt(var + 1e-5))[None, :, None]
    expected = (rows - mean[None, :, None]) * factor + bias[None, :, None]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert extra is start["extra"]


def test_batch_norm_of_a_constant_channel_is_its_bias(rows):
    module = BatchNorm(3, axis=1)
    result, _ = variables.apply(
        module, prepared(module, rows), jnp.full(rows.shape, 7.0), train=True
    )
    expected = np.broadcast_to([[[0.0], [-1.0], [3.0]]], rows.shape)
    # The mean of 7 is off by a rounding, which 1/sqrt(1e-5) and the scale of 2 enlarge.
    np.testing.assert_allclose(result, expected, atol=7 * 2**-23 / 1e-5**0.5 * 2)


def test_layer_norm_has_mean_0_and_biased_variance_1_before_scale_and_bias(rows):
    scale, bias = np.arange(1.0, 6.0), np.arange(5.0)
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    result = LayerNorm(5).apply({"params": params}, jnp.asarray(rows))
    wide = rows.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
