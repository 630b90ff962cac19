"""Fields, trajectories and the choice of the best iterate."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.persuasion import generators, model, oracle, search
from rflib.methods.persuasion.game import full_revelation, outcome
from rflib.methods.persuasion.model import Network
from rflib.methods.persuasion.sampling import dirichlet
from rflib.methods.persuasion.search import Search

# One state: policies are mixed strategies of a zero-sum game, both (1/4, 1/2, 1/4) at its solution.
M = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])
COMBINATIONS = [
    (kind, parametrisation)
    for kind, parametrisation in itertools.product(search.KINDS, search.PARAMETRISATIONS)
    if (kind, parametrisation) != ("mirror_prox", "softmax")
]


def zero_sum(profile, step):
    del step
    value = profile[0][0] @ jnp.asarray(M, profile[0].dtype) @ profile[1][0]
    return jnp.stack([value, -value])


def mixed(count, alpha=1.0):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.dirichlet(np.full(3, alpha), (count, 1))) for _ in range(2))


def distance(kept):
    """Of the last iterates from the solution, the largest over starts."""
    return max(np.abs(np.asarray(part)[:, -1] - [0.25, 0.5, 0.25]).max() for part in kept)


def test_every_sender_climbs_its_own_utility_in_its_own_policy(float64):
    game = generators.aligned()
    payoffs = oracle.from_game(game)._replace(
        v=jnp.asarray(np.random.default_rng(1).random((2, 2, 2)))
    )
    profile = tuple(jnp.asarray(part[0]) for part in dirichlet(game, np.random.default_rng(2), 1))
    values = jax.jit(lambda at: oracle.utilities(payoffs, at))
    field = jax.jit(lambda at: search.own_gradients(values, at))(profile)
    for sender, state, signal in itertools.product(range(2), repeat=3):
        shift = np.zeros((2, 2))
        shift[state, signal] = 1e-6
        ends = [
            values((*profile[:sender], profile[sender] + sign * shift, *profile[sender + 1 :]))
            for sign in (1, -1)
        ]
        slope = (ends[0][sender] - ends[1][sender]) / 2e-6
        assert abs(float(field[sender][state, signal] - slope)) < 1e-8


@pytest.mark.parametrize(("kind", "parametrisation"), COMBINATIONS)
def test_iterates_stay_on_the_simplices_from_any_start(kind, parametrisation):
    chosen = Search(kind, parametrisation, 0.5, 60, 4)
    starts = tuple(part.astype(jnp.float32) for part in mixed(6, alpha=0.2))
    starts = tuple(part.at[0, 0].set(jnp.eye(3)[1]) for part in starts)  # a deterministic one
    kept = jax.jit(lambda starts: search.trajectories(zero_sum, starts, chosen))(starts)
    for part in kept:
        assert part.shape == (6, 4, 1, 3)
        assert np.all(part >= 0)
        np.testing.assert_allclose(part.sum(-1), 1, atol=1e-5)
    moved = max(np.abs(np.asarray(a)[:, -1] - b).max() for a, b in zip(kept, starts, strict=True))
    assert moved > 0.1


@pytest.mark.parametrize("parametrisation", ["projection", "entropy"])
def test_looking_ahead_solves_the_game_that_simultaneous_steps_circle(float64, parametrisation):
    def last(kind):
        chosen = Search(kind, parametrisation, 0.3, 3000, 3)
        return distance(jax.jit(lambda s: search.trajectories(zero_sum, s, chosen))(mixed(3)))

    assert last("extragradient") < 0.02
    assert last("simultaneous") > 0.1


def test_kept_iterates_are_equally_spaced_and_end_with_the_last(float64):
    def run(kept):
        chosen = Search("extragradient", "softmax", 0.3, 12, kept)
        return jax.jit(lambda s: search.trajectories(zero_sum, s, chosen))(mixed(2))

    thin, full = run(3), run(12)
    for a, b in zip(thin, full, strict=True):
        np.testing.assert_allclose(a, b[:, 3::4], atol=1e-14)


def test_an_extragradient_step_on_logits_is_the_formula(float64):
    """One step by hand: logits, the chain rule through the softmax, half step, full step."""
    start = tuple(part[0] for part in mixed(1))
    eta, policies = 0.3, [np.asarray(part[0]) for part in start]

    def ascent(logits):
        x, y = (np.exp(part) / np.exp(part).sum() for part in logits)
        raw = (M @ y, -(M.T @ x))
        return [p * (g - p @ g) for p, g in zip((x, y), raw, strict=True)]

    logits = [np.log(part) for part in policies]
    half = [z + eta * g for z, g in zip(logits, ascent(logits), strict=True)]
    new = [z + eta * g for z, g in zip(logits, ascent(half), strict=True)]
    chosen = Search("extragradient", "softmax", eta, 1, 1)
    found = jax.jit(lambda start: search.trajectory(zero_sum, start, chosen))(start)
    for part, z in zip(found, new, strict=True):
        np.testing.assert_allclose(part[0, 0], np.exp(z) / np.exp(z).sum(), atol=1e-14)


def test_the_step_is_told_to_the_utilities(float64):
    """Utilities that are the step times the first probability: the field grows with the step."""

    def growing(profile, step):
        return (step * profile[0][0, 0])[None]

    chosen = Search("simultaneous", "entropy", 0.1, 4, 4)
    start = (jnp.full((1, 2), 0.5),)
    kept = jax.jit(lambda start: search.trajectory(growing, start, chosen))(start)
    kept = np.asarray(kept[0])[:, 0]
    odds = np.log(kept[:, 0] / kept[:, 1])
    np.testing.assert_allclose(odds, 0.1 * np.cumsum([0, 1, 2, 3]), atol=1e-12)


@pytest.fixture(scope="module")
def learned():
    """Two untrained networks and starts for them."""
    network = Network("dnl", 2, (2, 2), 12, 8, 4, piece="multilinear", ste=True, drop_last=True)
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.jit(jax.vmap(lambda key: model.init(key, network)))(keys)
    rng = np.random.default_rng(3)
    starts = tuple(jnp.asarray(rng.dirichlet(np.ones(2), (2, 5, 2)), jnp.float32) for _ in range(2))
    return network, params, starts


def test_networks_and_starts_are_one_program(learned):
    network, params, starts = learned
    chosen = Search(steps=20, kept=4)

    def run(params, starts, scale=None):
        return search.trajectories(search.learned(params, network, scale), starts, chosen)

    both = jax.jit(jax.vmap(run))(params, starts)
    assert [part.shape for part in both] == [(2, 5, 4, 2, 2)] * 2
    one = jax.jit(run)(*jax.tree.map(lambda part: part[1], (params, starts)))
    for together, alone in zip(both, one, strict=True):
        np.testing.assert_allclose(together[1], alone, atol=1e-4)
    again = jax.jit(jax.vmap(run))(params, starts)
    assert all(np.array_equal(a, b) for a, b in zip(both, again, strict=True))


def test_the_field_of_a_network_is_its_plain_gradient_times_the_scale(learned):
    network, params, starts = learned
    params, profile = jax.tree.map(lambda part: part[0], params), tuple(p[0, 0] for p in starts)
    scale = jnp.asarray([2.0, 3.0])
    values = search.learned(params, network, scale)
    start = jnp.zeros((), jnp.int32)
    field = jax.jit(lambda p: search.own_gradients(lambda at: values(at, start), p))(profile)
    slope = jax.jit(jax.jacobian(lambda x: model.apply(params, network, x, train=False)))(
        model.flatten(profile, True)
    )
    # Inputs leave out the last probability of a row: no utility depends on it.
    np.testing.assert_allclose(field[0][:, 0], 2 * slope[0, :2], rtol=1e-4)
    np.testing.assert_allclose(field[1][:, 0], 3 * slope[1, 2:], rtol=1e-4)
    np.testing.assert_array_equal(field[0][:, 1], 0)


def test_the_best_iterate_has_the_largest_true_sum_in_spans(float64):
    rng = np.random.default_rng(10)
    v = rng.random((2, 2, 2)) * np.array([1, 10])[:, None, None]  # the second in other units
    game = generators.aligned()._replace(v=v)
    kept = dirichlet(game, rng, 30)
    values = outcome(game, kept).utilities
    spans = (game.v.max(-1) - game.v.min(-1)) @ game.mu
    best = jax.jit(lambda kept: search.best_iterate(oracle.from_game(game), kept))
    place, found = best(tuple(map(jnp.asarray, kept)))
    np.testing.assert_allclose(found, values, atol=1e-12)
    total = (values / spans).sum(1)
    # Uninformative profiles of one outcome differ in rounding: the earliest of the equal is meant.
    assert int(place) == np.argmax(total >= total.max() - 1e-9)
    assert (total.max() - total)[np.argmax(values.sum(1))] > 1e-3
    reverse = tuple(jnp.asarray(part[::-1].copy()) for part in kept)
    last = int(best(reverse)[0])
    assert last == np.argmax(total[::-1] >= total.max() - 1e-9) != 29 - int(place)


def test_rows_in_single_precision_become_exact_probabilities():
    rows = jax.nn.softmax(
        jnp.asarray(np.random.default_rng(5).normal(size=(50, 3, 7)), jnp.float32)
    )
    (found,) = search.exact_rows((rows,))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-15)
    np.testing.assert_allclose(found, rows, atol=1e-6)


def test_a_search_on_the_softened_game_beats_full_revelation_on_aligned_prosecutors():
    from rflib.methods.persuasion.baselines import annealed

    game = generators.aligned()
    payoffs, chosen = oracle.from_game(game, jnp.float32), Search(steps=300)
    starts = dirichlet(game, np.random.default_rng(6), 40)
    starts = tuple(jnp.asarray(part, jnp.float32) for part in starts)
    values = annealed(payoffs, chosen.steps)
    kept = search.exact_rows(
        jax.jit(lambda starts: search.trajectories(values, starts, chosen))(starts)
    )
    with jax.enable_x64(True):
        exact = oracle.from_game(game)
        place, truth = jax.jit(jax.vmap(lambda k: search.best_iterate(exact, k)))(
            tuple(map(jnp.asarray, kept))
        )
    best = np.asarray(truth)[np.arange(40), np.asarray(place)]
    assert np.all(best <= 0.6 + 1e-9)
    assert (best > full_revelation(game).utilities).all(-1).mean() > 0.5


def test_settings_out_of_range_are_named():
    for changes, message in (
        ({"kind": "adam"}, "kind='adam'"),
        ({"kind": "mirror_prox"}, "needs parametrisation='projection' or 'entropy'"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"steps": 120, "kept": 50}, "steps=120 must be a multiple of kept=50"),
    ):
        with pytest.raises(UserError, match=message):
            Search(**changes)
