"""The sampling verifier is sound, and finds nearly all of the exact gain."""

import itertools

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.game import make_game, outcome
from rflib.methods.persuasion.generators import random_profile, uniform
from rflib.methods.persuasion.local_response import (
    local_best_response,
    local_best_response_lines,
)
from rflib.methods.persuasion.sampled import project_box, sampled_gain
from tests.persuasion.games import drawn


def test_it_never_claims_more_than_the_exact_gain_and_its_deviation_realises_it() -> None:
    kinds = set()
    for seed, size in itertools.product(
        range(9), ((2, 2, 2, 2), (2, 2, 3, 3), (2, 3, 3, 2), (3, 2, 2, 2), (1, 3, 2, 3))
    ):
        game, tie = drawn(seed, *size), ("index", "sum", "uniform")[seed % 3]
        profile = random_profile(game, np.random.default_rng(seed), alpha=(0.3, 1.0)[seed % 2])
        utility = outcome(game, profile, tie).utilities[0]
        found = sampled_gain(game, profile, 0, 0.1, deviations=200, tie=tie, seed=seed)
        exact = local_best_response(game, profile, 0, 0.1).value - utility
        assert 0 <= found.gain <= exact + 1e-7
        assert np.abs(found.policy - profile[0]).max() <= 0.1 + 1e-9
        np.testing.assert_allclose(found.policy.sum(1), 1, atol=1e-12)
        assert found.policy.min() >= 0 and found.deviations == 200
        played = outcome(game, [found.policy, *profile[1:]], tie).utilities[0]
        assert played - utility == pytest.approx(found.gain, abs=1e-12)
        kinds.add(found.kind)
    assert {"vertices", "crossings"} <= kinds


def test_it_finds_nineteen_twentieths_of_the_exact_gain_on_average() -> None:
    shares = []
    for seed in range(400):
        game = uniform(seed, reject=False)
        profile = random_profile(game, np.random.default_rng(10**6 + seed))
        utility = outcome(game, profile).utilities[0]
        exact = local_best_response_lines(game, profile, 0, 0.1)[0] - utility
        if exact > 1e-4:
            shares.append(sampled_gain(game, profile, 0, 0.1, seed=seed).gain / exact)
    assert len(shares) > 60
    assert np.mean(shares) >= 0.95


def test_crossings_reach_a_region_that_a_corner_of_the_box_touches() -> None:
    # The prosecutor just short of the cliff: only a step of 0.001 in the right direction gains.
    game = make_game([0.7, 0.3], np.eye(2), [[[0, 1], [0, 1]]], (2,))
    short = [np.array([[4 / 7 + 1e-3, 3 / 7 - 1e-3], [0.0, 1.0]])]
    found = sampled_gain(game, short, 0, 0.05, seed=1)
    assert found.kind == "crossings" and found.gain == pytest.approx(0.7e-3, abs=1e-6)
    assert found.policy[1, 1] == 1.0


def test_the_l2_ball_lies_within_the_box() -> None:
    for seed in range(5):
        game = drawn(seed, 2, 3, 3, 2)
        profile = random_profile(game, np.random.default_rng(seed))
        ball = sampled_gain(game, profile, 0, 0.1, deviations=200, norm="l2")
        assert np.linalg.norm(ball.policy - profile[0]) <= 0.1 + 1e-9
        exact = local_best_response(game, profile, 0, 0.1).value
        assert ball.gain <= exact - outcome(game, profile).utilities[0] + 1e-7


def test_the_same_seed_gives_the_same_deviation() -> None:
    game = drawn(1, 2, 3, 3, 3)
    profile = random_profile(game, np.random.default_rng(1))
    one, two, other = (
        sampled_gain(game, profile, 0, 0.1, seed=s, deviations=80) for s in (4, 4, 5)
    )
    assert one.gain == two.gain and (one.policy == two.policy).all()
    assert (one.policy != other.policy).any()


def test_projection_on_a_box_of_the_simplex_is_the_nearest_point() -> None:
    rng = np.random.default_rng(0)
    low, high = np.array([0.1, 0.0, 0.2]), np.array([0.5, 0.6, 0.7])
    points = rng.normal(size=(200, 3))
    found = project_box(points, low, high)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)
    assert (found >= low).all() and (found <= high).all()
    np.testing.assert_allclose(project_box(found, low, high), found, atol=1e-12)
    # No feasible point lies on the near side: (x - P x).(y - P x) <= 0 for all feasible y.
    feasible = project_box(rng.normal(size=(300, 3)), low, high)
    inner = np.einsum("ps,pqs->pq", points - found, feasible[None] - found[:, None])
    assert inner.max() < 1e-12
    alone = project_box(rng.normal(size=(4, 1)), np.zeros(1), np.ones(1))
    np.testing.assert_allclose(alone, 1)


@pytest.mark.parametrize("signals", [(1, 2), (2, 1), (1, 1)])
def test_one_signal_leaves_nothing_to_deviate_with(signals: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    u, v = rng.uniform(size=(2, 2)), rng.uniform(size=(2, 2, 2))
    game = make_game([0.5, 0.5], u, v, signals)
    found = sampled_gain(game, random_profile(game, rng), 0, 0.1, deviations=40)
    assert np.isfinite(found.gain)
    if signals[0] == 1:
        assert abs(found.gain) < 1e-12
    indifferent = make_game([0.5, 0.5], np.ones((2, 1)), np.ones((2, 2, 1)), signals)
    assert abs(sampled_gain(indifferent, random_profile(indifferent, rng), 0, 0.1).gain) < 1e-12


def test_wrong_arguments_are_refused() -> None:
    game = drawn(0, 2, 2, 2, 2)
    profile = random_profile(game, np.random.default_rng(0))
    for arguments, message in (
        ({"deviations": 3}, "deviations=3 must be at least 4"),
        ({"delta": 0.0}, "delta=0.0 must lie in"),
        ({"delta": 1.5}, "delta=1.5 must lie in"),
        ({"norm": "l1"}, "norm='l1' is not one of"),
        ({"sender": 5}, "sender=5 is not one of"),
    ):
        with pytest.raises(UserError) as error:
            sampled_gain(game, profile, **{"sender": 0, "delta": 0.1, **arguments})
        assert message in str(error.value)
