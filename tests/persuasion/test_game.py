"""The exact game (Hossain et al., ICML 2024): Bayes, ties, multilinearity, relabelling."""

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion.game import (
    Outcome,
    check_profile,
    full_revelation,
    full_revelation_is_equilibrium,
    joint,
    make_game,
    no_information,
    outcome,
    relative,
    spans,
)
from rflib.methods.persuasion.generators import random_profile
from tests.persuasion.games import (
    OPTIMUM,
    by_loops,
    drawn,
    prosecutor,
    worked,
    worked_profile,
)

TIES = ("index", "sum", "sender:0", "adversarial:0", "uniform")
SIZES = ((1, 2, 3, 2), (2, 2, 2, 3), (2, 3, 2, 2), (3, 2, 3, 2), (3, 3, 3, 2))


@pytest.mark.parametrize("size", SIZES)
def test_the_vectorised_game_equals_four_loops(size: tuple[int, ...]) -> None:
    for seed in range(10):
        game = drawn(seed, *size)
        profiles = random_profile(game, np.random.default_rng(seed), 3, alpha=0.5)
        for tie in TIES:
            found = outcome(game, profiles, tie)
            for k in range(3):
                one = [policy[k] for policy in profiles]
                utilities, actions, margins, receiver = by_loops(game, one, tie)
                np.testing.assert_allclose(found.utilities[k], utilities, atol=1e-12)
                np.testing.assert_allclose(found.margins[k], margins, atol=1e-12)
                assert found.actions[k].tolist() == actions
                assert abs(found.receiver[k] - receiver) < 1e-12


@pytest.mark.parametrize("tie", ["index", "sum", "sender:1", "adversarial:1", "uniform"])
def test_ties_go_where_the_rule_says(tie: str) -> None:
    # Actions 0, 1 and 2 tie; the senders' values of them are 1, 0, 3 and 5, 9, 4.
    game = make_game([1.0], [[1, 1, 1, 0]], [[[1, 0, 3, 9]], [[5, 9, 4, 0]]], (1, 1))
    silent = [np.ones((1, 1))] * 2
    expected = {"index": (1, 5), "sum": (0, 9), "sender:1": (0, 9), "adversarial:1": (3, 4),
                "uniform": (4 / 3, 6)}[tie]  # fmt: skip
    np.testing.assert_allclose(outcome(game, silent, tie).utilities, expected)


def test_equal_sums_go_to_the_lowest_action_whatever_rounding_says() -> None:
    first, second = [0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2]  # sums that differ in their last bit or not
    game = make_game([1.0], [[1.0, 1.0]], [[first], [second]], (1, 1))
    assert outcome(game, [np.ones((1, 1))] * 2, "sum").actions.tolist() == [0]


def test_posteriors_average_back_to_the_prior_and_information_helps_the_receiver() -> None:
    for seed in range(40):
        game = drawn(seed, 2, 3, 3, 3)
        profiles = random_profile(game, np.random.default_rng(seed), 5, alpha=0.7)
        p = joint(game, profiles)
        total = p.sum(-2, keepdims=True)
        posterior = p / total
        np.testing.assert_allclose(posterior.sum(-2), 1, atol=1e-12)
        back = (posterior * total).sum(-1)
        np.testing.assert_allclose(back, np.broadcast_to(game.mu, back.shape), atol=1e-12)
        receiver = outcome(game, profiles).receiver
        assert (receiver >= no_information(game).receiver - 1e-12).all()
        assert (receiver <= full_revelation(game).receiver + 1e-12).all()


