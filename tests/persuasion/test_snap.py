"""Snap moves profiles onto the cliffs that searches stop short of."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.game import outcome, relative, spans
from rflib.methods.persuasion.generators import aligned, random_profile, uniform
from rflib.methods.persuasion.local_response import local_best_response
from rflib.methods.persuasion.snap import snap
from tests.persuasion.games import OPTIMUM, worked, worked_profile


def beside(step: float) -> list[np.ndarray]:
    """The prosecutors' optimum, short of the cliff or (below 0) over it."""
    return [OPTIMUM[0] + step * np.array([[1.0, -1.0], [0.0, 0.0]]), OPTIMUM[1]]


@pytest.mark.parametrize("step", [0.05, -0.05])
@pytest.mark.parametrize("tie", ["sum", "index", "adversarial:0"])
def test_from_either_side_of_the_cliff_to_the_optimum_under_every_rule(
    step: float, tie: str
) -> None:
    game = aligned()
    found = snap(game, beside(step), tie=tie)
    assert found.settled and found.gap < 1e-4
    np.testing.assert_allclose(found.after, 0.6, atol=1e-4)
    before = 0.6 - 0.7 * step if step > 0 else 0.0
    np.testing.assert_allclose(found.before, before, atol=1e-9)
    if tie == "sum":
        assert found.kappa == 0.0
        np.testing.assert_allclose(found.after, 0.6, atol=1e-9)
    else:  # on the tie itself the receiver would acquit
        assert found.kappa == 1e-5 and outcome(game, found.profile, tie).margins.min() > 1e-9


def test_what_is_settled_has_no_local_gain_left() -> None:
    settled = 0
    for seed in range(16):
        game = uniform(seed)
        start = random_profile(game, np.random.default_rng(seed))
        found = snap(game, start, tie="sum")
        values = [local_best_response(game, found.profile, j, 0.1).value for j in (0, 1)]
        gains = relative(np.array(values) - found.after, spans(game))
        assert abs(gains.max() - found.gap) < 1e-12
        np.testing.assert_allclose(
            outcome(game, found.profile, "sum").utilities, found.after, atol=1e-12
        )
        settled += found.settled and found.gap < 1e-9
    assert settled >= 11


def test_nobody_moves_from_an_equilibrium_or_without_reach() -> None:
    still = snap(aligned(), OPTIMUM, tie="sum")
    assert still.settled and still.rounds == 1
    for before, after in zip(OPTIMUM, still.profile, strict=True):
        np.testing.assert_allclose(before, after, atol=1e-12)
    none = snap(worked(), worked_profile(), delta=0.0)
    assert none.settled and none.gap < 1e-9
    np.testing.assert_allclose(none.before, none.after, atol=1e-9)


def test_a_cap_leaves_the_gap_unverified_and_wrong_arguments_are_refused() -> None:
    found = snap(worked(), worked_profile(), delta=0.3, cap=1)
    assert np.isnan(found.gap) and found.settled
    for arguments, message in (
        ({"delta": 2.0}, "delta=2.0"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"rounds": 0}, "rounds=0"),
    ):
        with pytest.raises(UserError, match=message):
            snap(aligned(), OPTIMUM, **arguments)
