"""Errors of a forecast, by window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.methods.leddam.losses import LOSSES, mae, mse


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (300, 6, 3)
    return rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)


def test_errors_are_means_over_steps_and_series_of_each_window(pair):
    forecast, target = pair
    wide = forecast.astype(np.float64) - target
    squared = mse(jnp.asarray(forecast), jnp.asarray(target))
    absolute = mae(jnp.asarray(forecast), jnp.asarray(target))
    np.testing.assert_allclose(squared, (wide**2).mean((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(absolute, np.abs(wide).mean((1, 2)), rtol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batch", [1, 7, 128])
def test_the_mean_over_windows_does_not_depend_on_the_batch_size(pair, name, batch):
    loss = jax.jit(LOSSES[name])
    whole = float(np.mean(loss(*map(jnp.asarray, pair))))
    chunks = [
        np.asarray(loss(*(jnp.asarray(part[i : i + batch]) for part in pair)))
        for i in range(0, len(pair[0]), batch)
    ]
    assert abs(float(np.mean(np.concatenate(chunks))) - whole) < 1e-6


def test_a_perfect_forecast_has_no_error_and_an_offset_its_square(pair):
    target = jnp.asarray(pair[1])
    for loss in LOSSES.values():
        np.testing.assert_array_equal(loss(target, target), np.zeros(300))
    np.testing.assert_allclose(mse(target + 0.5, target), 0.25, rtol=1e-5)
    np.testing.assert_allclose(mae(target + 0.5, target), 0.5, rtol=1e-5)