def test_a_utility_is_linear_in_one_policy_within_a_region_and_bilinear_in_two() -> None:
    inside, bent = 0, []
    for seed in range(150):
        game, rng = drawn(seed, 2, 2, 2, 2), np.random.default_rng(seed)
        start, end = random_profile(game, rng), random_profile(game, rng)
        end = [a + 0.1 * (b - a) for a, b in zip(start, end, strict=True)]
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]

        def at(first: np.ndarray, second: np.ndarray, game=game) -> Outcome:
            return outcome(game, [first, second])

        one = [at(policy, start[1]) for policy in (start[0], middle[0], end[0])]
        if len({tuple(each.actions.tolist()) for each in one}) == 1:
            inside += 1
            bend = one[0].utilities - 2 * one[1].utilities + one[2].utilities
            np.testing.assert_allclose(bend, 0, atol=1e-12)
        two = [at(*each) for each in (start, middle, end)]
        regions = {tuple(each.actions.tolist()) for each in two}
        if (
            len(regions) == 1 and sum(regions.pop()) % 2
        ):  # one region, whose action needs both signals
            bend = two[0].utilities - 2 * two[1].utilities + two[2].utilities
            bent.append(np.abs(bend).max() > 1e-6)
    assert inside > 20 and len(bent) > 9 and all(bent)


