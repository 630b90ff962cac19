"""Optimisers of simultaneous games around any optax transformation.

Gradient steps on a game may circle or diverge where its players' interests turn against each
other; looking ahead half a step damps that. Korpelevich (1976) for the method; Gidel et al., "A
Variational Inequality Perspective on Generative Adversarial Networks" (ICLR 2019), for its use
around Adam; Mokhtari et al., "A Unified Analysis of Extra-gradient and Optimistic Gradient Methods
for Saddle Point Problems" (AISTATS 2020), for rates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

PyTree = Any
Field = Callable[[PyTree], PyTree]


class GameOptimiser(NamedTuple):
    """An optimiser that evaluates the game itself, as often as it needs to.

    init(params) -> state.
    step(params, state, grad_fn) -> (params, state). grad_fn(params) is the game's vector field F,
    of the structure of params, for all players at once; the step goes against it (optax's sign):
    the gradient of its own loss where a player minimises, minus the gradient of its own utility
    where it maximises.

    Pure; params may be any pytree. `jax.vmap` over params and state runs many starts.
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree, Field], tuple[PyTree, PyTree]]


def extragradient(inner: optax.GradientTransformation, *, both: bool = False) -> GameOptimiser:
    """z_half = Step(z, F(z)); z <- Step(z, F(z_half)), two evaluations of F a step.

    inner: the Step, e.g. `optax.sgd(0.1)` for z_half = z - 0.1 F(z), or `optax.adam(1e-3)`.
    both: inner's state (moments, counts of schedules) is advanced by the half step too, as in
        ExtraAdam; otherwise once a step, by F(z_half) alone.
    """

    def step(params: PyTree, state: PyTree, grad_fn: Field) -> tuple[PyTree, PyTree]:
        ahead, ahead_state = inner.update(grad_fn(params), state, params)
        half = optax.apply_updates(params, ahead)
        updates, state = inner.update(grad_fn(half), ahead_state if both else state, params)
        return optax.apply_updates(params, updates), state

    return GameOptimiser(inner.init, step)


def simultaneous(inner: optax.GradientTransformation) -> GameOptimiser:
    """z <- Step(z, F(z)): all players at once, no look ahead.

    With `optax.sgd` this is gradient descent-ascent; with `optax.optimistic_adam` and the like it
    is the single-call method of that name.
    """

    def step(params: PyTree, state: PyTree, grad_fn: Field) -> tuple[PyTree, PyTree]:
        updates, state = inner.update(grad_fn(params), state, params)
        return optax.apply_updates(params, updates), state

    return GameOptimiser(inner.init, step)


def optimistic(
    learning_rate: optax.ScalarOrSchedule, alpha: float = 1.0, beta: float = 1.0
) -> GameOptimiser:
    """z <- z - eta ((alpha + beta) F(z_k) - beta F(z_{k-1})), F(z_{-1}) = F(z_0).

    One evaluation a step: `optax.optimistic_gradient_descent`, whose arguments these are.
    """
    return simultaneous(optax.optimistic_gradient_descent(learning_rate, alpha, beta))
