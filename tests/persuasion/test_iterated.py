"""Iterated exact best response: exact equilibria, honest about cycles and caps."""

import numpy as np

from rflib.methods.persuasion.best_response import gap
from rflib.methods.persuasion.game import full_revelation, outcome, spans
from rflib.methods.persuasion.generators import (
    advertisers,
    aligned,
    random_profile,
    ride_hailing,
)
from rflib.methods.persuasion.iterated import iterated_best_response, respond
from rflib.methods.persuasion.pareto import dominates
from tests.persuasion.games import drawn, worked, worked_profile


def test_prosecutors_of_common_interest_end_in_an_exact_equilibrium_mostly_the_best() -> None:
    for senders, share in ((2, 0.8), (3, 0.7)):
        game, good = aligned(senders=senders), 0
        for seed in range(24):
            start = random_profile(game, np.random.default_rng(seed))
            for method in ("auto", "program")[: 1 if senders == 3 else 2]:
                found = iterated_best_response(game, start, method=method)
                assert found.gap < 1e-12 and found.settled and found.cycle == 1
                np.testing.assert_allclose(
                    outcome(game, found.profile, "sum").utilities, found.utilities
                )
            good += found.utilities.min() >= 0.57
        assert good >= share * 24


def test_platforms_end_in_equilibria_that_dominate_full_revelation() -> None:
    for seed in range(4):
        game = ride_hailing(seed)
        known, span = full_revelation(game, "sum").utilities, spans(game)
        for start in range(2):
            profile = random_profile(game, np.random.default_rng(start))
            found = iterated_best_response(game, profile, rounds=6)
            assert found.settled and found.gap < 1e-12
            assert dominates(found.utilities, known, span).strict
            assert np.abs(gap(game, found.profile, found.utilities)).max() < 1e-9


def test_advertisers_cycle_and_it_is_reported() -> None:
    game, ends = advertisers(0), []
    for start in range(4):
        profile = random_profile(game, np.random.default_rng(start))
        ends.append(iterated_best_response(game, profile, rounds=6))
    assert all(end.gap > 1e-3 for end in ends if not end.settled)
    assert sum(end.settled for end in ends) <= 1
    assert any(end.cycle > 1 or end.cycle == 0 for end in ends)  # still moving


def test_senders_of_few_signals_respond_within_them() -> None:
    game, profile = worked(), worked_profile()
    found = respond(game, profile, 1)
    assert found.kind == "exact" and found.policy is not None and found.policy.shape == (3, 2)
    end = iterated_best_response(game, profile, rounds=4, tie="index")
    assert [policy.shape for policy in end.profile] == [(3, 2), (3, 2)]
    assert np.isfinite(end.gap) and end.message == ""


def test_a_sender_above_the_cap_stands_still_and_the_end_is_unverified() -> None:
    game = drawn(0, 2, 3, 3, 6)
    start = random_profile(game, np.random.default_rng(0))
    found = iterated_best_response(game, start, cap=3)
    assert np.isnan(found.gap) and not found.settled and "sender 1 faces 6" in found.message
    for before, after in zip(start, found.profile, strict=True):
        np.testing.assert_array_equal(before, after)
