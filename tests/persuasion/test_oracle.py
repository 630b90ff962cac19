"""The compiled game against loops written out, NumPy and its own structure."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion import game as exact
from rflib.methods.persuasion import oracle

SEEDS = 50
SIZES = [(1, 2, 3, (3,)), (2, 2, 2, (2, 2)), (2, 3, 3, (3, 2)), (3, 3, 2, (2, 3, 2))]
TIES = ["index", "sum", "sender:0", "adversarial:0", "uniform"]


def draw(seed, senders, states, actions, signals):
    rng = np.random.default_rng(seed)
    mu, u = rng.dirichlet(np.ones(states)), rng.random((states, actions))
    v = rng.random((senders, states, actions))
    return mu, u, v, [rng.dirichlet(np.ones(s), states) for s in signals]


def by_loops(mu, u, v, profile):
    """Utilities, actions and margins: joint signals, states, senders and actions in turn."""
    states, actions = u.shape
    utility, chosen, margins = [0.0] * len(profile), [], []
    for joint in itertools.product(*(range(policy.shape[1]) for policy in profile)):
        p = []
        for w in range(states):
            weight = mu[w]
            for policy, signal in zip(profile, joint, strict=True):
                weight *= policy[w, signal]
            p.append(weight)
        scores = [sum(p[w] * u[w, a] for w in range(states)) for a in range(actions)]
        best = scores.index(max(scores))
        chosen.append(best)
        margins.append(max(scores) - max(scores[:best] + scores[best + 1 :]))
        for j in range(len(profile)):
            utility[j] += sum(p[w] * v[j, w, best] for w in range(states))
    return utility, chosen, margins


def stacked(size, dtype=None):
    games = [draw(seed, *size) for seed in range(SEEDS)]
    payoffs = oracle.Payoffs(
        *(jnp.asarray(np.stack(part), dtype) for part in list(zip(*games, strict=True))[:3])
    )
    profiles = tuple(
        jnp.asarray(np.stack([game[3][j] for game in games]), dtype) for j in range(size[0])
    )
    return games, payoffs, profiles


@pytest.mark.parametrize("size", SIZES)
def test_utilities_actions_and_margins_are_those_of_four_loops(size):
    games, payoffs, profiles = stacked(size)
    expected = [by_loops(*game) for game in games]
    single = jax.jit(jax.vmap(oracle.outcome))(payoffs, profiles)
    with jax.enable_x64(True):
        double = jax.jit(jax.vmap(oracle.outcome))(*stacked(size)[1:])
    assert single.utilities.dtype == np.float32
    assert double.utilities.dtype == np.float64
    clear = np.array([min(margins) > 1e-5 for _, _, margins in expected])
    assert clear.mean() > 0.8
    for place, (utility, actions, margins) in enumerate(expected):
        np.testing.assert_allclose(double.utilities[place], utility, atol=1e-12)
        np.testing.assert_array_equal(double.actions[place], actions)
        np.testing.assert_allclose(double.margins[place], margins, atol=1e-12)
        if clear[place]:
            np.testing.assert_allclose(single.utilities[place], utility, atol=1e-6)
            np.testing.assert_array_equal(single.actions[place], actions)


def tied_games():
    """Games full of ties: small whole numbers and deterministic or even policies."""
    rng = np.random.default_rng(0)
    signals, games = (2, 2), []
    for _ in range(40):
        u, v = rng.integers(0, 2, (2, 3)), rng.integers(0, 3, (2, 2, 3))
        profile = [np.eye(2)[rng.integers(0, 2, 2)] if rng.random() < 0.5 else np.full((2, 2), 0.5)]
        profile.append(np.eye(2)[rng.integers(0, 2, 2)])
        games.append((exact.make_game([0.5, 0.5], u, v, signals), profile))
    return games


@pytest.mark.parametrize("tie", TIES)
def test_ties_fall_as_in_the_numpy_game(float64, tie):
    games = tied_games()
    payoffs = jax.tree.map(lambda *x: jnp.stack(x), *(oracle.from_game(game) for game, _ in games))
    profiles = tuple(jnp.asarray(np.stack([p[j] for _, p in games])) for j in range(2))
    found = jax.jit(jax.vmap(lambda a, b: oracle.outcome(a, b, tie)))(payoffs, profiles)
    differ = 0
    for place, (game, profile) in enumerate(games):
        expected = exact.outcome(game, profile, tie)
        np.testing.assert_allclose(found.utilities[place], expected.utilities, atol=1e-14)
        np.testing.assert_array_equal(found.actions[place], expected.actions)
        np.testing.assert_allclose(found.receiver[place], expected.receiver, atol=1e-14)
        differ += not np.allclose(
            expected.utilities, exact.outcome(game, profile, "index").utilities
        )
    assert tie == "index" or differ > 5


def test_inside_a_region_moving_one_sender_is_linear_and_moving_two_is_not(float64):
    size = (2, 2, 3, (2, 2))
    _, payoffs, start = stacked(size)
    end = tuple(
        jnp.asarray(0.98 * p + 0.02 * q)
        for p, q in zip(start, stacked((2, 2, 3, (2, 2)))[2][::-1], strict=True)
    )
    evaluate = jax.jit(jax.vmap(oracle.outcome))

    def second_difference(end):
        middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
        points = [evaluate(payoffs, profile) for profile in (start, middle, end)]
        same = np.all([np.all(x.actions == points[0].actions, -1) for x in points], 0)
        assert same.sum() > 20
        bend = points[0].utilities - 2 * points[1].utilities + points[2].utilities
        return np.abs(bend[same]).max()

    assert second_difference((end[0], start[1])) < 1e-12
    assert second_difference((start[0], end[1])) < 1e-12
    assert second_difference(end) > 1e-6


def test_posteriors_are_bayes_and_more_information_serves_the_receiver(float64):
    rng = np.random.default_rng(1)
    mu, u, v, _ = draw(3, 2, 3, 3, (3, 2))
    payoffs = oracle.Payoffs(*map(jnp.asarray, (mu, u, v)))
    profiles = tuple(jnp.asarray(rng.dirichlet(np.full(s, 0.5), (200, 3))) for s in (3, 2))
    p = jax.jit(jax.vmap(lambda *profile: oracle.joint(payoffs.mu, profile)))(*profiles)
    p = np.asarray(p)
    posterior = p / p.sum(1, keepdims=True)
    np.testing.assert_allclose(posterior.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(
        (posterior * p.sum(1, keepdims=True)).sum(-1), mu[None] + np.zeros((200, 1)), atol=1e-12
    )
    value = jax.jit(jax.vmap(lambda *profile: oracle.outcome(payoffs, profile).receiver))(*profiles)
    assert np.all(value >= (mu @ u).max() - 1e-12)
    assert np.all(value <= mu @ u.max(1) + 1e-12)


@pytest.mark.parametrize("tie", TIES)
def test_values_and_gradients_are_finite_where_nothing_is_at_stake(tie):
    silent = jnp.asarray([[1.0, 0.0], [1.0, 0.0]])  # its second signal never comes
    for u, v in (
        (jnp.zeros((2, 3)), jnp.ones((2, 2, 3))),  # an indifferent receiver, equal senders
        (jnp.ones((2, 1)), jnp.ones((2, 2, 1))),  # one action
    ):
        payoffs = oracle.Payoffs(jnp.asarray([0.3, 0.7]), u, v)

        def total(profile, payoffs=payoffs):
            return jnp.sum(oracle.utilities(payoffs, profile, tie))

        value, grads = jax.jit(jax.value_and_grad(total))((silent, silent))
        assert abs(float(value) - 2) < 1e-6
        # Each sender's one certain signal carries all of both utilities: the derivative is the
        # joint distribution of states and the other's signals, here 2 mu at the first signal.
        np.testing.assert_allclose(grads[0][:, 0], [0.6, 1.4], atol=1e-6)
        assert np.all(np.isfinite(grads[0]))
        assert np.all(np.isfinite(grads[1]))
    one_state = oracle.Payoffs(jnp.ones(1), jnp.asarray([[0.0, 1.0]]), jnp.asarray([[[5.0, 2.0]]]))
    assert (
        float(oracle.utilities(one_state, (jnp.asarray([[0.5, 0.5]]),), tie.replace("1", "0"))[0])
        == 2
    )


def test_spans_are_the_unit_and_an_indifferent_sender_counts_nothing():
    payoffs = oracle.Payoffs(
        jnp.asarray([0.25, 0.75]),
        jnp.eye(2),
        jnp.asarray([[[0.0, 4.0], [1.0, 3.0]], [[2.0, 2.0], [5.0, 5.0]]]),
    )
    np.testing.assert_allclose(oracle.spans(payoffs), [2.5, 0])
    total = oracle.normalised_sum(jnp.asarray([5.0, 9.0]), oracle.spans(payoffs))
    assert float(total) == 2


def test_an_unknown_rule_for_ties_is_named():
    _, u, v, profile = draw(0, 2, 2, 2, (2, 2))
    payoffs = oracle.Payoffs(jnp.asarray([0.5, 0.5]), jnp.asarray(u), jnp.asarray(v))
    with pytest.raises(UserError, match="tie='sender:2'"):
        oracle.utilities(payoffs, tuple(map(jnp.asarray, profile)), "sender:2")
