"""The softened receiver and trial and error on the true game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion import baselines, generators, oracle, search
from rflib.methods.persuasion.game import make_game, outcome, spans
from rflib.methods.persuasion.sampling import dirichlet


@pytest.fixture(scope="module")
def game():
    rng = np.random.default_rng(0)
    return make_game([0.5, 0.3, 0.2], np.eye(3), rng.random((2, 3, 3)), (3, 2))


def as_jax(profile):
    return tuple(map(jnp.asarray, profile))


def test_the_soft_receiver_is_a_softmax_of_posterior_means(float64, game):
    profile = tuple(policy[0] for policy in dirichlet(game, np.random.default_rng(1), 1))
    expected = np.zeros(2)
    for first in range(3):
        for second in range(2):
            p = game.mu * profile[0][:, first] * profile[1][:, second]
            weight = np.exp(p / p.sum() @ game.u / 0.2)
            expected += (game.v @ (weight / weight.sum())) @ p
    soft = jax.jit(baselines.soft_utilities)
    found = soft(oracle.from_game(game), as_jax(profile), 0.2)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_cold_receiver_is_the_exact_one_away_from_edges(float64, game):
    profiles = dirichlet(game, np.random.default_rng(2), 200)
    payoffs = oracle.from_game(game)
    found = jax.jit(jax.vmap(lambda *p: baselines.soft_utilities(payoffs, p, 1e-4)))(
        *as_jax(profiles)
    )
    exact = outcome(game, profiles)
    clear = exact.margins.min(-1) > 5e-3
    assert clear.sum() > 50
    np.testing.assert_allclose(found[clear], exact.utilities[clear], atol=1e-9)


def test_a_signal_that_never_comes_has_finite_gradients(game):
    payoffs = oracle.from_game(game, jnp.float32)
    profile = (jnp.asarray([[1.0, 0, 0]] * 3), jnp.asarray([[0.0, 1]] * 3))
    grads = jax.jit(jax.jacobian(lambda p: baselines.soft_utilities(payoffs, p, 0.003)))(profile)
    for part in grads:
        assert np.all(np.isfinite(part))
    assert np.abs(grads[0]).max() > 0.01


def test_the_temperature_falls_from_its_first_to_its_last_value_in_units_of_the_receiver(float64):
    rng = np.random.default_rng(3)
    game = make_game([0.4, 0.6], 10 * np.eye(2), rng.random((2, 2, 2)) * 5, (2, 2))
    profile = as_jax(tuple(policy[0] for policy in dirichlet(game, rng, 1)))
    payoffs = oracle.from_game(game)
    values, soft = jax.jit(baselines.annealed(payoffs, 11)), jax.jit(baselines.soft_utilities)
    for step, temperature in ((0, 3.0), (5, 10 * np.sqrt(0.3 * 0.003)), (10, 0.03)):
        expected = soft(payoffs, profile, temperature) / oracle.spans(payoffs)
        np.testing.assert_allclose(values(profile, jnp.asarray(step)), expected, rtol=1e-9)


def test_annealing_finds_the_good_equilibrium_from_many_starts_of_aligned_prosecutors():
    game = generators.aligned()
    starts = dirichlet(game, np.random.default_rng(0), 300)
    payoffs, chosen = oracle.from_game(game, jnp.float32), search.Search()
    values = baselines.annealed(payoffs, chosen.steps)
    start = tuple(jnp.asarray(policy, jnp.float32) for policy in starts)
    kept = jax.jit(lambda start: search.trajectories(values, start, chosen))(start)
    last = tuple(policy[:, -1] for policy in search.exact_rows(kept))
    reached = (outcome(game, last, "sum").utilities.min(-1) >= 0.57).mean()
    before = (outcome(game, starts, "sum").utilities.min(-1) >= 0.57).mean()
    assert before < 0.03
    assert 0.25 < reached < 0.5


def test_proposals_are_the_fewest_whole_rounds():
    rows, sizes = baselines.proposals((2, 3), 4, 5, 1001, 10, np.random.default_rng(0))
    assert [part.shape for part in rows] == [(5, 510, 4, 2), (5, 510, 4, 3)]
    assert sizes.shape == (5, 510, 2)
    assert sizes.min() >= 0.01
    assert sizes.max() <= 1
    assert abs(np.log10(sizes).mean() + 1) < 0.05  # log-uniform
    np.testing.assert_allclose(rows[1].sum(-1), 1)
    with pytest.raises(UserError, match="kept=0"):
        baselines.proposals((2, 3), 4, 5, 1001, 0, np.random.default_rng(0))


def test_trial_and_error_moves_exactly_when_the_sender_gains(float64, game):
    rng = np.random.default_rng(4)
    rows, sizes = baselines.proposals(game.signals, 3, 4, 40, 5, rng)
    starts = dirichlet(game, rng, 4)
    payoffs, span = oracle.from_game(game), spans(game)
    found = jax.jit(
        jax.vmap(lambda start, rows, sizes: baselines.zeroth_order(payoffs, start, rows, sizes, 5))
    )(as_jax(starts), as_jax(rows), jnp.asarray(sizes))
    for start in range(4):
        profile, kept, moves = [policy[start] for policy in starts], [], 0
        for turn in range(20):
            for sender in range(2):
                size, moved = sizes[start, turn, sender], list(profile)
                moved[sender] = (1 - size) * profile[sender] + size * rows[sender][start, turn]
                old, new = (outcome(game, at).utilities[sender] for at in (profile, moved))
                profile, moves = (
                    (moved, moves + 1) if new - old > 1e-12 * span[sender] else (profile, moves)
                )
            if turn % 4 == 3:
                kept.append(profile)
        assert 0 < moves < 40
        for sender in range(2):
            expected = np.stack([profile[sender] for profile in kept])
            np.testing.assert_allclose(found[sender][start], expected, atol=1e-12)


def test_trial_and_error_alone_reaches_the_single_senders_optimum(float64):
    game = make_game([0.7, 0.3], np.eye(2), [[[0, 1], [0, 1]]], (2,))
    rng = np.random.default_rng(5)
    rows, sizes = baselines.proposals((2,), 2, 20, 1000, 10, rng)
    payoffs = oracle.from_game(game)
    kept = jax.jit(jax.vmap(lambda *a: baselines.zeroth_order(payoffs, *a, 10)))(
        as_jax(dirichlet(game, rng, 20)), as_jax(rows), jnp.asarray(sizes)
    )
    values = outcome(game, [np.asarray(kept[0])]).utilities[..., 0]
    assert np.all(np.diff(values, axis=1) >= 0)
    assert np.all(values <= 0.6 + 1e-9)
    assert np.median(values[:, -1]) > 0.57


def test_rounds_that_do_not_divide_are_refused(game):
    payoffs = oracle.from_game(game, jnp.float32)
    profile = (jnp.ones((3, 3)) / 3, jnp.ones((3, 2)) / 2)
    rows = (jnp.ones((7, 3, 3)) / 3, jnp.ones((7, 3, 2)) / 2)
    with pytest.raises(UserError, match="7 rounds, which must be a multiple of kept=5"):
        baselines.zeroth_order(payoffs, profile, rows, jnp.ones((7, 2)), 5)
