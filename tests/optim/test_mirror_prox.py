"""Mirror-prox and its relatives on matrix games, boxes and simplices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.core.errors import UserError
from rflib.optim.extragradient import extragradient
from rflib.optim.mirror_prox import (
    Geometry,
    box,
    mirror_descent,
    mirror_prox,
    optimistic_mirror_descent,
)

# x maximises xᵀ M y, y minimises it; both mix with (1/4, 1/2, 1/4) at the equilibrium.
M = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])
VALUE = np.array([0.25, 0.5, 0.25])


def field(z):
    x, y = z
    return -(jnp.asarray(M) @ y), jnp.asarray(M).T @ x


def gap(z):
    x, y = map(np.asarray, z)
    return (M @ y).max() - (M.T @ x).min()


def states(optimiser, steps):
    """The iterates and optimiser states after each number of steps in `steps`."""
    z = (jnp.asarray([0.6, 0.3, 0.1]), jnp.asarray([0.2, 0.2, 0.6]))
    carry, done, found = (z, optimiser.init(z)), 0, []

    @jax.jit
    def advance(carry, count):
        return jax.lax.fori_loop(0, count, lambda _, c: optimiser.step(*c, field), carry)

    for step in steps:
        carry = advance(carry, step - done)
        done = step
        found.append(carry)
    return found


def test_entropy_reaches_the_equilibrium_and_its_average_falls_as_one_over_k(float64):
    found = states(mirror_prox(0.1, "entropy"), (100, 1000, 5000))
    expected = (0.0926, 0.01278, 0.00254)
    digits = (5e-5, 5e-6, 5e-6)
    for (_, state), value, digit in zip(found, expected, digits, strict=True):
        assert abs(gap(state.average) - value) < digit
    last = found[-1][0]
    assert gap(last) < 1e-5
    np.testing.assert_allclose(last, [VALUE, VALUE], atol=1e-5)


def test_euclidean_projection_reaches_the_equilibrium(float64):
    ((last, _),) = states(mirror_prox(0.1, "euclidean"), (1000,))
    assert gap(last) < 1e-10
    np.testing.assert_allclose(last, [VALUE, VALUE], atol=1e-10)


@pytest.mark.parametrize("geometry", ["euclidean", "entropy"])
def test_optimistic_steps_converge_where_simultaneous_ones_do_not(float64, geometry):
    ((near, _),) = states(optimistic_mirror_descent(0.1, geometry), (5000,))
    ((far, _),) = states(mirror_descent(0.1, geometry), (5000,))
    assert gap(near) < 1e-3 < 0.1 < gap(far)


def test_optimistic_steps_are_the_recursion_written_out(float64):
    optimiser = optimistic_mirror_descent(0.1, Geometry(lambda x, d: x + d))
    z = (jnp.asarray([0.6, 0.3, 0.1]), jnp.asarray([0.2, 0.2, 0.6]))
    state, ours, old = optimiser.init(z), z, field(z)
    for _ in range(4):
        ours, state = optimiser.step(ours, state, field)
        now = field(z)
        z = tuple(a - 0.1 * (2 * f - g) for a, f, g in zip(z, now, old, strict=True))
        old = now
    np.testing.assert_allclose(ours, z, atol=1e-14)


def test_without_constraints_mirror_prox_is_extragradient(float64):
    z = (jnp.asarray([0.6, 0.3, 0.1]), jnp.asarray([0.2, 0.2, 0.6]))
    free, plain = mirror_prox(0.1, Geometry(lambda x, d: x + d)), extragradient(optax.sgd(0.1))
    a, _ = free.step(z, free.init(z), field)
    b, _ = plain.step(z, plain.init(z), field)
    np.testing.assert_allclose(a, b, atol=1e-15)


def test_the_box_holds_a_bilinear_game_at_its_saddle(float64):
    """min_x max_y (x - 0.2)(y - 0.7) on the unit box."""

    def turn(z):
        return {"x": z["y"] - 0.7, "y": -(z["x"] - 0.2)}

    optimiser = mirror_prox(0.5, "box")
    z = {"x": jnp.asarray([1.0, 0.0]), "y": jnp.asarray([0.0, 1.0])}
    carry = (z, optimiser.init(z))
    z, _ = jax.jit(lambda c: jax.lax.fori_loop(0, 400, lambda _, c: optimiser.step(*c, turn), c))(
        carry
    )
    np.testing.assert_allclose(z["x"], 0.2, atol=1e-12)
    np.testing.assert_allclose(z["y"], 0.7, atol=1e-12)
    np.testing.assert_array_equal(
        box(-1, 2).move(jnp.asarray([0.0, 0.0]), jnp.asarray([-5, 5.0])), [-1, 2]
    )


def test_a_schedule_counts_steps_and_weighs_the_average(float64):
    seen = mirror_prox(lambda count: 0.1 / (1 + count), Geometry(lambda x, d: x + d))
    z = jnp.asarray([1.0])
    state = seen.init(z)
    halves, rates = [], (0.1, 0.05)
    for rate in rates:
        halves.append(float(z[0]) * (1 - rate))
        z, state = seen.step(z, state, lambda z: z)
    np.testing.assert_allclose(state.average[0], np.average(halves, weights=rates), rtol=1e-14)


def test_an_unknown_geometry_and_an_empty_box_are_named():
    with pytest.raises(UserError, match=r"geometry='entrpy'.*did you mean 'entropy'"):
        mirror_prox(0.1, "entrpy")
    with pytest.raises(UserError, match=r"low=1\.0 must be below high=1\.0"):
        box(1.0, 1.0)
