"""Extra-gradient, optimistic and simultaneous steps against their known rates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.optim.extragradient import extragradient, optimistic, simultaneous


def bilinear(z):
    """min_x max_y x y: the gradient of x's loss and minus the gradient of y's utility."""
    return {"x": z["y"], "y": -z["x"]}


def run(optimiser, start, field, steps):
    def body(carry, _):
        return optimiser.step(*carry, field), None

    @jax.jit
    def whole(start):
        return jax.lax.scan(body, (start, optimiser.init(start)), None, steps)[0][0]

    return whole(start)


def start():
    return {"x": jnp.ones(()), "y": jnp.zeros(())}


def norm(z):
    return float(np.hypot(z["x"], z["y"]))


@pytest.mark.parametrize(
    ("optimiser", "expected", "digits"),
    [
        (extragradient(optax.sgd(0.3)), 0.0139475963, 1e-10),
        (simultaneous(optax.sgd(0.3)), 74.35752, 5e-6),
        (optimistic(0.3), 0.0057980, 5e-8),
    ],
    ids=["extragradient", "simultaneous", "optimistic"],
)
def test_norms_after_100_steps_on_the_bilinear_game(float64, optimiser, expected, digits):
    assert abs(norm(run(optimiser, start(), bilinear, 100)) - expected) < digits


@pytest.mark.parametrize("eta", [0.05, 0.3, 0.8])
def test_extragradient_shrinks_the_bilinear_game_as_the_closed_form_says(float64, eta):
    found = norm(run(extragradient(optax.sgd(eta)), start(), bilinear, 60))
    assert abs(found - (1 - eta**2 + eta**4) ** 30) < 1e-10


def test_simultaneous_steps_grow_as_the_closed_form_says(float64):
    found = norm(run(simultaneous(optax.sgd(0.2)), start(), bilinear, 60))
    assert abs(found / (1 + 0.04) ** 30 - 1) < 1e-12


def test_optimistic_is_optax_and_has_the_larger_root_as_its_rate(float64):
    eta = 0.3
    ours = run(optimistic(eta), start(), bilinear, 100)
    transform = optax.optimistic_gradient_descent(eta)
    z, state = start(), transform.init(start())
    update = jax.jit(transform.update)
    for _ in range(100):
        updates, state = update(bilinear(z), state)
        z = optax.apply_updates(z, updates)
    assert abs(norm(ours) - norm(z)) < 1e-12
    longer = norm(run(optimistic(eta), start(), bilinear, 140))
    root = np.abs(np.roots([1, -(1 - 2j * eta), -1j * eta])).max()
    assert abs((longer / norm(ours)) ** (1 / 40) - root) < 1e-6


def monotone_fields(count, size=6):
    """F(z) = Lz + b, with the moduli mu and Lip of each and its zero."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(count, size, size))
    turn = rng.normal(size=(count, size, size))
    matrix = (
        root @ root.transpose(0, 2, 1) / size + 0.3 * np.eye(size) + turn - np.swapaxes(turn, 1, 2)
    )
    shift = rng.normal(size=(count, size))
    zero = -np.linalg.solve(matrix, shift[..., None])[..., 0]
    symmetric = (matrix + matrix.transpose(0, 2, 1)) / 2
    modulus = np.linalg.eigvalsh(symmetric)[:, 0]
    return matrix, shift, zero, modulus, np.linalg.norm(matrix, 2, (1, 2))


def test_extragradient_keeps_the_strongly_monotone_bound(float64):
    matrix, shift, zero, modulus, lipschitz = monotone_fields(20)

    @jax.jit
    @jax.vmap
    def distances(matrix, shift, zero, lipschitz):
        optimiser = extragradient(optax.sgd(1 / (4 * lipschitz)))

        def body(carry, _):
            carry = optimiser.step(*carry, lambda z: matrix @ z + shift)
            return carry, jnp.sum((carry[0] - zero) ** 2)

        z = jnp.zeros(6)
        return jnp.sum(zero**2), jax.lax.scan(body, (z, optimiser.init(z)), None, 200)[1]

    first, found = distances(matrix, shift, zero, lipschitz)
    powers = (1 - modulus / (4 * lipschitz))[:, None] ** np.arange(1, 201)
    assert np.all(np.asarray(found) <= np.asarray(first)[:, None] * powers)
    assert np.all(np.asarray(found)[:, -1] < 0.5 * np.asarray(first))


def test_the_inner_state_advances_once_a_step_or_twice_with_both(float64):
    calls = []

    def field(z):
        calls.append(1)
        return bilinear(z)

    for both, count in ((False, 1), (True, 2)):
        optimiser = extragradient(optax.adam(0.1), both=both)
        state = optimiser.init(start())
        calls.clear()
        _, state = optimiser.step(start(), state, field)
        assert len(calls) == 2
        assert int(optax.tree.get(state, "count")) == count
    # With both, Adam's first moment holds both gradients: F(1, 0) = (0, -1) at the start, and
    # F(half) with half = (1, 0.1), as Adam's first step is its rate in the gradient's direction.
    moment = optax.tree.get(state, "mu")
    np.testing.assert_allclose(moment["x"], 0.9 * 0.0 + 0.1 * 0.1, rtol=1e-6)
    np.testing.assert_allclose(moment["y"], 0.9 * -0.1 + 0.1 * -1.0, rtol=1e-6)


def test_single_call_methods_evaluate_the_field_once():
    for optimiser in (optimistic(0.1), simultaneous(optax.sgd(0.1))):
        calls = []
        z = start()
        optimiser.step(z, optimiser.init(z), lambda z, calls=calls: calls.append(1) or bilinear(z))
        assert len(calls) == 1


def test_many_starts_are_one_vmap_and_each_is_its_own_run():
    optimiser = extragradient(optax.sgd(0.3))
    starts = {"x": jnp.array([1.0, -2.0, 0.5]), "y": jnp.array([0.0, 1.0, 3.0])}
    together = jax.vmap(lambda z: run(optimiser, z, bilinear, 20))(starts)
    alone = run(optimiser, jax.tree.map(lambda x: x[1], starts), bilinear, 20)
    np.testing.assert_allclose(together["x"][1], alone["x"], rtol=1e-6)
    np.testing.assert_allclose(together["y"][1], alone["y"], rtol=1e-6)
