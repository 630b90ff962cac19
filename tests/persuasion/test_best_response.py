"""Exact best responses: programs against breakpoints, grids, public persuasion and the game."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import best_response, gap, padded
from rflib.methods.persuasion.game import Game, full_revelation, make_game, outcome
from rflib.methods.persuasion.generators import random_profile, uniform
from rflib.methods.persuasion.programs import reduce_columns
from tests.persuasion.games import OPTIMUM, drawn, prosecutor, worked, worked_profile


def replayed(game: Game, profile: list[np.ndarray], sender: int, policy: np.ndarray) -> float:
    """The sender's utility, ties for it, when it plays `policy` with as many signals."""
    signals = tuple(policy.shape[1] if k == sender else s for k, s in enumerate(game.signals))
    played = [policy if k == sender else each for k, each in enumerate(profile)]
    return outcome(game._replace(signals=signals), played, f"sender:{sender}").utilities[sender]


def by_grid(game: Game, profile: list[np.ndarray], count: int) -> float:
    """The best of count^2 policies of sender 0, two states and signals, ties for it."""
    x, y = (each.reshape(-1) for each in np.meshgrid(*[np.linspace(0, 1, count)] * 2))
    policies = np.stack([np.stack([x, 1 - x], -1), np.stack([y, 1 - y], -1)], 1)
    rest = [np.broadcast_to(each, (len(x), *each.shape)) for each in profile[1:]]
    return outcome(game, [policies, *rest], "sender:0").utilities[:, 0].max()


def test_the_prosecutor_convicts_twice_the_guilty() -> None:
    game = prosecutor()
    for method in ("program", "breakpoints"):
        found = best_response(game, [np.eye(2)], 0, method=method)
        assert abs(found.value - 0.6) < 1e-9 and found.kind == "exact"
        assert found.policy is not None and found.actions is not None
        columns = {int(a): found.policy[:, k] for k, a in enumerate(found.actions[:, 0])}
        np.testing.assert_allclose(columns[0], [4 / 7, 0], atol=1e-9)
        np.testing.assert_allclose(columns[1], [3 / 7, 1], atol=1e-9)
    assert full_revelation(game).utilities[0] < found.value  # with one sender it is not optimal


@pytest.mark.parametrize("size", [(2, 2, 2, 2), (2, 2, 3, 3), (3, 2, 2, 2)])
def test_programs_equal_breakpoints_and_no_reduction_or_pruning_changes_them(
    size: tuple[int, int, int, int],
) -> None:
    for seed in range(8):
        game, rng = drawn(seed, *size), np.random.default_rng(seed)
        profile = random_profile(game, rng, alpha=(0.3, 1.0)[seed % 2])
        points = best_response(game, profile, 0, method="breakpoints")
        values = [
            best_response(game, profile, 0, method="program", prune=prune, reduce=reduce).value
            for prune, reduce in (("auto", True), ("always", True), ("never", False))
        ]
        np.testing.assert_allclose(values, points.value, atol=1e-9)
        assert points.policy is not None
        assert abs(replayed(game, profile, 0, points.policy) - points.value) < 1e-9
        assert points.value >= outcome(game, profile).utilities[0] - 1e-9


@pytest.mark.parametrize("size", [(2, 3, 3, 3), (2, 4, 2, 4), (1, 3, 4, 3)])
def test_the_policy_of_a_program_reaches_its_value(size: tuple[int, int, int, int]) -> None:
    for seed in range(6):
        game = drawn(seed, *size)
        profile = random_profile(game, np.random.default_rng(seed))
        found = best_response(game, profile, 0)
        assert found.kind == "exact" and found.policy is not None
        assert found.policy.shape[1] <= game.n_states
        np.testing.assert_allclose(found.policy.sum(1), 1, atol=1e-12)
        assert abs(replayed(game, profile, 0, found.policy) - found.value) < 1e-8
        assert padded(game, 0, found.policy).shape == (game.n_states, game.signals[0])


def test_no_policy_of_a_fine_grid_is_better_and_the_best_is_close() -> None:
    short = []
    for seed in range(50):
        game = drawn(seed, 2, 2, 2, 2)
        profile = random_profile(game, np.random.default_rng(seed))
        short.append(best_response(game, profile, 0).value - by_grid(game, profile, 201))
    assert min(short) > -1e-8
    assert np.mean(np.array(short) < 5e-3) >= 0.9


