"""Training losses of the reversed Ehrenfest process: regressions and a cross-entropy.

All draw t stratified over [t_min, t_max] and a state x_t given x_0, evaluate the network on
(x_t, t) alone, and are means over batch and coordinates:

    ratio     |R± - p(x ± δ|x_0)/p(x|x_0)|²      conditional expectation, exact binomial ratio
    gauss     |R± - exp(-(δ² ± 2δ(x - μ))/(2σ²))|²                 the Gaussian ratio
    taylor1   |φ - μ|²                            with μ = w x_0, σ² = 1 - w²
    taylor2   |φ_1 - μ|² + |φ_2 - (x - μ)²/σ²|²
    ou        |ε̂ - ε|², ε = (x - μ)/σ             denoising score matching, the loss of DDPM
    ou_score  |s + (x - μ)/σ²|²                   the same, weighted by 1/σ²
    ce        -log p(k_0 | x_t)                   a categorical posterior
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import choose, one_of
from rflib.core.errors import UserError
from rflib.diffusion.losses import bin_means, sample_time
from rflib.diffusion.schedule import bcast
from rflib.methods.ehrenfest import ratio, transition
from rflib.methods.ehrenfest.process import Process
from rflib.methods.ehrenfest.reverse import network_ratios

Apply = Callable[[Any, Array, Array], Array]
# The authors clip the Gaussian target to [0, 3] and the residual to ±10; it needs it with binomial
# noise at small S, where σ² is much smaller than δ² near t = 0.
GAUSS_CLIP = (3.0, 10.0)
BINS = 10


class LossAux(NamedTuple):
    """bins: [10] mean loss over equal bins of t in [t_min, t_max], NaN where none fell.

    target_variance: [10] mean of (target - mean target)² over the same bins. clipped: share of
    targets and residuals that were clipped.
    """

    bins: Array
    target_variance: Array
    clipped: Array


class Noised(NamedTuple):
    """k and x: the state at t (k only if it is on the lattice). mu = w x_0, sig2 = 1 - w²."""

    t: Float[Array, " B"]
    k: Int[Array, "B *n"] | None
    x: Array
    mu: Array
    w: Array
    sig2: Array


class Loss(NamedTuple):
    """head: the kind of output that `reverse.network_ratios` reads. noise: by default."""

    head: str
    noise: str
    value: Callable[..., tuple[Array, LossAux]]


def noise(key: Array, k0: Int[Array, "B *n"], process: Process, kind: str) -> Noised:
    """Stratified times and states: "binomial" on the lattice, exact, or "gaussian" N(μ, σ²)."""
    one_of("noise", kind, ("binomial", "gaussian"))
    key_t, key_x = jax.random.split(key)
    unit = sample_time(key_t, k0.shape[0], "stratified")
    t = process.t_min + (process.t_max - process.t_min) * unit
    w, sig2 = (bcast(f(t), k0) for f in (process.w, process.sig2))
    x0 = process.to_x(k0, t.dtype)
    mu = w * x0
    if kind == "binomial":
        k = transition.sample(key_x, k0, w, process.size)
        return Noised(t, k, process.to_x(k, t.dtype), mu, w, sig2)
    x = mu + jnp.sqrt(sig2) * jax.random.normal(key_x, k0.shape, t.dtype)
    return Noised(t, None, x, mu, w, sig2)


def _summary(each: Array, target: Array, t: Array, process: Process, clipped: Array) -> Any:
    """(mean, LossAux) of errors and targets [B, ...]."""
    rows = tuple(range(1, each.ndim))
    error = jnp.mean(each, rows)
    unit = (t - process.t_min) / (process.t_max - process.t_min)
    flat = target.reshape(target.shape[0], -1)
    first = bin_means(jnp.mean(flat, 1), unit, BINS)
    second = bin_means(jnp.mean(jnp.square(flat), 1), unit, BINS)
    variance = second - jnp.square(first)
    aux = LossAux(bin_means(error, unit, BINS), variance, clipped)
    return jnp.mean(error), jax.lax.stop_gradient(aux)


def _pair_loss(
    apply: Apply,
    params: Any,
    seen: Noised,
    targets: ratio.Ratios,
    process: Process,
    head: str,
    clips: tuple[float, float],
    normalise: str,
) -> tuple[Array, LossAux]:
    one_of("normalise", normalise, ("delta", "none"))
    one_of("head", head, ("ratio", "ratio_lin"))
    target = jnp.stack(targets, -1)
    kept = jnp.clip(target, 0, clips[0])
    k = jnp.zeros(seen.x.shape, jnp.int32) if seen.k is None else seen.k  # not used by ratio heads
    found = network_ratios(head, apply(params, seen.x, seen.t), k, process, seen.t)
    residual = jnp.stack(found, -1) - kept
    bound = jnp.clip(residual, -clips[1], clips[1])
    clipped = jnp.mean(((kept != target) | (bound != residual)).astype(target.dtype))
    scale = process.delta if normalise == "delta" else 1.0
    return _summary(jnp.square(bound / scale).sum(-1), kept, seen.t, process, clipped)


def ratio_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
    head: str = "ratio",
    normalise: str = "delta",
    target_clip: float = float("inf"),
    resid_clip: float = float("inf"),
) -> tuple[Array, LossAux]:
    """Σ± |R± - p(k ± 1|k_0)/p(k|k_0)|², its minimiser p_t(k ± 1)/p_t(k).

    The target has a heavy tail: its second moment grows as 1/∫λ when t -> 0. normalise: "delta"
    divides residuals by δ, without which gradients vanish for large S.

    Raises:
        UserError: Gaussian noise, which leaves the lattice that the exact ratio lives on.
    """
    if noise_kind != "binomial":
        raise UserError(f"noise={noise_kind!r}: the exact ratio needs 'binomial' states")
    seen = noise(key, k0, process, noise_kind)
    assert seen.k is not None
    targets = ratio.exact(seen.k, k0, process.size, seen.w)
    clips = (target_clip, resid_clip)
    return _pair_loss(apply, params, seen, targets, process, head, clips, normalise)


def gauss_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "gaussian",
    head: str = "ratio",
    normalise: str = "delta",
    target_clip: float = GAUSS_CLIP[0],
    resid_clip: float = GAUSS_CLIP[1],
) -> tuple[Array, LossAux]:
    """Σ± |R± - exp(-(δ² ± 2δ(x - μ))/(2σ²))|²."""
    seen = noise(key, k0, process, noise_kind)
    targets = ratio.gauss(seen.x, seen.mu, seen.sig2, process.delta)
    clips = (target_clip, resid_clip)
    return _pair_loss(apply, params, seen, targets, process, head, clips, normalise)


def _moment_loss(
    apply: Apply, params: Any, seen: Noised, targets: list[Array], process: Process
) -> tuple[Array, LossAux]:
    target = jnp.stack(targets, -1)
    out = apply(params, seen.x, seen.t)
    if out.shape != target.shape:
        raise UserError(f"the network's output {out.shape} must have the shape {target.shape}")
    each = jnp.square(out - target).sum(-1)
    return _summary(each, target, seen.t, process, jnp.zeros((), target.dtype))


def taylor1_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
) -> tuple[Array, LossAux]:
    """|φ - w x_0|², its minimiser w E[x_0 | x_t]."""
    seen = noise(key, k0, process, noise_kind)
    return _moment_loss(apply, params, seen, [seen.mu], process)


def taylor2_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
) -> tuple[Array, LossAux]:
    """|φ_1 - w x_0|² + |φ_2 - (x - w x_0)²/σ²|²."""
    seen = noise(key, k0, process, noise_kind)
    second = jnp.square(seen.x - seen.mu) / seen.sig2
    return _moment_loss(apply, params, seen, [seen.mu, second], process)


def ou_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
) -> tuple[Array, LossAux]:
    """|ε̂ - ε|² with ε = (x - μ)/σ, which has mean 0 and variance 1 for binomial noise too."""
    seen = noise(key, k0, process, noise_kind)
    eps = (seen.x - seen.mu) / jnp.sqrt(seen.sig2)
    return _moment_loss(apply, params, seen, [eps], process)


def ou_score_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
) -> tuple[Array, LossAux]:
    """|s + (x - μ)/σ²|²: the score form, in which times near 0 dominate."""
    seen = noise(key, k0, process, noise_kind)
    return _moment_loss(apply, params, seen, [-(seen.x - seen.mu) / seen.sig2], process)


def ce_loss(
    apply: Apply,
    params: Any,
    key: Array,
    k0: Int[Array, "B *n"],
    process: Process,
    *,
    noise_kind: str = "binomial",
) -> tuple[Array, LossAux]:
    """-log softmax(out)[k_0], mean over coordinates (the sum divided by their number)."""
    seen = noise(key, k0, process, noise_kind)
    out = apply(params, seen.x, seen.t)
    picked = jnp.take_along_axis(jax.nn.log_softmax(out, -1), k0[..., None], -1)[..., 0]
    zero = jnp.zeros((), out.dtype)
    return _summary(-picked, k0.astype(out.dtype), seen.t, process, zero)


LOSSES = {
    "ratio": Loss("ratio", "binomial", ratio_loss),
    "gauss": Loss("ratio", "gaussian", gauss_loss),
    "taylor1": Loss("taylor1", "binomial", taylor1_loss),
    "taylor2": Loss("taylor2", "binomial", taylor2_loss),
    "ou": Loss("eps", "binomial", ou_loss),
    "ou_score": Loss("score", "binomial", ou_score_loss),
    "ce": Loss("posterior", "binomial", ce_loss),
}


def find_loss(kind: str) -> Loss:
    """The loss of that name; a UserError lists the names."""
    return choose("loss", kind, LOSSES)
