"""The compiled best responses of two-state games against programs, grids and known values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion import closed_form, generators, oracle
from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.game import make_game, outcome
from rflib.methods.persuasion.local_response import local_best_response
from rflib.methods.persuasion.sampling import dirichlet

GAMES = 12
DELTAS = (0.05, 0.2, 1.0)


def stacked(actions, signals):
    rng = np.random.default_rng(7)
    games, profiles = [], []
    for _ in range(GAMES):
        v = rng.random((len(signals), 2, actions))
        mu, u = rng.dirichlet(np.ones(2)), rng.random((2, actions))
        games.append(make_game(mu, u, v, signals))
        profiles.append(dirichlet(games[-1], rng, 1))
    profiles[0] = tuple(np.eye(2)[None] for _ in signals)  # deterministic
    profiles[1] = tuple(np.ones((1, 2, 2)) / 2 for _ in signals)  # silent
    profiles[2] = tuple(np.tile([[1.0, 0.0]], (1, 2, 1)) for _ in signals)  # one signal unused
    profiles = [tuple(policy[0] for policy in profile) for profile in profiles]
    return games, profiles


def arrays(games, profiles):
    payoffs = jax.tree.map(lambda *x: jnp.stack(x), *(oracle.from_game(game) for game in games))
    return payoffs, jax.tree.map(lambda *x: jnp.stack(x), *profiles)


@pytest.fixture(
    scope="module", params=[(2, (2, 2)), (3, (2, 2, 2))], ids=["2 actions", "3 actions"]
)
def responses(request):
    games, profiles = stacked(*request.param)
    with jax.enable_x64(True):
        deltas = jnp.asarray(DELTAS)

        @jax.jit
        @jax.vmap
        def both(payoffs, profile):
            best = closed_form.best_response(payoffs, profile, 0)
            local = jax.vmap(lambda d: closed_form.local_response(payoffs, profile, 0, d))(deltas)
            return best, local, closed_form.local_gains(payoffs, profile, deltas)

        found = both(*arrays(games, profiles))
    return games, profiles, jax.tree.map(np.asarray, found)


def test_best_responses_are_those_of_the_linear_programs(responses):
    games, profiles, (best, _, _) = responses
    for place, (game, profile) in enumerate(zip(games, profiles, strict=True)):
        expected = best_response(game, profile, 0, method="program")
        assert abs(best.value[place] - expected.value) < 1e-9


def test_local_responses_are_those_of_the_linear_programs(responses):
    games, profiles, (_, local, _) = responses
    for place, (game, profile) in enumerate(zip(games, profiles, strict=True)):
        for row, delta in enumerate(DELTAS):
            expected = local_best_response(game, profile, 0, delta, method="program")
            assert abs(local.value[place, row] - expected.value) < 1e-9


def test_the_policies_reach_the_values_where_ties_are_for_the_sender(responses):
    games, profiles, (best, local, _) = responses
    for place, (game, profile) in enumerate(zip(games, profiles, strict=True)):
        tries = [(best.policy[place], best.value[place], 1.0)]
        tries += [(local.policy[place, k], local.value[place, k], d) for k, d in enumerate(DELTAS)]
        for policy, value, delta in tries:
            np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-12)
            assert np.all(policy >= -1e-15)
            assert np.abs(policy - profile[0]).max() <= delta + 1e-12
            reached = outcome(game, [policy, *profile[1:]], "sender:0").utilities[0]
            assert abs(reached - value) < 1e-8  # ties within 1e-9 count in `outcome`


def test_within_distance_1_the_local_response_is_the_global_one(responses):
    best, local, _ = responses[2]
    np.testing.assert_allclose(local.value[:, -1], best.value, atol=1e-12)
    assert np.all(np.diff(local.value, axis=1) >= -1e-12)
    assert np.all(best.value >= local.value[:, 0] - 1e-12)


def test_gains_are_never_negative_and_of_every_sender(responses):
    games, profiles, (best, _, gains) = responses
    assert gains.shape == (GAMES, games[0].n_senders, len(DELTAS))
    assert np.all(gains >= -1e-12)
    assert np.any(gains[:, 1] > 1e-3)
    own = [
        outcome(game, profile, "sender:0").utilities[0]
        for game, profile in zip(games, profiles, strict=True)
    ]
    np.testing.assert_allclose(gains[:, 0, -1], best.value - own, atol=1e-8)


def test_one_prosecutor_persuades_with_probability_six_tenths(float64):
    payoffs = oracle.Payoffs(jnp.asarray([0.7, 0.3]), jnp.eye(2), jnp.asarray([[[0.0, 1.0]] * 2]))
    silent = (jnp.full((2, 2), 0.5),)
    found = jax.jit(closed_form.best_response, static_argnums=2)(payoffs, silent, 0)
    assert abs(float(found.value) - 0.6) < 1e-12
    order = np.argsort(found.policy[1])
    np.testing.assert_allclose(found.policy[:, order], [[4 / 7, 3 / 7], [0, 1]], atol=1e-9)


def test_the_best_joint_policy_of_aligned_prosecutors_is_a_nash_equilibrium(float64):
    game = generators.aligned()
    payoffs = oracle.from_game(game)
    profile = (jnp.asarray([[4 / 7, 3 / 7], [0, 1]]), jnp.full((2, 2), 0.5))
    utilities = jax.jit(oracle.utilities, static_argnums=2)
    np.testing.assert_allclose(utilities(payoffs, profile, "sum"), 0.6, atol=1e-12)
    np.testing.assert_allclose(utilities(payoffs, profile, "index"), 0, atol=1e-12)
    for sender in range(2):
        found = jax.jit(closed_form.best_response, static_argnums=2)(payoffs, profile, sender)
        assert abs(float(found.value) - 0.6) < 1e-9


def test_what_the_forms_do_not_cover_is_refused(float64):
    rng = np.random.default_rng(0)
    three = oracle.Payoffs(jnp.full(3, 1 / 3), jnp.eye(3), jnp.zeros((1, 3, 3)))
    with pytest.raises(UserError, match="states=3"):
        closed_form.best_response(three, (jnp.eye(3),), 0)
    two = oracle.Payoffs(jnp.full(2, 0.5), jnp.eye(2), jnp.zeros((1, 2, 2)))
    with pytest.raises(UserError, match="sender 0 has 3 signals"):
        closed_form.local_response(two, (jnp.asarray(rng.dirichlet(np.ones(3), 2)),), 0, 0.1)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), two)
    with pytest.raises(UserError, match="float32"):
        closed_form.best_response(single, (jnp.eye(2),), 0)