@pytest.mark.parametrize(("n", "seeds"), [(2, 30), (3, 30)])
def test_full_revelation_by_two_senders_is_a_nash_equilibrium(n: int, seeds: int) -> None:
    for seed in range(seeds):
        game = drawn(seed, n, 2 + seed % 2, 3, 3)
        profile = [np.eye(game.n_states, 3)] * n
        gains = gap(game, profile, outcome(game, profile).utilities)
        assert np.abs(gains).max() < 1e-9
        # All of them leave one joint signal a state, whatever their number.
        rest = best_response(game, profile, 0, prune="never")
        assert rest.programs <= max(3**game.n_states, 3 * game.n_states)


def test_the_prosecutors_optimum_is_an_equilibrium_if_ties_go_to_conviction() -> None:
    single = prosecutor()
    game = make_game(single.mu, single.u, np.repeat(single.v, 2, 0), (2, 2))
    convicted = outcome(game, OPTIMUM, "sum").utilities
    assert np.abs(gap(game, OPTIMUM, convicted)).max() < 1e-9
    acquitted = outcome(game, OPTIMUM, "index").utilities
    np.testing.assert_allclose(gap(game, OPTIMUM, acquitted), 0.6, atol=1e-9)


def test_columns_that_tell_the_same_are_one() -> None:
    q = np.array([[0.1, 0.2, 0.0, 0.3, 0.2], [0.2, 0.4, 0.0, 0.1, 0.0]])
    found = reduce_columns(q)
    assert found.group.tolist() == [0, 0, -1, 1, 2]
    np.testing.assert_allclose(found.q, [[0.3, 0.3, 0.2], [0.6, 0.1, 0.0]])
    silent = [np.full((3, 4), 0.25)] * 3
    game = drawn(0, 4, 3, 3, 4)
    found = best_response(game, [*silent, silent[0]], 0)
    assert found.programs == 3 and found.actions is not None
    assert (found.actions == found.actions[:, :1]).all() and found.actions.shape[1] == 64


@pytest.mark.parametrize(("states", "actions", "signals"), [(2, 2, 10), (3, 3, 6)])
def test_few_profiles_can_be_induced_when_states_are_few(
    states: int, actions: int, signals: int
) -> None:
    rng = np.random.default_rng(0)
    u, v = rng.uniform(size=(states, actions)), rng.uniform(size=(2, states, actions))
    game = make_game(rng.dirichlet(np.ones(states)), u, v, (states, signals))
    found = best_response(
        game, random_profile(game, rng), 0, method="program", prune="always", cap=100
    )
    assert found.kind == "exact" and found.programs < 60 < actions**signals
    if states == 2:
        assert found.programs <= signals * (actions - 1) + 1


def test_above_the_cap_nothing_is_claimed() -> None:
    game = drawn(1, 2, 3, 3, 6)
    profile = random_profile(game, np.random.default_rng(1))
    for prune in ("auto", "never"):
        found = best_response(game, profile, 0, cap=10, prune=prune)
        assert found.kind == "unverified" and np.isnan(found.value) and found.policy is None
        assert "more than 10 of 3^6 action profiles" in found.message
    assert np.isnan(gap(game, profile, np.zeros(2), cap=10)).all()
    two = drawn(1, 2, 2, 3, 20)
    profile = random_profile(two, np.random.default_rng(1))
    assert best_response(two, profile, 0, cap=1).kind == "exact"  # breakpoints have no cap


def test_a_sender_of_few_signals_has_an_upper_bound() -> None:
    game, profile = worked(), worked_profile()
    few, many = (best_response(game, profile, j) for j in (0, 1))
    assert few.policy is not None and many.policy is not None
    assert few.kind == "exact" and few.policy.shape[1] == 2 == game.signals[0]
    assert many.kind == "upper bound" and many.policy.shape[1] == 3
    with pytest.raises(UserError, match="a policy of 3 signals is not one of sender 1, who has 2"):
        padded(game, 1, many.policy)
    enough = game._replace(signals=(2, 3))
    assert best_response(enough, [profile[0], np.full((3, 3), 1 / 3)], 1).kind == "exact"


