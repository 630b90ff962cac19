"""Projection on the simplex and the entropy step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.optim.simplex import entropy_step, project_simplex


def on_simplex(rows, tol):
    rows = np.asarray(rows)
    assert np.all(np.isfinite(rows))
    assert np.all(rows >= 0)
    np.testing.assert_allclose(rows.sum(-1), 1, atol=tol)


def quadratic_program(point):
    """The projection by trying every support: on it the answer is x minus one constant."""
    size, best = len(point), None
    for code in range(1, 2**size):
        support = np.array([code >> i & 1 for i in range(size)], bool)
        y = np.where(support, point - (point[support].sum() - 1) / support.sum(), 0)
        distance = np.sum((y - point) ** 2)
        if np.all(y >= 0) and (best is None or distance < best[0]):
            best = (distance, y)
    assert best is not None
    return best[1]


def test_the_projection_solves_its_quadratic_program(float64):
    points = np.random.default_rng(0).normal(size=(60, 5)) * np.array([0.1, 1, 10])[:, None, None]
    found = project_simplex(jnp.asarray(points))
    on_simplex(found, 1e-12)
    expected = np.array([[quadratic_program(point) for point in block] for block in points])
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_projection_is_idempotent_and_keeps_the_boundary(float64):
    rng = np.random.default_rng(1)
    rows = rng.dirichlet(np.full(4, 0.3), 50)
    rows[:10] = np.eye(4)[rng.integers(0, 4, 10)]
    rows[10:20, 0] = 0
    rows /= rows.sum(-1, keepdims=True)
    once = project_simplex(jnp.asarray(rows))
    np.testing.assert_allclose(once, rows, atol=1e-15)
    np.testing.assert_allclose(project_simplex(once), once, atol=1e-15)


def test_one_signal_is_certain_however_large_its_entry():
    rows = jnp.asarray([[-1e9], [0.0], [3.0]], jnp.float32)
    np.testing.assert_array_equal(project_simplex(rows), 1)
    np.testing.assert_array_equal(entropy_step(jnp.ones((3, 1)), rows), 1)


def test_a_large_point_keeps_its_differences_in_float32():
    found = project_simplex(jnp.asarray([1e6 + 0.25, 1e6, -1e6], jnp.float32))
    np.testing.assert_allclose(found, [0.625, 0.375, 0], atol=1e-6)


def test_the_derivative_of_the_projection_is_that_of_its_face(float64):
    inside = jax.jacobian(project_simplex)(jnp.asarray([0.5, 0.4, 0.3, -2.0]))
    face = np.eye(4) * [1, 1, 1, 0]
    face[:3, :3] -= 1 / 3
    np.testing.assert_allclose(inside, face, atol=1e-12)


def test_the_entropy_step_is_the_multiplicative_update(float64):
    rng = np.random.default_rng(2)
    rows, direction = rng.dirichlet(np.ones(4), (3, 7)), rng.normal(size=(3, 7, 4))
    expected = rows * np.exp(direction)
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(entropy_step(*map(jnp.asarray, (rows, direction))), expected)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
def test_zero_entries_stay_zero_and_no_step_is_too_large(size):
    rows = jnp.asarray([[0.0, 1.0, 0.0], [0.0, 1e-30, 1.0], [0.2, 0.3, 0.5]], jnp.float32)
    direction = size * jnp.asarray([[1.0, -1.0, 0.0], [1.0, 0.5, -0.5], [-1.0, 0.0, 1.0]])
    found = np.asarray(entropy_step(rows, direction))
    on_simplex(found, 1e-6)
    assert np.all(found[np.asarray(rows) == 0] == 0)


def test_the_entropy_step_has_finite_gradients_at_zero_entries():
    grads = jax.grad(lambda x, d: entropy_step(x, d)[1], (0, 1))(
        jnp.asarray([0.0, 0.4, 0.6]), jnp.asarray([1.0, 2.0, 3.0])
    )
    assert all(np.all(np.isfinite(g)) for g in grads)
    assert np.abs(grads[1][1]) > 0.1
