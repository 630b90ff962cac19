"""The three utility networks: sizes, pieces, jumps and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.persuasion import losses, model
from rflib.methods.persuasion.model import Network
from rflib.methods.persuasion.oracle import Payoffs, outcome

init = jax.jit(model.init, static_argnums=1)
predict = jax.jit(losses.predict, static_argnums=(1, 3))
loss = jax.jit(losses.loss, static_argnums=1)
sides = jax.jit(jax.vmap(model.pattern, (None, 0)))

SMALL = {"states": 2, "signals": (2, 2), "hidden": 12, "width": 8, "features": 4}
ALL = [("relu", "tanh"), ("delu", "tanh"), *(("dnl", piece) for piece in model.PIECES)]


def small(kind="dnl", piece="tanh", **changes):
    return Network(kind, piece=piece, **(SMALL | changes))


def profiles(rng, count, network, alpha=1.0):
    rows = [rng.dirichlet(np.full(s, alpha), (count, network.states)) for s in network.signals]
    return tuple(map(jnp.asarray, rows))


def inputs(rng, count, network):
    return model.flatten(profiles(rng, count, network), network.drop_last)


@pytest.mark.parametrize(
    ("kind", "piece", "at_8", "at_18"),
    [
        ("relu", "tanh", 4866, 5506),
        ("delu", "tanh", 4994, 5634),
        ("dnl", "tanh", 17330, 28370),
        ("dnl", "multilinear", 17474, 28514),
        ("dnl", "linear", 6034, 7974),
    ],
)
def test_parameter_counts(kind, piece, at_8, at_18):
    for states, signals, inputs, count in ((2, (2, 2), 8, at_8), (3, (3, 3), 18, at_18)):
        network = Network(kind, states, signals, piece=piece)
        assert network.inputs == inputs
        assert model.parameter_count(network) == count
        params = jax.eval_shape(lambda key, n=network: model.init(key, n), jax.random.key(0))
        assert trees.size(params) == count
    own = Network(kind, 2, (2, 2), piece=piece, per_sender=True)
    single = Network(kind, 2, (2, 2), piece=piece)
    assert model.parameter_count(own) > model.parameter_count(single)


@pytest.mark.parametrize("kind", ["relu", "delu"])
def test_matching_finds_the_nearest_count(kind):
    for count in (4866, 17330, 28370):
        network = Network(kind, 2, (2, 2))
        chosen = model.match_parameters(network, count)
        assert chosen.hidden == chosen.width
        distances = {
            size: abs(model.parameter_count(Network(kind, 2, (2, 2), size, size)) - count)
            for size in range(1, 200)
        }
        assert distances[chosen.hidden] == min(distances.values())


@pytest.mark.parametrize("drop_last", [False, True])
def test_flatten_and_unflatten_are_inverse(drop_last):
    network = Network("relu", 3, (2, 1, 4), drop_last=drop_last)
    profile = profiles(np.random.default_rng(0), 5, network)
    x = model.flatten(profile, drop_last)
    assert x.shape == (5, network.inputs) == (5, 12 if drop_last else 21)
    for found, policy in zip(model.unflatten(network, x), profile, strict=True):
        np.testing.assert_allclose(found, policy, atol=1e-6)
    np.testing.assert_array_equal(x[0, : 1 if drop_last else 2], profile[0][0, 0, : 2 - drop_last])


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_hyperplane_of_a_new_network_cuts_the_polytope_of_profiles(drop_last):
    network = Network("delu", 3, (3, 2), drop_last=drop_last, hidden=200, width=4)
    params = init(jax.random.key(0), network)
    # z is affine and the profile a product of simplices: its extremes over the polytope are sums
    # of the extremes of its rows over one-hot rows.
    low, high = params["b0"], params["b0"]
    for weight in model.unflatten(network, params["W0"].T):
        weight = weight.at[..., -1].set(0) if drop_last else weight
        low, high = low + weight.min(-1).sum(-1), high + weight.max(-1).sum(-1)
    assert np.all(low < 0)
    assert np.all(high > 0)


def test_initial_weights_have_the_stated_deviations():
    network = Network("dnl", 3, (3, 3), piece="multilinear", hidden=256, width=128)
    params = init(jax.random.key(1), network)
    for name, fan_in, scale in (("W0", 18, 1), ("V1", 256, 1), ("V2", 128, 0.3), ("G", 256, 1)):
        assert abs(np.std(params[name]) / (scale * np.sqrt(2 / fan_in)) - 1) < 0.06, name
    a = 18 * 16
    np.testing.assert_array_equal(params["c2"][a : a + 32], 1)
    assert float(jnp.sum(params["c2"])) == 32
    np.testing.assert_array_equal(params["c1"], 0)


@pytest.mark.parametrize(("kind", "piece"), [("relu", "tanh"), ("dnl", "multilinear")])
def test_networks_of_many_games_and_seeds_are_one_vmap(kind, piece):
    network = small(kind, piece)
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    many = jax.jit(jax.vmap(jax.vmap(lambda key: model.init(key, network))))(keys)
    one = jax.jit(lambda key: model.init(key, network))(keys[1, 2])
    for name, value in many.items():
        np.testing.assert_array_equal(value[1, 2], one[name], err_msg=name)
    x = inputs(np.random.default_rng(0), 4, network)
    together = jax.jit(jax.vmap(jax.vmap(lambda p: losses.predict(p, network, x))))
    both = together(many)
    assert both.shape == (2, 3, 4, 2)
    np.testing.assert_allclose(both[1, 2], predict(one, network, x), atol=1e-5)


def test_per_sender_networks_share_nothing():
    network = small(per_sender=True)
    params = init(jax.random.key(0), network)
    x = inputs(np.random.default_rng(0), 3, network)
    grads = jax.jit(jax.grad(lambda p: losses.predict(p, network, x)[:, 1].sum()))(params)
    for name, value in grads.items():
        np.testing.assert_array_equal(value[0], 0, err_msg=name)
        assert np.any(value[1] != 0), name
    alone = {name: value[1] for name, value in params.items()}
    alone_on = jax.jit(jax.vmap(lambda x: model._apply_one(alone, network, x, False)[0]))
    np.testing.assert_allclose(
        predict(params, network, x)[:, 1],
        alone_on(x),
        rtol=1e-6,
    )


def segments_in_one_pattern(params, network, count=400):
    """Ends of short segments on which no unit of the first layer changes its side."""
    rng = np.random.default_rng(0)
    start = inputs(rng, count, network)
    end = start + 0.1 * (inputs(rng, count, network) - start)
    same = np.all(np.asarray(sides(params, start)) == sides(params, end), -1)
    assert same.sum() > 20
    return start[same], end[same]


def test_inside_a_pattern_delu_is_affine_and_the_other_pieces_are_not_all():
    bends = {}
    for kind, piece in ALL[1:]:
        network = small(kind, piece)
        params = init(jax.random.key(2), network)
        params = {name: 3 * np.asarray(value) for name, value in params.items()}
        start, end = segments_in_one_pattern(params, network)
        middle = (np.asarray(start) + np.asarray(end)) / 2
        values = [np.asarray(predict(params, network, x)) for x in (start, middle, end)]
        bends[kind, piece] = np.abs(values[0] - 2 * values[1] + values[2]).max()
    assert bends["delu", "tanh"] < 1e-5
    assert bends["dnl", "linear"] < 1e-4  # of values up to 100
    assert bends["dnl", "tanh"] > 1e-3
    assert bends["dnl", "multilinear"] > 1e-3


def test_multilinear_pieces_are_affine_in_each_policy_inside_a_pattern(float64):
    network = small(piece="multilinear")
    params = init(jax.random.key(2), network)
    params = jax.tree.map(lambda value: value.astype(jnp.float64), params)
    start, end = segments_in_one_pattern(params, network)
    # Moving the first sender alone stays in the pattern where both ends of that move are in it.
    moved = jnp.concatenate([end[:, :4], start[:, 4:]], -1)
    same = jnp.all(sides(params, start) == sides(params, moved), -1)
    values = [predict(params, network, x) for x in (start, (start + moved) / 2, moved)]
    bend = jnp.where(same[:, None], values[0] - 2 * values[1] + values[2], 0)
    assert np.abs(bend).max() < 1e-12


def test_a_multilinear_piece_holds_a_region_of_a_game_exactly():
    rng = np.random.default_rng(3)
    mu, u, v = np.array([0.6, 0.4]), np.eye(2), rng.random((2, 2, 2))
    payoffs = Payoffs(*(jnp.asarray(x, jnp.float32) for x in (mu, u, v)))
    network = Network("dnl", 2, (2, 2), 4, 4, features=8, piece="multilinear")
    evaluate = jax.jit(jax.vmap(lambda *profile: outcome(payoffs, profile)))
    tried = profiles(rng, 500, network, alpha=0.5)
    place = int(np.argmax(np.min(evaluate(*tried).margins, -1)))  # well inside a region
    centre = tuple(policy[place] for policy in tried)
    actions = np.asarray(evaluate(*tried).actions[place]).reshape(2, 2)
    assert len(set(actions.ravel())) == 2
    a, c = np.zeros((8, 8)), np.zeros((8, 2))
    for feature, (w, first, second) in enumerate(itertools.product(range(2), repeat=3)):
        a[2 * w + first, feature] = 1
        a[4 + 2 * w + second, feature] = 1
        c[feature] = mu[w] * v[:, w, actions[first, second]]
    params = init(jax.random.key(0), network)
    params["V2"] = jnp.zeros_like(params["V2"])
    params["G"] = jnp.zeros_like(params["G"])
    built = np.concatenate([a.ravel(), np.zeros(16), c.ravel(), np.zeros(2)])
    params["c2"] = jnp.asarray(built, jnp.float32)
    near = profiles(rng, 500, network)
    near = tuple(0.7 * c[None] + 0.3 * q for c, q in zip(centre, near, strict=True))
    truth = evaluate(*near)
    inside = np.all(np.asarray(truth.actions) == actions.ravel(), -1)
    assert inside.sum() > 50
    found = predict(params, network, model.flatten(near))
    assert np.abs(found - truth.utilities)[inside].max() < 1e-6


def step_network(kind):
    """One input x in [0, 1], one unit: the output is 1[x > 0.4]."""
    network = Network(kind, 1, (2,), 1, 1, piece="linear", drop_last=True)
    params = jax.tree.map(jnp.zeros_like, init(jax.random.key(0), network))
    params |= {"W0": jnp.ones((1, 1)), "b0": jnp.full(1, -0.4), "V1": jnp.ones((1, 1))}
    params["V2"] = params["V2"].at[0, -1].set(0.5 / np.tanh(1))
    params["c2"] = params["c2"].at[-1].set(0.5)
    return network, params


@pytest.mark.parametrize("kind", ["delu", "dnl"])
def test_one_unit_makes_a_step(kind):
    network, params = step_network(kind)
    x = jnp.linspace(0, 1, 101)[:, None]
    np.testing.assert_allclose(predict(params, network, x)[:, 0], x[:, 0] > 0.4, atol=1e-6)


def test_a_lipschitz_network_must_miss_a_step_where_a_discontinuous_one_does_not():
    distance = 0.02
    x = jnp.asarray([[0.4 - distance / 2], [0.4 + distance / 2]])
    network = Network("relu", 1, (2,), 16, 16, drop_last=True)
    for seed, size in itertools.product(range(10), (0.3, 1.0, 3.0)):
        params = init(jax.random.key(seed), network)
        params = {name: np.asarray(value) * np.float32(size) for name, value in params.items()}
        bound = np.prod([np.linalg.norm(params[name], 2) for name in ("W0", "W1", "W2")])
        error = np.abs(predict(params, network, x)[:, 0] - jnp.asarray([0.0, 1.0])).max()
        assert error >= 0.5 - bound * distance / 2 - 1e-5
    network, params = step_network("dnl")
    assert np.abs(predict(params, network, x)[:, 0] - jnp.asarray([0.0, 1.0])).max() < 1e-6


def trunk_gradient(network, params):
    rng = np.random.default_rng(0)
    x = inputs(rng, 32, network)
    targets = jnp.asarray(rng.normal(size=(32, network.senders)), x.dtype)
    grads = jax.jit(jax.grad(losses.loss), static_argnums=1)(params, network, x, targets)
    return float(jnp.linalg.norm(grads["W0"]) + jnp.linalg.norm(grads["b0"]))


@pytest.mark.parametrize(
    ("kind", "piece", "path"),
    [
        ("dnl", "tanh", "B"),
        ("dnl", "multilinear", "G"),
        ("dnl", "linear", "G"),
        ("delu", "tanh", "w"),
    ],
)
def test_the_trunk_learns_through_h_or_the_straight_through_estimator_only(kind, piece, path):
    network = small(kind, piece)
    params = init(jax.random.key(0), network)
    assert trunk_gradient(network, params) > 1e-3
    cut = params | {path: jnp.zeros_like(params[path])}
    assert trunk_gradient(network, cut) == 0
    assert trunk_gradient(small(kind, piece, ste=True), cut) > 1e-3


def test_the_straight_through_estimator_leaves_values_and_search_gradients_alone():
    network, soft = small(), small(ste=True)
    params = init(jax.random.key(0), network)
    x = inputs(np.random.default_rng(0), 8, network)
    np.testing.assert_array_equal(
        predict(params, soft, x, train=True), predict(params, network, x, train=True)
    )
    plain, used, trained = (
        jax.jit(jax.grad(lambda x, net=net, on=train: losses.predict(params, net, x, on).sum()))(x)
        for net, train in ((network, False), (soft, False), (soft, True))
    )
    np.testing.assert_array_equal(plain, used)
    assert np.abs(trained - plain).max() > 1e-3


def test_the_straight_through_slope_is_that_of_the_tempered_sigmoid(float64):
    z = jnp.asarray([-0.2, -0.01, 0.0, 0.05])
    slope = jax.vmap(jax.grad(lambda z: model.straight_through(z, 0.1)))(z)
    gate = 1 / (1 + np.exp(-np.asarray(z) / 0.1))
    np.testing.assert_allclose(slope, gate * (1 - gate) / 0.1, rtol=1e-12)
    np.testing.assert_array_equal(model.straight_through(z, 0.1), [0, 0, 0, 1])


def central_difference(network, dtype, step):
    """Relative error of the jitted gradient along random directions that keep every pattern."""
    params = init(jax.random.key(4), network)
    params = jax.tree.map(lambda value: np.asarray(value, dtype), params)
    rng = np.random.default_rng(5)
    x = inputs(rng, 8, network).astype(dtype)
    targets = jnp.asarray(rng.normal(size=(8, network.senders)), dtype)
    grad = jax.jit(jax.grad(losses.loss), static_argnums=1)(params, network, x, targets)
    errors = []
    while len(errors) < 5:
        # Half of each direction along the gradient: a slope near 0 would only compare rounding.
        noise = {name: rng.normal(size=value.shape) for name, value in params.items()}
        length = np.sqrt(sum(np.sum(part**2) for part in noise.values()))
        size = np.sqrt(sum(np.sum(np.asarray(part, float) ** 2) for part in grad.values()))
        along = {name: noise[name] / length + np.asarray(grad[name]) / size for name in noise}
        ends = [
            {name: (params[name] + sign * step * along[name]).astype(dtype) for name in params}
            for sign in (1, -1)
        ]
        if not np.array_equal(sides(ends[0], x), sides(ends[1], x)):
            continue
        up, down = (float(loss(end, network, x, targets)) for end in ends)
        numeric = (up - down) / (2 * step)
        exact = sum(float(np.sum(np.asarray(grad[name], float) * along[name])) for name in params)
        errors.append(abs(numeric / exact - 1))
    return max(errors)


@pytest.mark.parametrize(("kind", "piece"), [("dnl", "tanh"), ("dnl", "multilinear")])
def test_gradients_are_central_differences_inside_a_pattern(kind, piece):
    network = small(kind, piece)
    assert central_difference(network, jnp.float32, 1e-3) < 1e-3
    with jax.enable_x64(True):
        assert central_difference(network, jnp.float64, 1e-6) < 1e-6


def test_fields_out_of_range_are_named():
    for changes, message in (
        ({"kind": "mlp"}, "kind='mlp'"),
        ({"piece": "quadratic"}, "piece='quadratic'"),
        ({"hidden": 0}, "hidden=0"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"signals": (1, 1), "drop_last": True}, r"signals=\(1, 1\)"),
    ):
        with pytest.raises(UserError, match=message):
            small(**changes)
