"""The generator: its parts have the stated laws, and its truth is the truth."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.leddam.generator import generate, write_layout


def test_the_generator_is_a_function_of_its_seed_and_the_sum_of_its_parts():
    first, again, other = generate(4), generate(4), generate(5)
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert not np.array_equal(first.values, other.values)
    assert first.values.shape == (3000, 5)
    noise_part = first.values - first.trend - first.seasonal - first.shared
    assert noise_part.std(axis=0) == pytest.approx(0.3, abs=0.03)
    lagged = (noise_part[1:] * noise_part[:-1]).mean(axis=0) / (noise_part**2).mean(axis=0)
    assert lagged == pytest.approx(0.3, abs=0.08)


def test_generated_factors_have_unit_variance_and_reach_series_at_the_stated_lags():
    truth = generate(0, rows=120_000, channels=6)
    assert truth.lags.min() == 0 and truth.lags.max() == 12

    def covariance(lags: np.ndarray, shift: int) -> np.ndarray:
        """E[x_n(t) x_m(t + shift)] = sum_j W_nj W_mj .95^|shift - lag_mj + lag_nj|."""
        apart = np.abs(shift - lags[None] + lags[:, None])
        return (truth.loadings[:, None] * truth.loadings[None] * 0.95**apart).sum(axis=-1)

    error, error_without_lags = 0.0, 0.0
    for shift in range(-12, 13):
        moved = np.roll(truth.shared, -shift, axis=0)[12:-12]
        found = truth.shared[12:-12].T @ moved / len(moved)
        error = max(error, np.abs(found - covariance(truth.lags, shift)).max())
        without = covariance(np.zeros_like(truth.lags), shift)
        error_without_lags = max(error_without_lags, np.abs(found - without).max())
    assert error < 0.06 < 3 * 0.06 < error_without_lags


def test_generated_seasons_live_at_the_two_periods_only():
    truth = generate(2, rows=24 * 7 * 20, channels=3)
    power = np.abs(np.fft.rfft(truth.seasonal, axis=0)) ** 2
    rows = len(truth.seasonal)
    kept = power[[rows // 24, rows // 168]].sum(axis=0) / power.sum(axis=0)
    np.testing.assert_allclose(kept, 1, atol=1e-9)
    amplitude = 2 * np.sqrt(power[[rows // 24, rows // 168]]) / rows
    assert ((amplitude[0] > 0.5) & (amplitude[0] < 1.5)).all()
    assert ((amplitude[1] > 0.2) & (amplitude[1] < 0.6)).all()


def test_a_layout_of_the_wrong_width_is_refused(tmp_path):
    with pytest.raises(UserError, match="values have 3 columns; ETTh1 has HUFL"):
        write_layout(tmp_path, "ETTh1", np.ones((10, 3)))
    with pytest.raises(UserError, match="rows=0"):
        generate(0, rows=0)
