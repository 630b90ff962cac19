"""Exact local best responses: programs against the closed form, grids and the global one."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.certificate import null_control
from rflib.methods.persuasion.game import full_revelation, make_game, outcome, relative, spans
from rflib.methods.persuasion.generators import random_profile, uniform
from rflib.methods.persuasion.local_response import (
    local_best_response,
    local_best_response_lines,
)
from tests.persuasion.games import drawn, worked, worked_profile


@pytest.mark.parametrize("size", [(2, 2, 2, 2), (2, 2, 3, 2), (3, 2, 2, 2)])
def test_the_closed_form_equals_the_programs(size: tuple[int, int, int, int]) -> None:
    for seed in range(5):
        game = drawn(seed, *size)
        profile = random_profile(game, np.random.default_rng(seed))
        for delta in (0.0, 0.05, 0.2, 1.0):
            program = local_best_response(game, profile, 0, delta, method="program")
            value, policy = local_best_response_lines(game, profile, 0, delta)
            assert abs(program.value - value) < 1e-11
            for each in (program.policy, policy):
                assert each is not None and np.abs(each - profile[0]).max() <= delta + 1e-9
                played = outcome(game, [each, *profile[1:]], "sender:0").utilities[0]
                assert abs(played - value) < 1e-8


def test_a_batch_in_closed_form_is_its_profiles_one_by_one() -> None:
    game = drawn(4, 2, 2, 3, 2)
    profiles = random_profile(game, np.random.default_rng(4), 2, 5)
    values, policies = local_best_response_lines(game, profiles, 1, 0.1)
    assert values.shape == (2, 5) and policies.shape == (2, 5, 2, 2)
    for place in np.ndindex(2, 5):
        one = local_best_response(game, [policy[place] for policy in profiles], 1, 0.1)
        assert one.value == pytest.approx(values[place], abs=1e-14)
        np.testing.assert_allclose(one.policy, policies[place], atol=1e-12)


@pytest.mark.parametrize("size", [(2, 2, 2, 2), (2, 2, 3, 3), (2, 3, 2, 3), (2, 3, 3, 2)])
def test_the_value_grows_with_the_radius_from_the_utility_to_the_best_response(
    size: tuple[int, int, int, int],
) -> None:
    for seed in range(3):
        game = drawn(seed, *size)
        profile = random_profile(game, np.random.default_rng(seed))
        found = [local_best_response(game, profile, 0, d) for d in (0.0, 0.03, 0.1, 0.4, 1.0)]
        assert {each.kind for each in found} == {"exact"}
        values = [each.value for each in found]
        assert abs(values[0] - outcome(game, profile).utilities[0]) < 1e-9
        assert (np.diff(values) > -1e-9).all()
        best = best_response(game, profile, 0)
        if best.kind == "exact":
            assert abs(values[-1] - best.value) < 1e-8
        else:
            assert values[-1] <= best.value + 1e-9


def test_too_few_signals_cost_what_the_upper_bound_hides() -> None:
    game, profile = worked(), worked_profile()
    bound = best_response(game, profile, 1)
    near = local_best_response(game, profile, 1, 1.0)
    assert bound.kind == "upper bound" and near.kind == "exact"
    assert near.value < bound.value - 1e-2
    # The best of many policies of two signals does not pass it, and comes close.
    rng = np.random.default_rng(0)
    policies = rng.dirichlet(np.full(2, 0.5), (20_000, 3))
    others = np.broadcast_to(profile[0], (len(policies), 3, 2))
    values = outcome(game, [others, policies], "sender:1").utilities[:, 1]
    assert near.value - 2e-2 < values.max() <= near.value + 1e-9


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.2])
def test_no_policy_of_a_grid_in_the_box_is_better_and_the_best_is_close(delta: float) -> None:
    short = []
    for seed in range(50):
        game = drawn(seed, 2, 2, 2, 2)
        profile = random_profile(game, np.random.default_rng(seed))
        low, high = np.maximum(profile[0] - delta, 0), np.minimum(profile[0] + delta, 1)
        axes = [np.linspace(low[w, 0], high[w, 0], 81) for w in range(2)]
        x, y = (each.reshape(-1) for each in np.meshgrid(*axes))
        policies = np.stack([np.stack([x, 1 - x], -1), np.stack([y, 1 - y], -1)], 1)
        rest = np.broadcast_to(profile[1], (len(x), 2, 2))
        grid = outcome(game, [policies, rest], "sender:0").utilities[:, 0].max()
        short.append(local_best_response(game, profile, 0, delta).value - grid)
    assert min(short) > -1e-8
    assert np.mean(np.array(short) < 5e-3) >= 0.9


def test_an_unused_signal_takes_no_profile_of_its_own() -> None:
    game = drawn(2, 2, 3, 3, 3)
    rest = random_profile(game, np.random.default_rng(2))[1]
    shut = np.array([[0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.5, 0.5, 0.0]])
    still = local_best_response(game, [shut, rest], 0, 0.0)
    assert still.programs == 1
    assert abs(still.value - outcome(game, [shut, rest]).utilities[0]) < 1e-9
    two = game._replace(signals=(2, 3))
    for delta in (0.05, 0.2):
        with_third = local_best_response(game, [shut, rest], 0, delta)
        without = local_best_response(two, [shut[:, :2], rest], 0, delta)
        assert with_third.kind == without.kind == "exact"
        assert with_third.value >= without.value - 1e-9


def test_a_receivers_margin_costs_its_order_and_survives_every_rule() -> None:
    tied = 0
    for seed in range(12):
        game = uniform(seed)
        profile = random_profile(game, np.random.default_rng(seed))
        free = local_best_response(game, profile, 0, 0.2)
        safe = local_best_response(game, profile, 0, 0.2, kappa=1e-5)
        assert free.policy is not None
        if safe.policy is None:  # no policy nearby has such a margin
            assert "margin of 1e-05" in safe.message
            continue
        tied += outcome(game, [free.policy, profile[1]]).margins.min() < 1e-9
        assert free.value - 1e-3 < safe.value <= free.value + 1e-9
        for tie in ("index", "adversarial:0", "sender:0"):
            value = outcome(game, [safe.policy, profile[1]], tie).utilities[0]
            assert abs(value - safe.value) < 1e-8
    assert tied >= 3


def test_above_the_cap_nothing_is_claimed() -> None:
    game = drawn(0, 2, 3, 3, 3)
    profile = random_profile(game, np.random.default_rng(0), alpha=0.3)
    found = local_best_response(game, profile, 0, 0.3, cap=2)
    assert found.kind == "unverified" and found.policy is None and np.isnan(found.value)
    assert "the cap is 2" in found.message


def test_random_profiles_of_random_games_pass_as_often_as_was_measured() -> None:
    """94.5, 74 and 65% within .01, .05 and .2 at epsilon .005, 76% within .01 at .001 (ours)."""
    gains = np.empty((400, 3, 2))
    for seed in range(400):
        game = uniform(seed, reject=False)
        profile = random_profile(game, np.random.default_rng(10**6 + seed))
        utilities = outcome(game, profile).utilities
        for d, delta in enumerate((0.01, 0.05, 0.2)):
            for j in (0, 1):
                value = local_best_response_lines(game, profile, j, delta)[0]
                gains[seed, d, j] = value - utilities[j]
    rates = (gains.max(2) <= 0.005).mean(0)
    np.testing.assert_allclose(rates, [0.945, 0.74, 0.65], atol=0.07)
    assert abs((gains[:, 0].max(1) <= 0.001).mean() - 0.76) < 0.07


def test_the_null_control_is_the_same_test_on_random_profiles() -> None:
    game = uniform(1)
    found = null_control(game, count=20, deltas=(0.05, 0.2), ratios=(0.1, 0.5), seed=3)
    profiles = random_profile(game, np.random.default_rng(3), 20)
    span, passed = spans(game), np.zeros((2, 2))
    for k in range(20):
        one = [policy[k] for policy in profiles]
        for d, delta in enumerate((0.05, 0.2)):
            values = [local_best_response(game, one, j, delta).value for j in (0, 1)]
            gain = relative(np.array(values) - outcome(game, one).utilities, span).max()
            passed[d] += gain <= np.array([0.1, 0.5]) * delta
    np.testing.assert_allclose(found.rates, passed / 20)
    assert found.count == 20 and found.kind == "exact-local"
    sampled = null_control(game, count=20, deltas=(0.05, 0.2), ratios=(0.1, 0.5), seed=3, cap=0)
    assert sampled.kind == "sampled" and (sampled.rates >= found.rates).all()


def test_degenerate_games_and_wrong_arguments() -> None:
    one_state = make_game([1.0], [[1, 2]], [[[3, 4]]], (2,))
    assert local_best_response(one_state, [np.array([[1.0, 0.0]])], 0, 0.1).value == 4.0
    one_action = make_game([0.5, 0.5], [[1], [2]], [[[3], [4]]], (2,))
    for method in ("program", "lines"):
        found = local_best_response(one_action, [np.eye(2)], 0, 0.1, method=method)
        assert found.value == pytest.approx(full_revelation(one_action).utilities[0])
    game = drawn(0, 2, 3, 2, 2)
    profile = random_profile(game, np.random.default_rng(0))
    for arguments, message in (
        ({"sender": -1}, "sender=-1 is not one of"),
        ({"delta": 1.5}, "delta=1.5 must lie in [0, 1]"),
        ({"kappa": -1.0}, "kappa=-1.0 must lie in"),
        ({"method": "grid"}, "method='grid' is not one of"),
        ({"method": "lines"}, "needs 2 states and 2 signals"),
    ):
        with pytest.raises(UserError) as error:
            local_best_response(game, profile, **{"sender": 0, "delta": 0.1, **arguments})
        assert message in str(error.value)
