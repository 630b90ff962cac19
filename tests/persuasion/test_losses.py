"""Standardised targets, the loss, and that training by it is reproducible."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.core import trees
from rflib.methods.persuasion import generators, losses, metrics, model, sampling
from rflib.methods.persuasion.model import Network

NETS, STEPS, BATCH = 2, 400, 128


@pytest.fixture(scope="module")
def problem():
    """The aligned prosecutors' game: training and test profiles, targets, a small DNL."""
    game = generators.aligned()
    train, test = sampling.sample(game, 4000, 0), sampling.sample(game, 1000, 1)
    scale = losses.normaliser(train.utilities)  # NumPy in, float32 out
    inputs = [model.flatten(samples.profile) for samples in (train, test)]
    targets = losses.standardise(scale, train.utilities)
    return Network("dnl", 2, (2, 2), 24, 16, 6), inputs, targets, scale, test


def train_program(network):
    """`NETS` networks trained side by side; the rows of every batch are an argument."""
    rate = optax.cosine_decay_schedule(3e-3, STEPS)
    optimiser = optax.adam(rate)

    def step(carry, rows, inputs, targets):
        params, state = carry
        slope = jax.vmap(jax.value_and_grad(losses.loss), (0, None, None, None))
        value, grads = slope(params, network, inputs[rows], targets[rows])
        updates, state = optimiser.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    def train(keys, rows, inputs, targets):
        params = jax.vmap(lambda key: model.init(key, network))(keys)
        start = (params, optimiser.init(params))
        (params, _), values = jax.lax.scan(
            lambda carry, now: step(carry, now, inputs, targets), start, rows
        )
        return params, values

    return jax.jit(train)


@pytest.fixture(scope="module")
def trained(problem):
    network, inputs, targets, _, _ = problem
    program = train_program(network)
    keys = jax.random.split(jax.random.key(0), NETS)
    rows = np.random.default_rng(0).integers(0, len(targets), (STEPS, BATCH))
    arguments = (keys, jnp.asarray(rows), inputs[0], targets)
    return program(*arguments), program, arguments


def test_targets_have_mean_0_and_deviation_1_and_restore_inverts(problem):
    _, _, targets, scale, _ = problem
    np.testing.assert_allclose(jnp.mean(targets, 0), 0, atol=1e-5)
    np.testing.assert_allclose(jnp.std(targets, 0), 1, rtol=1e-5)
    again = losses.standardise(scale, losses.restore(scale, targets))
    np.testing.assert_allclose(again, targets, atol=1e-5)


def test_targets_do_not_depend_on_the_units_of_utility(float64):
    utilities = jnp.asarray(np.random.default_rng(0).random((3, 100, 2)))
    targets = losses.standardise(losses.normaliser(utilities), utilities)
    moved = 7 * utilities + 3
    np.testing.assert_allclose(
        losses.standardise(losses.normaliser(moved), moved), targets, atol=1e-12
    )


def test_constant_utilities_give_zero_targets():
    constant = jnp.full((50, 2), 0.1, jnp.float32).at[:, 1].set(jnp.linspace(0, 1, 50))
    scale = losses.normaliser(constant)
    targets = losses.standardise(scale, constant)
    assert float(scale.std[0]) == 1
    np.testing.assert_allclose(targets[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(jnp.std(targets[:, 1]), 1, rtol=1e-5)


def test_the_loss_is_the_mean_square_over_profiles_and_senders(problem):
    network, inputs, targets, _, _ = problem
    params = jax.jit(model.init, static_argnums=1)(jax.random.key(0), network)
    rows = slice(0, 64)
    predict = jax.jit(losses.predict, static_argnums=1)
    predicted = np.asarray(predict(params, network, inputs[0][rows]), float)
    expected = np.mean((predicted - np.asarray(targets[rows], float)) ** 2)
    loss = jax.jit(losses.loss, static_argnums=1)
    found = loss(params, network, inputs[0][rows], targets[rows])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_training_learns_more_than_the_mean(problem, trained):
    network, inputs, _, scale, test = problem
    (params, values), _, _ = trained
    assert np.all(values[-20:].mean(0) < 0.6 * values[:5].mean(0))
    found = jax.jit(
        jax.vmap(lambda p: losses.restore(scale, losses.predict(p, network, inputs[1])))
    )
    predicted = np.asarray(found(params), np.float64)
    errors = metrics.normalised_mse(predicted, test.utilities)
    assert errors.shape == (NETS,)
    assert np.all(errors < 0.6)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(problem, trained):
    network = problem[0]
    (params, values), program, arguments = trained
    again = train_program(network)(*arguments)
    assert trees.digest(again[0]) == trees.digest(params)
    assert np.asarray(again[1]).tobytes() == np.asarray(values).tobytes()
    other = program(jax.random.split(jax.random.key(1), NETS), *arguments[1:])
    assert trees.digest(other[0]) != trees.digest(params)


def test_networks_trained_together_do_not_touch_each_other(trained):
    (params, _), program, (keys, *rest) = trained
    swapped, _ = program(keys[::-1], *rest)
    for name, value in params.items():
        np.testing.assert_allclose(swapped[name][::-1], value, atol=2e-3, err_msg=name)
