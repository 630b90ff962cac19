"""Paired Student intervals cover as often as they say, and decide by what they exclude."""

import numpy as np
import pytest

from experiments.forecasting.paired import Paired, decide, paired
from rflib.core.errors import UserError


def test_the_interval_covers_the_mean_in_95_of_100_cases():
    draws = np.random.default_rng(0).normal(0.3, 2.0, size=(4000, 3))
    found = [paired(row) for row in draws]
    share = np.mean([low <= 0.3 <= high for _, low, high, _ in found])
    assert abs(share - 0.95) < 0.01  # three standard errors of 4000 cases


def test_three_pairs_by_hand():
    found = paired([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.count == 3
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_one_pair_decides_nothing():
    assert decide([paired([5.0])])[0] == "undecided"


def test_a_common_shift_moves_the_interval_and_a_sign_turns_it():
    a = paired([0.1, 0.5, 0.2])
    b = paired([1.1, 1.5, 1.2])
    c = paired([-0.1, -0.5, -0.2])
    np.testing.assert_allclose([b.mean - 1, b.low - 1, b.high - 1], a[:3], rtol=1e-12)
    np.testing.assert_allclose([-c.mean, -c.high, -c.low], a[:3], rtol=1e-12)


@pytest.mark.parametrize(
    ("effects", "margin", "verdict"),
    [
        ([(0.2, 0.1, 0.3), (0.1, 0.01, 0.2)], 0.0, "holds"),
        ([(0.2, 0.1, 0.3), (0.1, -0.01, 0.2)], 0.0, "undecided"),
        ([(0.2, 0.1, 0.3), (-0.1, -0.2, -0.01)], 0.0, "refuted"),
        ([(0.0001, -0.0002, 0.0004)], 0.0005, "refuted"),
        ([(0.0002, 0.0001, 0.0004)], 0.0005, "refuted"),  # above 0, and too small to matter
        ([(0.0001, -0.0002, 0.0006)], 0.0005, "undecided"),
    ],
)
def test_verdicts(effects, margin, verdict):
    found, reason = decide([Paired(*effect, 3) for effect in effects], margin=margin)
    assert found == verdict and bool(reason) == (verdict == "undecided")


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_bad_differences_are_named(values):
    with pytest.raises(UserError, match="differences="):
        paired(values)
