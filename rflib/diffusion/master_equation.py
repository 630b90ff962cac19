"""The master equation dp/dt = Q p of jump processes: exact laws without sampling noise.

Generators and one-dimensional integrators are NumPy and SciPy in float64; the integrator on grids
of several dimensions is a JAX scan.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core.errors import UserError


class GridLaw(NamedTuple):
    """p: the law at the last time. leaked: mass that rates would have carried off the grid."""

    p: Array
    leaked: Array


def birth_death_generator(
    birth: Float[np.ndarray, " n"], death: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    """Q[k + 1, k] = birth[k], Q[k - 1, k] = death[k], columns that add up to 0.

    Rates that lead out of the states (the last birth, the first death) are left out.
    """
    generator = np.diag(birth[:-1], -1) + np.diag(death[1:], 1)
    return generator - np.diag(generator.sum(0))


def reverse_generator(
    generator: Float[np.ndarray, "n n"], p: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n n"]:
    """Rates of the reversed process where the law is p: r̄(y|x) = p(y)/p(x) r(x|y), p > 0."""
    flow = generator.T * p[:, None] / p[None, :]
    flow = flow - np.diag(np.diag(flow))
    return flow - np.diag(flow.sum(0))


def integrate_birth_death(
    rates: Callable[[float], tuple[np.ndarray, np.ndarray]],
    p: Float[np.ndarray, " n"],
    start: float,
    stop: float,
    *,
    method: str = "LSODA",
    rtol: float = 1e-9,
    atol: float = 1e-14,
) -> Float[np.ndarray, " n"]:
    """The law at `stop` of a birth-death process with rates(t) -> (birth, death), by SciPy.

    Either direction of time; the rates are always those of the process in the direction taken.
    """
    from scipy.integrate import solve_ivp

    sign = 1.0 if stop >= start else -1.0

    def slope(t: float, p: np.ndarray) -> np.ndarray:
        birth, death = rates(t)
        up, down = birth[:-1] * p[:-1], death[1:] * p[1:]
        change = np.zeros_like(p)
        change[:-1] += down - up
        change[1:] += up - down
        return sign * change

    options: Any = {"lband": 1, "uband": 1} if method == "LSODA" else {}
    found = solve_ivp(slope, (start, stop), p, method, rtol=rtol, atol=atol, **options)
    if not found.success:
        raise UserError(f"the master equation was not integrated: {found.message}")
    return found.y[:, -1]


def integrate_generator(
    generator: Callable[[float], np.ndarray],
    p: Float[np.ndarray, " n"],
    start: float,
    stop: float,
    *,
    method: str = "LSODA",
    rtol: float = 1e-9,
    atol: float = 1e-14,
) -> Float[np.ndarray, " n"]:
    """As `integrate_birth_death` for any finite chain: generator(t) -> [n, n]."""
    from scipy.integrate import solve_ivp

    sign = 1.0 if stop >= start else -1.0
    found = solve_ivp(
        lambda t, p: sign * (generator(t) @ p), (start, stop), p, method, rtol=rtol, atol=atol
    )
    if not found.success:
        raise UserError(f"the master equation was not integrated: {found.message}")
    return found.y[:, -1]


def grid_sub_steps(birth: np.ndarray, death: np.ndarray, ts: np.ndarray, share: float = 1.0) -> int:
    """Runge-Kutta steps an interval such that the step times the largest total rate is < share."""
    total = (np.asarray(birth) + np.asarray(death)).sum(1)
    peak = total.reshape(len(ts), -1).max(1)
    width = np.abs(np.diff(ts)) * np.maximum(peak[1:], peak[:-1])
    return max(1, math.floor(float(width.max()) / share) + 1)


def integrate_grid(
    p: Float[Array, "*grid"],
    birth: Float[Array, "n D *grid"],
    death: Float[Array, "n D *grid"],
    ts: Float[Array, " n"],
    sub_steps: int,
) -> GridLaw:
    """The law after the times `ts` of D coordinates that jump one at a time, by Runge-Kutta 4.

    birth, death: rates of each coordinate in each state at the times `ts`, linear in between.
    sub_steps: steps an interval, see `grid_sub_steps`. Rates out of the grid are dropped; the mass
    they would have carried is returned.
    """

    def flow(p: Array, up: Array, down: Array) -> tuple[Array, Array]:
        change, leaked = jnp.zeros_like(p), jnp.zeros((), p.dtype)
        for axis in range(p.ndim):
            rise, fall = (jnp.moveaxis(r[axis] * p, axis, 0) for r in (up, down))
            none = jnp.zeros_like(rise[:1])
            gain = jnp.concatenate([none, rise[:-1]]) + jnp.concatenate([fall[1:], none])
            loss = jnp.concatenate([rise[:-1], none]) + jnp.concatenate([none, fall[1:]])
            change = change + jnp.moveaxis(gain - loss, 0, axis)
            leaked = leaked + jnp.sum(rise[-1]) + jnp.sum(fall[0])
        return change, leaked

    def interval(state: GridLaw, place: Array) -> tuple[GridLaw, None]:
        h = jnp.abs(ts[place + 1] - ts[place]) / sub_steps

        def at(x: Array) -> tuple[Array, Array]:
            up, down = (r[place] + x * (r[place + 1] - r[place]) for r in (birth, death))
            return up, down

        def step(state: GridLaw, number: Array) -> tuple[GridLaw, None]:
            p, x = state.p, number / sub_steps
            a, b, c = (at(x + d / sub_steps) for d in (0.0, 0.5, 1.0))
            k1, leak = flow(p, *a)
            k2 = flow(p + h / 2 * k1, *b)[0]
            k3 = flow(p + h / 2 * k2, *b)[0]
            k4 = flow(p + h * k3, *c)[0]
            return GridLaw(p + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), state.leaked + h * leak), None

        numbers = jnp.arange(sub_steps).astype(p.dtype)
        return jax.lax.scan(step, state, numbers)[0], None

    start = GridLaw(p, jnp.zeros((), p.dtype))
    return jax.lax.scan(interval, start, jnp.arange(ts.shape[0] - 1))[0]
