"""Guided denoisers: functions of predictions, and wrappers of denoisers.

Guidance is affine in the prediction with coefficients that add up to 1, so it is the same in ε,
x_0, v and score, which are affine in one another at a given x_t.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rflib.core.checks import in_range
from rflib.core.errors import UserError
from rflib.diffusion.schedule import Schedule, bcast

Denoise = Callable[[Array, Array], Array]


def cfg(conditional: Array, unconditional: Array, scale: float | Array) -> Array:
    """u + scale (c - u) (Ho and Salimans, 2022): scale 0 ignores the condition, 1 is `c`."""
    return unconditional + scale * (conditional - unconditional)


def guided(conditional: Denoise, unconditional: Denoise, scale: float) -> Denoise:
    """`cfg` of two functions of (x, t)."""
    return lambda x, t: cfg(conditional(x, t), unconditional(x, t), scale)


def doubled(
    model: Callable[[Array, Array, Any], Array], cond: Any, null: Any, scale: float
) -> Denoise:
    """`cfg` in one call of model(x, t, cond) on a batch twice as large.

    cond, null: pytrees of equal structure whose leaves have the batch in front.
    """

    def denoise(x: Array, t: Array) -> Array:
        both = jax.tree.map(lambda c, n: jnp.concatenate([c, n]), cond, null)
        out = model(jnp.concatenate([x, x]), jnp.concatenate([t, t]), both)
        return cfg(out[: x.shape[0]], out[x.shape[0] :], scale)

    return denoise


def rescale(guided: Array, conditional: Array, share: float = 0.7) -> Array:
    """Gives `guided` the standard deviation of `conditional` an example, mixed in with `share`.

    Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed" (WACV 2024).
    """
    axes = tuple(range(1, guided.ndim))
    ratio = jnp.std(conditional, axes, keepdims=True) / jnp.std(guided, axes, keepdims=True)
    return share * guided * ratio + (1 - share) * guided


def dynamic_threshold(x0: Array, share: float = 0.995, floor: float = 1.0) -> Array:
    """clip(x_0, -m, m)/m with m = max(floor, the `share` quantile of |x_0| of an example).

    Saharia et al., "Photorealistic Text-to-Image Diffusion Models" (NeurIPS 2022).
    """
    in_range("share", share, 0, 1)
    flat = jnp.abs(x0).reshape(x0.shape[0], -1)
    bound = jnp.maximum(jnp.quantile(flat, share, axis=1), floor)
    bound = bcast(bound, x0)
    return jnp.clip(x0, -bound, bound) / bound


def compose(functions: Sequence[Denoise], weights: Sequence[float]) -> Denoise:
    """The mean of predictions with weights w_k/Σ w; a negative weight moves away from its concept.

    Liu et al., "Compositional Visual Generation with Composable Diffusion Models" (ECCV 2022).

    Raises:
        UserError: not one weight a function, or weights that add up to 0.
    """
    total = sum(weights)
    if len(functions) != len(weights) or not functions or total == 0:
        raise UserError(
            f"weights={tuple(weights)!r}: one for each function, with a sum other than 0"
        )

    def denoise(x: Array, t: Array) -> Array:
        terms = [w / total * f(x, t) for f, w in zip(functions, weights, strict=True)]
        return jnp.sum(jnp.stack(terms), 0)

    return denoise


def classifier_guidance(
    denoise: Denoise, log_prob: Denoise, schedule: Schedule, scale: float
) -> Denoise:
    """x̂_0 + scale (σ²/α) ∇_x log p(y | x_t) (Dhariwal and Nichol, NeurIPS 2021).

    log_prob(x, t) -> [B] is the classifier's log-probability of the wanted class.
    """

    def steered(x: Array, t: Array) -> Array:
        pull = jax.grad(lambda x: jnp.sum(log_prob(x, t)))(x)
        lever = jnp.square(schedule.sigma(t)) / schedule.alpha(t)
        return denoise(x, t) + scale * bcast(lever, x) * pull

    return steered
