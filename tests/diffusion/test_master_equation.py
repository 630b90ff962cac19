"""Generators, time reversal and integrators of the master equation."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm

from rflib.diffusion.master_equation import (
    birth_death_generator,
    grid_sub_steps,
    integrate_birth_death,
    integrate_generator,
    integrate_grid,
    reverse_generator,
)

BIRTH, DEATH = np.array([1.0, 0.5, 2.0, 9.0]), np.array([7.0, 1.5, 0.3, 1.0])


def test_generator_conserves_mass_and_drops_rates_that_lead_out():
    generator = birth_death_generator(BIRTH, DEATH)
    np.testing.assert_allclose(generator.sum(0), 0, atol=1e-15)
    np.testing.assert_array_equal(np.diag(generator, -1), BIRTH[:-1])
    np.testing.assert_array_equal(np.diag(generator, 1), DEATH[1:])


def test_reversed_rates_are_the_limit_of_bayes_rule():
    """P(M_t = y | M_{t+h} = x)/h -> r̄(y|x), from matrix exponentials; measured error 3e-6."""
    generator, h = birth_death_generator(BIRTH, DEATH), 1e-6
    p = expm(generator * 0.4)[:, 2]
    joint = expm(generator * h) * p[None]  # [x later, y earlier]
    bayes = (joint / joint.sum(1, keepdims=True)).T
    limit = (bayes - np.eye(4)) / h
    np.testing.assert_allclose(reverse_generator(generator, p), limit, atol=1e-4)


def test_integration_equals_the_matrix_exponential_and_comes_back():
    generator = birth_death_generator(BIRTH, DEATH)
    start = np.array([0.1, 0.2, 0.3, 0.4])
    exact = expm(generator * 0.8) @ start
    up = integrate_birth_death(lambda t: (BIRTH, DEATH), start, 0, 0.8)
    np.testing.assert_allclose(up, exact, atol=1e-8)
    full = integrate_generator(lambda t: generator, start, 0, 0.8)
    np.testing.assert_allclose(full, exact, atol=1e-8)

    def backward(t):
        return reverse_generator(generator, expm(generator * t) @ start)

    np.testing.assert_allclose(integrate_generator(backward, exact, 0.8, 0), start, atol=1e-7)


def test_grid_of_two_coordinates_is_the_product_of_their_chains(float64):
    generator = birth_death_generator(BIRTH, DEATH)
    one, other = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1.0, 0.0, 0.0])
    ts = np.linspace(1, 0.2, 5)
    births = np.stack([np.broadcast_to(BIRTH[:, None], (4, 4)), np.broadcast_to(BIRTH, (4, 4))])
    deaths = np.stack([np.broadcast_to(DEATH[:, None], (4, 4)), np.broadcast_to(DEATH, (4, 4))])
    # Rates grow with the time: total internal time ∫ t dt = (1 - .04)/2.
    up, down = (r[None] * ts[:, None, None, None] for r in (births, deaths))
    steps = grid_sub_steps(up, down, ts, 0.2)
    law = jax.jit(integrate_grid, static_argnums=4)(
        jnp.asarray(np.outer(one, other)), *map(jnp.asarray, (up, down, ts)), steps
    )
    flow = expm(generator * 0.48)
    np.testing.assert_allclose(law.p, np.outer(flow @ one, flow @ other), atol=1e-5)
    np.testing.assert_allclose(law.p.sum(), 1, atol=1e-12)
    assert float(law.leaked) > 0.1  # this chain has rates out of the grid: dropped, and counted


def test_sub_steps_bound_the_step_by_the_largest_total_rate():
    ts = np.linspace(1, 0, 3)
    birth, death = np.full((3, 1, 4), 5.0), np.full((3, 1, 4), 2.0)
    steps = grid_sub_steps(birth, death, ts)
    assert 0.5 * 7 / steps < 1 <= 0.5 * 7 / (steps - 1)
