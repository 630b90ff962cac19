"""Denoising losses: when to look, what to compare, how to weigh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from rflib.core.checks import one_of, positive_int
from rflib.diffusion.param import KINDS, convert, noised, to_x0
from rflib.diffusion.schedule import Schedule, slope

TIMES = ("uniform", "stratified", "antithetic", "discrete")
WEIGHTS = ("simple", "snr", "min_snr", "p2", "elbo", "edm")


class Denoised(NamedTuple):
    """t: [B]. xt, prediction (in the space of `target`), x0: arrays of the batch's shape."""

    t: Array
    xt: Array
    prediction: Array
    x0: Array


def sample_time(
    key: Array, size: int, mode: str = "stratified", steps: int = 0
) -> Float[Array, " B"]:
    """`size` times in (0, 1].

    "uniform": independent. "stratified": t_i = (i + u_i)/size. "antithetic": t_i = (u + i/size)
    mod 1 with one u (Kingma et al., NeurIPS 2021). "discrete": (i + 1)/steps with i uniform.

    Raises:
        UserError: unknown mode, or no `steps` with "discrete".
    """
    one_of("mode", mode, TIMES)
    if mode == "discrete":
        steps = positive_int("steps", steps)
        return (jax.random.randint(key, (size,), 0, steps) + 1.0) / steps
    if mode == "antithetic":
        return (jax.random.uniform(key) + jnp.arange(size) / size) % 1.0
    u = jax.random.uniform(key, (size,))
    return u if mode == "uniform" else (jnp.arange(size) + u) / size


def weight(
    kind: str,
    schedule: Schedule,
    t: Float[Array, " B"],
    target: str,
    *,
    cap: float = 5.0,
    sigma_data: float = 0.5,
) -> Float[Array, " B"]:
    """Factor of the squared error in the space of `target` ("simple" is 1 there).

    The others are defined for x_0 and carried over by |dx_0/d target|²:
    "snr" SNR; "min_snr" min(SNR, cap) (Hang et al., ICCV 2023); "p2" SNR/(1 + SNR) (Choi et al.,
    CVPR 2022, γ = k = 1); "elbo" ½ SNR dγ/dt, which for ε is ½ dγ/dt and makes the loss the
    continuous-time bound (Kingma et al., NeurIPS 2021); "edm" (σ² + s²)/(σ s)².
    """
    one_of("weight", kind, WEIGHTS)
    one_of("target", target, KINDS)
    if kind == "simple":
        return jnp.ones_like(t)
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    snr = jnp.square(alpha / sigma)
    of_x0 = {
        "snr": lambda: snr,
        "min_snr": lambda: jnp.minimum(snr, cap),
        "p2": lambda: snr / (1 + snr),
        "elbo": lambda: 0.5 * snr * slope(schedule.gamma, t),
        "edm": lambda: (jnp.square(sigma) + sigma_data**2) / jnp.square(sigma * sigma_data),
    }[kind]()
    lever = {
        "x0": jnp.ones_like(t),
        "eps": sigma / alpha,
        "v": sigma / (jnp.square(alpha) + jnp.square(sigma)),
        "score": jnp.square(sigma) / alpha,
        "flow": sigma / (alpha + sigma),
    }[target]
    return of_x0 * jnp.square(lever)


def denoise_loss(
    model: Callable[[Any, Array, Array, Any], Array],
    params: Any,
    key: Array,
    x0: Float[Array, "B *shape"],
    schedule: Schedule,
    *,
    cond: Any = None,
    predict: str = "eps",
    target: str = "eps",
    weighting: str = "simple",
    times: str = "stratified",
    steps: int = 0,
    t_range: tuple[float, float] = (0.0, 1.0),
    mask: Float[Array, "B *shape"] | None = None,
) -> tuple[Float[Array, " B"], Denoised]:
    """Weighted mean square of (prediction - truth) in the space of `target`, a value an example.

    model(params, x_t, t, cond) predicts `predict`; `target` is where the error is taken. The time
    of a `times` draw is mapped affinely to `t_range`. mask: 1 where the error counts, else 0; the
    mean is over the entries that count, and an example without any has loss 0.
    """
    key_t, key_eps = jax.random.split(key)
    t = sample_time(key_t, x0.shape[0], times, steps)
    if times != "discrete":
        t = t_range[0] + (t_range[1] - t_range[0]) * t
    eps = jax.random.normal(key_eps, x0.shape, x0.dtype)
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    xt = noised(x0, eps, alpha, sigma)
    out = model(params, xt, t, cond)
    prediction = convert(predict, target, out, xt, alpha, sigma)
    truth = convert("eps", target, eps, xt, alpha, sigma) if target != "x0" else x0
    square = jnp.square(prediction - truth)
    axes = tuple(range(1, x0.ndim))
    if mask is None:
        each = jnp.mean(square, axes)
    else:
        # Selected, not multiplied: what is masked may be anything, NaN too.
        kept = jnp.where(mask > 0, square * mask, 0)
        each = jnp.sum(kept, axes) / jnp.maximum(jnp.sum(mask, axes), 1)
    each = each * weight(weighting, schedule, t, target)
    return each, Denoised(t, xt, prediction, to_x0(predict, out, xt, alpha, sigma))


def bin_means(error: Array, t: Array, bins: int = 10) -> Array:
    """Mean of `error` [B] over equal bins of t in [0, 1]; NaN in an empty bin."""
    place = jnp.clip((t * bins).astype(jnp.int32), 0, bins - 1)
    total = jax.ops.segment_sum(error, place, bins)
    count = jax.ops.segment_sum(jnp.ones_like(error), place, bins)
    return total / jnp.where(count > 0, count, jnp.nan)
