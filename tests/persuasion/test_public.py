"""The public-persuasion view has the value of the best response."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.game import joint
from rflib.methods.persuasion.generators import random_profile
from rflib.methods.persuasion.public import as_public_persuasion, public_persuasion_value
from tests.persuasion.games import drawn, worked, worked_profile


@pytest.mark.parametrize(
    "size", [(1, 3, 3, 2), (2, 2, 2, 2), (2, 3, 3, 3), (3, 2, 3, 2), (3, 3, 2, 2)]
)
def test_public_persuasion_has_the_value_of_the_best_response(
    size: tuple[int, int, int, int],
) -> None:
    for seed in range(5):
        game = drawn(seed, *size)
        profile = random_profile(game, np.random.default_rng(seed))
        for sender in range(game.n_senders):
            problem = as_public_persuasion(game, profile, sender)
            best = best_response(game, profile, sender).value
            assert abs(public_persuasion_value(problem) - best) < 1e-9


def test_a_receiver_a_joint_signal_of_the_others_with_the_common_prior() -> None:
    game, profile = worked(), worked_profile()
    problem = as_public_persuasion(game, profile, 0)
    assert problem.receivers.shape == problem.sender.shape == (2, 3, 3)
    np.testing.assert_array_equal(problem.mu, game.mu)
    for t in range(2):
        np.testing.assert_allclose(problem.receivers[t], game.u * profile[1][:, t, None])
        np.testing.assert_allclose(problem.sender[t], game.v[0] * profile[1][:, t, None])
    # An uninformative public signal: each receiver's utility is its share of the joint's.
    scores = np.einsum("w,twa->ta", game.mu, problem.receivers)
    p = joint(game, [np.ones((3, 1)), profile[1]])
    np.testing.assert_allclose(scores, p.T @ game.u)


def test_many_receivers_are_refused() -> None:
    game = drawn(0, 2, 2, 3, 9)
    problem = as_public_persuasion(game, random_profile(game, np.random.default_rng(0)), 0)
    with pytest.raises(UserError, match=r"3\^9 action profiles of 9 receivers; cap=5000"):
        public_persuasion_value(problem)