def permuted(seed: int) -> tuple[np.random.Generator, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng, [rng.permutation(3) for _ in range(3)]


def test_relabelling_states_actions_signals_and_senders_relabels_the_outcome() -> None:
    for seed in range(10):
        game, profile = drawn(seed, 2, 3, 3, 3), None
        rng, (states, actions, signals) = permuted(seed)
        profile = random_profile(game, rng)
        plain = outcome(game, profile)
        other = make_game(
            game.mu[states], game.u[states][:, actions],
            game.v[::-1][:, states][:, :, actions], game.signals,
        )  # fmt: skip
        moved = [profile[1][states], profile[0][states][:, signals]]
        found = outcome(other, moved)
        np.testing.assert_allclose(found.utilities, plain.utilities[::-1], atol=1e-12)
        assert abs(found.receiver - plain.receiver) < 1e-12
        table = plain.actions.reshape(3, 3).T[:, signals]
        np.testing.assert_array_equal(actions[found.actions.reshape(3, 3)], table)


def test_a_split_signal_and_a_silent_sender_change_nothing() -> None:
    game, profile = worked(), worked_profile()
    plain = outcome(game, profile)
    split = np.concatenate([profile[0][:, :1] * 0.3, profile[0][:, :1] * 0.7, profile[0][:, 1:]], 1)
    found = outcome(game._replace(signals=(3, 2)), [split, profile[1]])
    np.testing.assert_allclose(found.utilities, plain.utilities, atol=1e-12)
    v = np.concatenate([game.v, game.v[:1] * 0.5])
    silent = np.tile([[0.2, 0.8]], (3, 1))
    found = outcome(make_game(game.mu, game.u, v, (2, 2, 2)), [*profile, silent])
    np.testing.assert_allclose(found.utilities[:2], plain.utilities, atol=1e-12)


def test_affine_changes_of_utilities_change_units_only() -> None:
    for seed in range(10):
        game, rng = drawn(seed, 2, 3, 3, 2), np.random.default_rng(seed)
        profile = random_profile(game, rng)
        plain = outcome(game, profile)
        scaled = game._replace(v=game.v * np.array([3.0, 0.2])[:, None, None] + 1.5)
        found = outcome(scaled, profile)
        expected = plain.utilities * [3.0, 0.2] + 1.5
        np.testing.assert_allclose(found.utilities, expected, atol=1e-12)
        reference = full_revelation(game).utilities, full_revelation(scaled).utilities
        np.testing.assert_allclose(
            relative(found.utilities - reference[1], spans(scaled)),
            relative(plain.utilities - reference[0], spans(game)),
            atol=1e-12,
        )
        shifted = game._replace(u=game.u * 2.5 + rng.normal(size=(3, 1)))
        np.testing.assert_array_equal(outcome(shifted, profile).actions, plain.actions)


def test_the_prosecutors_outcomes_depend_on_the_rule_for_ties() -> None:
    game = prosecutor()
    assert no_information(game).utilities == pytest.approx([0.0])
    assert full_revelation(game).utilities == pytest.approx([0.3])
    pair = make_game(game.mu, game.u, np.repeat(game.v, 2, 0), (2, 2))
    np.testing.assert_allclose(outcome(pair, OPTIMUM, "sum").utilities, 0.6, atol=1e-12)
    np.testing.assert_allclose(outcome(pair, OPTIMUM, "index").utilities, 0.0, atol=1e-12)
    safe = [OPTIMUM[0] + 1e-4 * np.array([[1, -1], [0, 0]]), OPTIMUM[1]]
    for tie in ("index", "sum", "sender:1", "adversarial:0", "uniform"):
        np.testing.assert_allclose(outcome(pair, safe, tie).utilities, 0.6 - 0.7e-4, atol=1e-12)


def test_full_revelation_is_a_profile_where_signals_suffice() -> None:
    game = drawn(3, 2, 3, 3, 3)
    played = outcome(game, [np.eye(3), np.eye(3)])
    np.testing.assert_allclose(played.utilities, full_revelation(game).utilities, atol=1e-12)
    assert full_revelation_is_equilibrium(game)
    assert not full_revelation_is_equilibrium(game._replace(signals=(3, 2)))
    assert not full_revelation_is_equilibrium(worked())


@pytest.mark.parametrize("tie", TIES)
def test_degenerate_games_have_finite_outcomes(tie: str) -> None:
    indifferent = make_game([0.5, 0.5], np.ones((2, 3)), np.zeros((2, 2, 3)), (2, 2))
    one_action = make_game([0.5, 0.5], [[1], [2]], [[[3], [4]]], (2,))
    one_state = make_game([1.0], [[1, 2]], [[[3, 4]], [[1, 0]]], (2, 2))
    for game in (indifferent, one_action, one_state):
        shut = [np.eye(count)[[0] * game.n_states] for count in game.signals]  # unused signals
        found = outcome(game, shut, tie)
        assert np.isfinite(found.utilities).all() and np.isfinite(found.receiver)
    assert spans(indifferent).tolist() == [0, 0]
    assert relative(np.array([1.0, -1.0]), spans(indifferent)).tolist() == [0, 0]
    assert np.isinf(outcome(one_action, [np.eye(2)], tie).margins).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": [0.5, 0.6]}, "mu=[0.5, 0.6] must be positive and sum to 1; it sums to 1.1"),
        ({"mu": [1.0, 0.0]}, "must be positive"),
        ({"mu": 1.0}, "mu has shape ()"),
        ({"u": [[1, 2]]}, "u has shape (1, 2); (states, actions) must be (2, any)"),
        ({"u": [[1, 2], [3]]}, "u must be numbers"),
        ({"v": [[[1, np.nan], [1, 2]]]}, "v holds a value that is not finite"),
        ({"v": [[[1, 2, 3], [1, 2, 3]]]}, "(senders, states, actions) must be (any, 2, 2)"),
        ({"signals": (2, 2)}, "signals=(2, 2) must have one number for each of 1 senders"),
        ({"signals": (0,)}, "signals=0 must be a whole number of at least 1"),
    ],
)
def test_a_wrong_game_is_refused_by_name(changes: dict, message: str) -> None:
    good = {"mu": [0.5, 0.5], "u": np.eye(2), "v": [np.eye(2)], "signals": (2,)}
    make_game(**good)
    with pytest.raises(UserError) as error:
        make_game(**{**good, **changes})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ([np.eye(2)], "1 policies for 2 senders"),
        ([np.eye(2), np.ones((2, 1))], "policy pi_1 has shape (2, 1); it must end in (2, 2)"),
        ([np.eye(2), np.array([[0.5, 0.5], [0.7, 0.7]])], "policy pi_1, row (1,): [0.7, 0.7]"),
        ([np.array([[1.5, -0.5], [0, 1]]), np.eye(2)], "policy pi_0, row (0,): [1.5, -0.5]"),
        ([np.eye(2)[None], np.eye(2)], "policy pi_1 has leading axes ()"),
    ],
)
def test_a_wrong_profile_is_refused_by_name(profile: list, message: str) -> None:
    game = drawn(0, 2, 2, 2, 2)
    with pytest.raises(UserError) as error:
        check_profile(game, profile)
    assert message in str(error.value)


def test_a_wrong_rule_for_ties_is_refused() -> None:
    game = drawn(0, 2, 2, 2, 2)
    for tie in ("best", "sender", "sender:2", "index:0"):
        with pytest.raises(UserError, match="must be 'index', 'sum', 'uniform'"):
            outcome(game, [np.eye(2)] * 2, tie)
