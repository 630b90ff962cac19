"""A game of two senders worked out to the printed digits, from the joint to certificates."""

import numpy as np
import pytest

from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.certificate import certify
from rflib.methods.persuasion.game import Outcome, full_revelation, joint, no_information, outcome
from rflib.methods.persuasion.local_response import local_best_response
from rflib.methods.persuasion.mediated import utopia
from rflib.methods.persuasion.sampled import sampled_gain
from tests.persuasion.games import worked, worked_profile

GAME, PROFILE = worked(), worked_profile()
LOCAL = {
    0: {0.02: 0.37361, 0.1: 0.5593333, 0.3: 0.60415},
    1: {0.02: 0.4508, 0.1: 0.5629444, 0.3: 0.6675292},
}


def found() -> Outcome:
    return outcome(GAME, PROFILE)


def test_joint_of_states_and_signals() -> None:
    expected = [
        [0.192, 0.128, 0.048, 0.032],
        [0.0105, 0.0945, 0.0245, 0.2205],
        [0.09375, 0.03125, 0.09375, 0.03125],
    ]
    np.testing.assert_allclose(joint(GAME, PROFILE), expected, atol=1e-15)


def test_scores_actions_and_margins() -> None:
    scores = [
        [0.21075, 0.019875, 0.164325],
        [0.13425, 0.097625, 0.107675],
        [0.06675, 0.033875, 0.110925],
        [0.03825, 0.223625, 0.107075],
    ]
    np.testing.assert_allclose(joint(GAME, PROFILE).T @ GAME.u, scores, atol=1e-15)
    assert found().actions.tolist() == [0, 0, 2, 1]
    ordered = np.sort(scores, 1)
    np.testing.assert_allclose(found().margins, ordered[:, 2] - ordered[:, 1], atol=1e-15)


def test_utilities_of_the_profile_of_full_revelation_and_of_silence() -> None:
    np.testing.assert_allclose(found().utilities, [0.362975, 0.44525], atol=1e-14)
    assert abs(found().receiver - 0.67955) < 1e-14
    known, silent = full_revelation(GAME), no_information(GAME)
    np.testing.assert_allclose(known.utilities, [0.47, 0.485], atol=1e-14)
    assert known.actions.tolist() == [0, 1, 2] and abs(known.receiver - 0.975) < 1e-14
    np.testing.assert_allclose(silent.utilities, [0.445, 0.89], atol=1e-14)
    assert silent.actions.tolist() == [2] and abs(silent.receiver - 0.49) < 1e-14


@pytest.mark.parametrize(("sender", "value", "used"), [(0, 0.6579453471, 2), (1, 0.7557951754, 3)])
def test_best_responses_with_any_number_of_signals(sender: int, value: float, used: int) -> None:
    response = best_response(GAME, PROFILE, sender)
    assert abs(response.value - value) < 5e-11
    assert response.policy is not None and response.policy.shape == (3, used)
    assert response.kind == ("exact" if used == 2 else "upper bound")


def test_best_responses_to_a_silent_sender() -> None:
    np.testing.assert_allclose(utopia(GAME), [0.7655263158, 0.89], atol=5e-11)
    silent = [np.full((3, 2), 0.5)] * 2
    values = [best_response(GAME, silent, j).value for j in (0, 1)]
    np.testing.assert_allclose(values, utopia(GAME), atol=1e-12)


@pytest.mark.parametrize("sender", [0, 1])
def test_local_best_responses_jump_where_a_boundary_enters_the_ball(sender: int) -> None:
    for delta, value in LOCAL[sender].items():
        assert abs(local_best_response(GAME, PROFILE, sender, delta).value - value) < 5e-8


@pytest.mark.parametrize("sender", [0, 1])
def test_sampling_finds_nine_tenths_of_both_gains(sender: int) -> None:
    exact = LOCAL[sender][0.1] - found().utilities[sender]
    sampled = sampled_gain(GAME, PROFILE, sender, 0.1)
    assert 0.9 * exact <= sampled.gain <= exact + 1e-7
    assert sampled.deviations == 1000


def test_the_certificate_says_all_of_this() -> None:
    certificate = certify(GAME, PROFILE, deltas=(0.02, 0.1, 0.3))
    for row, delta in zip(certificate.local, certificate.deltas, strict=True):
        for gain in row:
            value = LOCAL[gain.sender][delta] - found().utilities[gain.sender]
            assert abs(gain.gain - value) < 5e-8 and gain.kind == "exact-local"
    # Sender 1 has two signals, where its unlimited best response uses three.
    assert [gain.kind for gain in certificate.best] == ["exact-global"] * 2
    assert certificate.best[1].gain + 0.44525 < 0.7557951754 - 1e-2
    assert certificate.equilibrium is False and certificate.kind == "exact-global"
    assert certificate.cliff == pytest.approx(0.026575)
