"""Fits of errors against widths, and bands of means."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.theory import bootstrap_mean, power_law, unit_diagonal


def test_a_power_law_is_found_and_inverted():
    widths = np.array([64.0, 256.0, 1024.0])
    fit = power_law(widths, 3 * widths**-0.5)
    assert fit.constant == pytest.approx(3) and fit.exponent == pytest.approx(0.5)
    assert fit.width(0.03) == pytest.approx(10_000)
    assert power_law(widths, widths).width(0.1) == np.inf
    with pytest.raises(UserError, match="two or more widths"):
        power_law(widths[:1], widths[:1])


def test_band_of_a_mean_covers_it_and_has_the_width_of_its_error():
    samples = np.random.default_rng(0).normal(size=(400, 2))
    mean, low, high = bootstrap_mean(samples)
    np.testing.assert_allclose(mean, samples.mean(0))
    np.testing.assert_allclose(high - low, 2 * 1.96 / 20, rtol=0.1)
    again = bootstrap_mean(samples)
    np.testing.assert_array_equal(again[1], low)


def test_diagonal_has_its_closed_form_for_the_default_scales_only():
    with pytest.raises(UserError, match="default scales"):
        unit_diagonal(Mlp(2, sigma_b=0.1))