def test_a_margin_costs_its_order_and_makes_the_rule_for_ties_irrelevant() -> None:
    compared = 0
    for seed in range(8):
        game = uniform(seed, signals=3)
        profile = random_profile(game, np.random.default_rng(seed))
        free = best_response(game, profile, 0).value
        safe = best_response(game, profile, 0, margin=1e-5)
        assert safe.policy is not None and free - 1e-3 < safe.value <= free + 1e-9
        played = [padded(game, 0, safe.policy), profile[1]]
        for tie in ("index", "adversarial:0", "uniform"):
            value = outcome(game, played, tie).utilities[0]
            compared += 1
            assert abs(value - safe.value) < 1e-6
    assert compared == 24


def test_scaling_and_identical_senders_and_degenerate_games() -> None:
    game, rng = drawn(5, 2, 2, 3, 2), np.random.default_rng(5)
    profile = random_profile(game, rng)
    plain = best_response(game, profile, 1)
    scaled = best_response(game._replace(v=3 * game.v + 0.5, u=2 * game.u - 1), profile, 1)
    assert abs(scaled.value - (3 * plain.value + 0.5)) < 1e-9
    np.testing.assert_allclose(scaled.policy, plain.policy, atol=1e-9)
    twins = game._replace(v=np.stack([game.v[0]] * 2))
    pair = [profile[0]] * 2
    assert abs(best_response(twins, pair, 0).value - best_response(twins, pair, 1).value) < 1e-12
    indifferent = make_game([0.5, 0.5], np.ones((2, 3)), rng.uniform(size=(2, 2, 3)), (2, 2))
    best = indifferent.v[0].max(1) @ indifferent.mu  # the receiver does whatever it is told
    assert abs(best_response(indifferent, profile, 0).value - best) < 1e-9
    one_action = make_game([0.5, 0.5], [[1], [2]], [[[3], [4]]], (2,))
    one_state = make_game([1.0], [[1, 2]], [[[3, 4]]], (1,))
    for each, value in ((one_action, 3.5), (one_state, 4.0)):
        silent = [np.ones((each.n_states, 1))]
        found = best_response(each, silent, 0)
        assert abs(found.value - value) < 1e-9 and found.kind == "exact"


def test_relabelling_splitting_and_a_silent_sender_leave_best_responses_alone() -> None:
    for seed in range(5):
        game, rng = drawn(seed, 2, 3, 3, 3), np.random.default_rng(seed)
        profile = random_profile(game, rng)
        value = best_response(game, profile, 0).value
        states, actions, signals = (rng.permutation(3) for _ in range(3))
        moved = make_game(
            game.mu[states], game.u[states][:, actions],
            game.v[::-1][:, states][:, :, actions], game.signals,
        )  # fmt: skip
        swapped = [profile[1][states][:, signals], profile[0][states]]
        assert abs(best_response(moved, swapped, 1).value - value) < 1e-9
        split = np.concatenate([profile[1][:, :1] * 0.3, profile[1][:, :1] * 0.7,
                                profile[1][:, 1:]], 1)  # fmt: skip
        wider = game._replace(signals=(3, 4))
        assert abs(best_response(wider, [profile[0], split], 0).value - value) < 1e-9
        third = make_game(game.mu, game.u, np.concatenate([game.v, game.v[:1]]), (3, 3, 2))
        silent = np.tile([[0.2, 0.8]], (3, 1))
        assert abs(best_response(third, [*profile, silent], 0).value - value) < 1e-9


def test_wrong_arguments_are_refused() -> None:
    game = drawn(0, 2, 3, 2, 2)
    profile = random_profile(game, np.random.default_rng(0))
    for arguments, message in (
        ({"sender": 2}, "sender=2 is not one of 0, 1"),
        ({"method": "simplex"}, "method='simplex' is not one of"),
        ({"prune": "yes"}, "prune='yes' is not one of"),
        ({"method": "breakpoints"}, "needs 2 states"),
        ({"margin": -1.0}, "margin=-1.0 must lie in"),
    ):
        with pytest.raises(UserError) as error:
            best_response(game, profile, **{"sender": 0, **arguments})
        assert message in str(error.value)
    with pytest.raises(UserError, match="leading axes"):
        best_response(game, [policy[None] for policy in profile], 0)
