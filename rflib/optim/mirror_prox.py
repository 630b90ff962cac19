"""Game optimisers on constrained sets: mirror-prox, mirror descent and its optimistic form.

Nemirovski, "Prox-Method with Rate of Convergence O(1/t) for Variational Inequalities with
Lipschitz Continuous Monotone Operators" (SIAM Journal on Optimization 15, 2004).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rflib.core.checks import choose
from rflib.core.errors import UserError
from rflib.optim.extragradient import Field, GameOptimiser
from rflib.optim.simplex import entropy_step, project_simplex

PyTree = Any


class Geometry(NamedTuple):
    """A set with a notion of distance: move(x, d) is where a step by d from x ends, for one leaf.

    move(x, d) = argmax_y <d, y> - D(y, x) over the set, D its Bregman divergence.
    """

    move: Callable[[Array, Array], Array]


def euclidean() -> Geometry:
    """Simplices on the last axis, D = |y - x|²/2: the projection of x + d."""
    return Geometry(lambda x, d: project_simplex(x + d))


def entropy() -> Geometry:
    """Simplices on the last axis, D = KL(y || x): x exp(d), renormalised."""
    return Geometry(entropy_step)


def box(low: float = 0.0, high: float = 1.0) -> Geometry:
    """low <= y <= high for each entry, D = |y - x|²/2: x + d, clipped.

    Raises:
        UserError: low is not below high.
    """
    if not low < high:
        raise UserError(f"low={low!r} must be below high={high!r}")
    return Geometry(lambda x, d: jnp.clip(x + d, low, high))


GEOMETRIES: dict[str, Callable[[], Geometry]] = {
    "euclidean": euclidean,
    "entropy": entropy,
    "box": box,
}


def _geometry(geometry: str | Geometry) -> Geometry:
    if isinstance(geometry, Geometry):
        return geometry
    return choose("geometry", geometry, GEOMETRIES)()


def _rate(learning_rate: optax.ScalarOrSchedule, count: Array) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def _move(geometry: Geometry, params: PyTree, field: PyTree, rate: Any) -> PyTree:
    return jax.tree.map(lambda x, f: geometry.move(x, -rate * f), params, field)


def _start() -> Array:
    return jnp.zeros((), jnp.int32)


class MirrorProxState(NamedTuple):
    """count: steps so far. weight: the sum of their rates. average: the half-steps' mean, weighted
    by the rates. It is the method's answer: in a monotone game its duality gap falls as 1/count."""

    count: Array
    weight: Array
    average: PyTree


def mirror_prox(
    learning_rate: optax.ScalarOrSchedule, geometry: str | Geometry = "euclidean"
) -> GameOptimiser:
    """z_half = Move(z, -eta F(z)); z <- Move(z, -eta F(z_half)): extra-gradient on a set.

    geometry: the set of every leaf and the distance on it: a `Geometry`, or 'euclidean' and
        'entropy' (simplices on the last axis) or 'box' (the unit box). Start inside the set.

    Raises:
        UserError: an unknown geometry.
    """
    chosen = _geometry(geometry)

    def init(params: PyTree) -> MirrorProxState:
        leaf = jax.tree.leaves(params)[0]
        return MirrorProxState(_start(), jnp.zeros((), leaf.dtype), params)

    def step(params: PyTree, state: PyTree, grad_fn: Field) -> tuple[PyTree, PyTree]:
        rate = _rate(learning_rate, state.count)
        half = _move(chosen, params, grad_fn(params), rate)
        params = _move(chosen, params, grad_fn(half), rate)
        weight = state.weight + rate
        share = rate / weight
        average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, half)
        return params, MirrorProxState(state.count + 1, weight, average)

    return GameOptimiser(init, step)


def mirror_descent(
    learning_rate: optax.ScalarOrSchedule, geometry: str | Geometry = "euclidean"
) -> GameOptimiser:
    """z <- Move(z, -eta F(z)), one evaluation a step; arguments as for `mirror_prox`."""
    chosen = _geometry(geometry)

    def step(params: PyTree, state: PyTree, grad_fn: Field) -> tuple[PyTree, PyTree]:
        rate = _rate(learning_rate, state)
        return _move(chosen, params, grad_fn(params), rate), state + 1

    return GameOptimiser(lambda params: _start(), step)


class OptimisticState(NamedTuple):
    """count: steps so far. previous: the field at the step before (at the start: unused zeros)."""

    count: Array
    previous: PyTree


def optimistic_mirror_descent(
    learning_rate: optax.ScalarOrSchedule, geometry: str | Geometry = "euclidean"
) -> GameOptimiser:
    """z <- Move(z, -eta (2 F(z_k) - F(z_{k-1}))), F(z_{-1}) = F(z_0), one evaluation a step.

    Arguments as for `mirror_prox`.
    """
    chosen = _geometry(geometry)

    def init(params: PyTree) -> OptimisticState:
        return OptimisticState(_start(), jax.tree.map(jnp.zeros_like, params))

    def step(params: PyTree, state: PyTree, grad_fn: Field) -> tuple[PyTree, PyTree]:
        field = grad_fn(params)
        first = state.count == 0
        ahead = jax.tree.map(
            lambda now, old: 2 * now - jnp.where(first, now, old), field, state.previous
        )
        params = _move(chosen, params, ahead, _rate(learning_rate, state.count))
        return params, OptimisticState(state.count + 1, field)

    return GameOptimiser(init, step)
