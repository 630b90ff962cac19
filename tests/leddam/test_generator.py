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
    truth = generate(0, rows=60_000, channels=6)
    assert truth.lags.min() >= 0 and truth.lags.max() <= 12
    # Var (W z)_n: lagged AR(1) factors are independent of each other, unit variance, .95 per row.
    np.testing.assert_allclose(truth.shared.var(axis=0), (truth.loadings**2).sum(axis=1), rtol=0.15)
    left, right = truth.shared[:, 0], truth.shared[:, 1]
    for shift in range(-12, 13):  # E[left(t) right(t + shift)] by theory
        apart = np.abs(shift - (truth.lags[1] - truth.lags[0]))
        expected = (truth.loadings[0] * truth.loadings[1] * 0.95**apart).sum()
        found = (left[20:-20] * np.roll(right, -shift)[20:-20]).mean()
        assert found == pytest.approx(expected, abs=0.05)


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
