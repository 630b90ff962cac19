"""What the numbers of a run are taken to say of the paper's claims."""

from typing import Any

import numpy as np
import pytest

from experiments.jacobian_regularisation import claims, kernel_init


def _slope(value: float, low: float, high: float, errors: Any = (2.0, 1.0)) -> kernel_init.Slope:
    errors = np.array(errors)
    law = kernel_init.PowerLaw(1.0, -value)
    return kernel_init.Slope(np.array([64.0, 128.0]), errors, errors, errors, law, low, high)


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [
        ([_slope(-0.5, -0.6, -0.4)], "holds"),
        ([_slope(-0.5, -0.6, -0.4), _slope(-0.36, -0.5, -0.2)], "holds"),
        ([_slope(-0.5, -0.6, -0.4), _slope(-0.2, -0.3, -0.1)], "refuted"),
        ([_slope(-0.9, -1.0, -0.8)], "refuted"),
        ([_slope(-0.3, -0.4, -0.2)], "undecided"),  # its band reaches into the bounds
        ([_slope(-0.5, -0.6, -0.4, (1.0, 2.0))], "undecided"),  # does not fall
    ],
)
def test_kernels_converge_only_with_all_slopes_in_bounds_and_falling_errors(
    slopes: Any, expected: str
) -> None:
    verdict, reason = claims.slopes_verdict(slopes, (-0.65, -0.35))
    assert verdict == expected and bool(reason) == (expected == "undecided")


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        (_slope(-1.0, -1.1, -0.9), "holds"),  # steeper than asked for
        (_slope(-0.2, -0.3, -0.1), "refuted"),
        (_slope(-0.4, -0.5, -0.3), "undecided"),
    ],
)
def test_a_gap_must_fall_at_least_as_steeply_as_the_bound(slope: Any, expected: str) -> None:
    assert claims.falling_verdict(slope, -0.35)[0] == expected


def _link(lam: float, value: float, width: float = 0.1) -> dict[str, float]:
    return {"lam": lam, "correlation": value, "low": value - width, "high": value + width}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([_link(0.0, 0.1), _link(0.01, 0.8)], "holds"),
        ([_link(0.0, 0.8), _link(0.01, 0.8)], "refuted"),  # the plain NTK shows the link too
        ([_link(0.0, 0.1), _link(0.01, -0.5)], "refuted"),  # the penalty shows the opposite
        ([_link(0.0, 0.1), _link(0.01, 0.05)], "undecided"),
        ([_link(0.0, 0.25), _link(0.01, 0.8)], "undecided"),
        ([_link(0.01, 0.8)], "undecided"),
        ([_link(0.0, float("nan")), _link(0.01, 0.8)], "undecided"),
    ],
)
def test_the_link_needs_both_the_penalty_with_it_and_the_plain_kernel_without(
    found: Any, expected: str
) -> None:
    assert claims.link_verdict(found, 0.3)[0] == expected


@pytest.mark.parametrize(
    ("smallest", "floor", "expected"),
    [
        ([1e-9, 1e-6, 1e-3], 0.0, 1),
        ([-1e-9, 1e-6, 1e-3], 0.0, 2),
        ([1e-9, -1e-6, 1e-3], 0.0, 3),  # from there on, not for the first time
        ([1e-9, 1e-6, -1e-3], 0.0, None),
        ([1e-9, 1e-6, 1e-3], 1e-4, 3),
        ([1e-9, 1e-6, 1e-3], np.array([1e-8, 1e-8, 1e-8]), 2),
    ],
)
def test_full_rank_begins_where_all_deeper_networks_have_it(
    smallest: Any, floor: Any, expected: int | None
) -> None:
    found = {"depths": [1, 2, 3], "jntk": smallest}
    assert claims.first_positive(found, floor) == expected


@pytest.mark.parametrize(
    ("plain", "with_slopes", "expected"),
    [(2, 8, True), (2, None, True), (2, 2, False), (8, 2, False), (None, None, False)],
)
def test_the_jntk_is_more_fragile_if_it_needs_more_layers(
    plain: Any, with_slopes: Any, expected: bool
) -> None:
    assert claims.deeper(plain, with_slopes) is expected


@pytest.mark.parametrize(
    ("depths", "found", "expected"),
    [
        ((1, 6, 11, 14), 1, "refuted"),
        ((1, 2, 3), 2, "refuted"),  # the paper's depth need not be tried for that
        ((1, 6, 11, 14), 11, "holds"),
        ((1, 6, 12), 12, "holds"),  # the first one tried from 11 on
        ((1, 6, 11, 14), 14, "refuted"),
        ((1, 6, 11, 14), None, "refuted"),
        ((1, 2, 3), None, "undecided"),
        ((11, 14), 11, "undecided"),
    ],
)
def test_full_rank_from_the_papers_depth_on_needs_depths_on_both_sides(
    depths: Any, found: int | None, expected: str
) -> None:
    assert claims.depth_verdict(depths, found, 11) == expected


def test_a_power_law_is_found_with_its_slope_and_a_band_around_it() -> None:
    widths = np.array([64, 128, 256, 512])
    exact = 3 * widths[:, None] ** -0.5 * np.ones((1, 4))
    found = kernel_init.slope(widths, exact, resamples=100)
    assert found.slope == pytest.approx(-0.5) and found.falling
    assert found.slope_low == pytest.approx(-0.5) and found.slope_high == pytest.approx(-0.5)
    spread = 0.2
    noise = np.random.default_rng(0).normal(size=(4, 64)) * spread
    found = kernel_init.slope(widths, exact[:, :1] * np.exp(noise), resamples=2000)
    assert found.slope_low < found.slope < found.slope_high
    assert found.slope == pytest.approx(-0.5, abs=0.05)
    logs = np.log(widths) - np.log(widths).mean()
    band = 2 * 1.96 * spread / np.sqrt(64 * logs @ logs)
    assert found.slope_high - found.slope_low == pytest.approx(band, rel=0.2)
