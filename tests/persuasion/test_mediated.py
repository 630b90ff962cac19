"""A mediator bounds whatever independent senders do."""

import numpy as np
import pytest

from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.game import full_revelation, make_game, outcome, spans
from rflib.methods.persuasion.generators import (
    aligned,
    contract_like,
    opposed,
    random_profile,
    ride_hailing,
)
from rflib.methods.persuasion.mediated import (
    dominance_possible,
    frontier,
    mediated_optimum,
    simplex_weights,
    single_sender_optimum,
    utopia,
)
from tests.persuasion.games import drawn


def test_one_sender_is_bayesian_persuasion_and_its_concave_closure() -> None:
    for seed in range(5):
        game = drawn(seed, 1, 2, 4, 2)
        value = single_sender_optimum(game, 0).value
        assert abs(value - best_response(game, [np.eye(2)], 0).value) < 1e-9
        # V(p) = v(p, a*(p)), ties for the sender, on a fine grid of beliefs p = (1 - x, x):
        # its concave closure at the prior is the best of all chords over it.
        x = np.linspace(0, 1, 801)
        belief = np.stack([1 - x, x], 1)
        scores = belief @ game.u
        tied = scores >= scores.max(1, keepdims=True) - 1e-9
        values = np.where(tied, belief @ game.v[0], -np.inf).max(1)
        prior = game.mu[1]
        left, right = x[x <= prior], x[x > prior]
        share = (prior - left[:, None]) / (right - left[:, None])
        chords = (1 - share) * values[x <= prior][:, None] + share * values[x > prior]
        closure = max(chords.max(), np.interp(prior, x, values))
        assert -1e-9 < value - closure < 5e-3
    three = contract_like(0)
    found = best_response(three, [np.eye(3)], 0).value
    assert abs(single_sender_optimum(three, 0).value - found) < 1e-9


def test_no_profile_of_independent_senders_passes_the_mediator() -> None:
    rng = np.random.default_rng(0)
    for seed in range(6):
        game = drawn(seed, 2 + seed % 2, 3, 3, 3)
        values = outcome(game, random_profile(game, rng, 200, alpha=0.5), "sum").utilities
        assert (values <= utopia(game) + 1e-9).all()
        for _ in range(3):
            weights = rng.uniform(size=game.n_senders)
            assert (values @ weights <= mediated_optimum(game, weights).value + 1e-9).all()


def test_recommendations_are_obeyed_and_have_the_reported_utilities() -> None:
    game = drawn(7, 2, 3, 4, 2)
    found = mediated_optimum(game, np.array([0.3, 0.7]))
    np.testing.assert_allclose(found.joint.sum(1), game.mu, atol=1e-9)
    assert (found.joint >= -1e-12).all()
    for a in range(4):
        scores = found.joint[:, a] @ game.u
        assert scores[a] >= scores.max() - 1e-8
    np.testing.assert_allclose(np.einsum("wa,jwa->j", found.joint, game.v), found.utilities)
    assert found.value == pytest.approx(found.utilities @ [0.3, 0.7])


def test_the_frontier_is_efficient() -> None:
    game = drawn(9, 2, 3, 3, 3)
    points, span = frontier(game), spans(game)
    assert points.shape == (33, 2)
    scaled = points / span
    for j in (0, 1):  # its ends are the best of each sender
        assert points[:, j].max() == pytest.approx(utopia(game)[j], abs=1e-5)
    weights = simplex_weights(2)
    reached = scaled @ weights.T  # [point, weight]: no point is better for a weight than its own
    assert (reached.max(0) <= np.diag(reached) + 1e-5).all()
    three = simplex_weights(3)
    assert three.shape == (33, 3) and (three >= 0).all()
    np.testing.assert_allclose(three.sum(1), 1)
    assert frontier(drawn(1, 3, 2, 2, 2), 5).shape == (5, 3)
    assert simplex_weights(1).tolist() == [[1.0]]


def test_dominance_is_possible_for_common_interest_and_not_for_opposed() -> None:
    common, against = dominance_possible(aligned()), dominance_possible(opposed())
    assert common.possible and common.gain == pytest.approx(0.3)
    np.testing.assert_allclose(common.utilities, 0.6, atol=1e-9)
    assert not against.possible and abs(against.gain) < 1e-9
    for seed in range(10):
        game = ride_hailing(seed)
        found = dominance_possible(game)
        known, span = full_revelation(game).utilities, spans(game)
        assert found.possible
        np.testing.assert_array_less(known + found.gain * span - 1e-9, found.utilities)


def test_an_indifferent_sender_sets_no_condition() -> None:
    game = aligned()
    third = make_game(game.mu, game.u, np.concatenate([game.v, np.ones((1, 2, 2))]), (2, 2, 2))
    assert dominance_possible(third).gain == pytest.approx(0.3)
    nothing = make_game(game.mu, game.u, np.ones((1, 2, 2)), (2,))
    assert not dominance_possible(nothing).possible
    np.testing.assert_allclose(frontier(nothing), 1.0)
