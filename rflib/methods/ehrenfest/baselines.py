"""Baselines: the continuous-time bound of tauLDR, D3PM with Gaussian transitions, DDPM rounded."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import positive_int
from rflib.core.errors import UserError
from rflib.diffusion import samplers
from rflib.diffusion.losses import sample_time
from rflib.diffusion.schedule import bcast
from rflib.methods.ehrenfest import chains
from rflib.methods.ehrenfest.chains import Chain
from rflib.methods.ehrenfest.process import Process
from rflib.methods.ehrenfest.reverse import Network

Apply = Callable[[Any, Array, Array], Array]


class BoundAux(NamedTuple):
    """bound and cross_entropy, both a coordinate; the loss is bound + weight x cross_entropy."""

    bound: Array
    cross_entropy: Array


def draw_jump(
    key: Array, chain: Chain, x: Int[Array, "B D"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """(coordinate, new value) of the next jump of the forward chain from x.

    The coordinate in proportion to its total rate, the value in proportion to the rates.
    """
    key_d, key_y = jax.random.split(key)
    jumps = jnp.asarray(chain.generator * (1 - np.eye(chain.states)), jnp.result_type(float))
    out = jumps.sum(0)
    place = jax.random.categorical(key_d, jnp.log(out[x]), -1)
    here = jnp.take_along_axis(x, place[:, None], 1)[:, 0]
    return place, jax.random.categorical(key_y, jnp.log(jumps.T[here]), -1).astype(x.dtype)


def bound_loss(
    apply: Apply,
    params: Any,
    key: Array,
    x0: Int[Array, "B D"],
    chain: Chain,
    process: Process,
    *,
    ce_weight: float = 0.001,
    one_pass: bool = False,
) -> tuple[Array, BoundAux]:
    """The continuous-time bound of Campbell et al. (NeurIPS 2022) a coordinate, up to a constant.

    With Z(x) = Σ_{y≠x} r(y|x), t uniform, x ~ p_t(·|x_0) and x̃ one forward jump from x,

        (T/D) E[ Σ_{y≠x} r̄(y|x) - Z(x) log r̄(x|x̃) ],   r̄(y|x) = r(x|y) Σ p(x_0|x) p(y|x_0)/p(x|x_0),

    plus ce_weight times the cross-entropy. apply(params, x int32, t) -> logits [B, D, values].

    one_pass: both terms from the network at x̃, as the authors do by default: one forward pass, but
    x̃ does not have the law p_t, and for small D the gradient does not vanish at the truth.
    """
    key_t, key_x, key_j = jax.random.split(key, 3)
    batch, width = x0.shape
    unit = sample_time(key_t, batch, "stratified")
    t = process.t_min + (process.t_max - process.t_min) * unit
    w, rate = process.w(t), process.rate(t)
    x = chains.noise(key_x, chain, x0, w)
    place, value = draw_jump(key_j, chain, x)
    jumped = x.at[jnp.arange(batch), place].set(value)

    def reverse(logits: Array, x: Array) -> Array:
        ratios = chains.posterior_ratios(chain, logits, x, w)
        return chains.reverse_rates(chain, ratios, x, bcast(rate, ratios))

    logits = apply(params, jumped, t)
    there = reverse(logits, jumped)
    if one_pass:
        out = there
    else:
        logits_here = apply(params, x, t)
        out = reverse(logits_here, x)
    rows = jnp.arange(batch)
    back = there[rows, place, x[rows, place]]
    leave = jnp.asarray(-np.diag(chain.generator), w.dtype)
    total = rate * leave[x].sum(1)
    terms = out.sum((1, 2)) - total * jnp.log(jnp.maximum(back, 1e-30))
    bound = (process.t_max - process.t_min) * jnp.mean(terms) / width
    predicted = jax.nn.log_softmax(logits if one_pass else logits_here, -1)
    entropy = -jnp.mean(jnp.take_along_axis(predicted, x0[..., None], -1))
    return bound + ce_weight * entropy, BoundAux(bound, entropy)


class D3pm(NamedTuple):
    """step: [T, K, K], Q_t[i, j] = P(x_t = j | x_{t-1} = i). total: [T + 1, K, K], Q_1 … Q_t.

    Both NumPy float64; total[0] is the identity.
    """

    step: np.ndarray
    total: np.ndarray

    @property
    def steps(self) -> int:
        """T."""
        return len(self.step)


def d3pm_gauss(states: int, steps: int = 200, first: float = 0.005, last: float = 0.1) -> D3pm:
    """Discretised Gaussian transitions of Austin et al. (NeurIPS 2021), β linear.

    For i ≠ j Q[i, j] = exp(-4 (i - j)²/((K - 1)² β)) / Σ_{n=1-K}^{K-1} exp(-4 n²/((K - 1)² β)), the
    rest on the diagonal: symmetric, so that the uniform law is stationary.
    """
    size = positive_int("states", states)
    if size < 2:
        raise UserError(f"states={states} must be at least 2")
    betas = np.linspace(first, last, positive_int("steps", steps))[:, None, None]
    gap = np.arange(size)[:, None] - np.arange(size)[None]
    span = np.arange(1 - size, size)
    kernel = np.exp(-4 * gap[None] ** 2 / ((size - 1) ** 2 * betas))
    mass = np.exp(-4 * span**2 / ((size - 1) ** 2 * betas[:, :, 0])).sum(1)[:, None, None]
    step = kernel / mass * (1 - np.eye(size))
    step = step + np.eye(size) * (1 - step.sum(2, keepdims=True))
    total = itertools.accumulate(step, np.matmul, initial=np.eye(size))
    return D3pm(step, np.stack(list(total)))


def d3pm_reverse(
    tables: D3pm, logits: Float[Array, "B *n states"], xt: Int[Array, "B *n"], t: Array
) -> Float[Array, "B *n states"]:
    """log p(x_{t-1}|x_t), from Q_t[x_{t-1}, x_t] Σ_{x_0} p(x_0|x_t) Q_1…Q_{t-1}[x_0, x_{t-1}].

    t: int, a scalar or [B], in 1 … T. Logits of a one-hot law give the true posterior. As the sum
    is over joint, not conditional, laws of (x_{t-1}, x_t), the p(x_0|x_t) that makes this exact
    has the likelihood of x_t taken out again.
    """
    step, total = (jnp.asarray(a, logits.dtype) for a in tables)
    t = jnp.broadcast_to(t, xt.shape[:1])
    flat = xt.reshape(xt.shape[0], -1)
    rows = jnp.arange(len(flat))[:, None]
    back = jnp.swapaxes(step, 1, 2)[t - 1][rows, flat]  # [B, n, x_{t-1}]
    law = jax.nn.softmax(logits.reshape(*flat.shape, -1), -1)
    ahead = jnp.einsum("bni,bij->bnj", law, total[t - 1])
    joint = jnp.log(jnp.maximum(back * ahead, 1e-30))
    return jax.nn.log_softmax(joint, -1).reshape(logits.shape)


def d3pm_loss(
    apply: Apply,
    params: Any,
    key: Array,
    x0: Int[Array, "B *n"],
    tables: D3pm,
    *,
    ce_weight: float = 0.001,
) -> tuple[Array, BoundAux]:
    """KL(q(x_{t-1}|x_t, x_0) || p(x_{t-1}|x_t)) a coordinate, t uniform in 1 … T, plus CE.

    For t = 1 it is -log p(x_0|x_1). apply(params, x_t int32, t/T [B]) -> logits [B, *n, K].
    """
    key_t, key_x = jax.random.split(key)
    unit = sample_time(key_t, x0.shape[0], "stratified")
    t = jnp.clip((unit * tables.steps).astype(jnp.int32) + 1, 1, tables.steps)
    law = jnp.asarray(tables.total, unit.dtype)[t]
    flat = x0.reshape(x0.shape[0], -1)
    mass = law[jnp.arange(len(flat))[:, None], flat]
    xt = jax.random.categorical(key_x, jnp.log(jnp.maximum(mass, 1e-30)), -1)
    xt = xt.reshape(x0.shape).astype(jnp.int32)
    logits = apply(params, xt, t / tables.steps)
    model = d3pm_reverse(tables, logits, xt, t)
    sure = jnp.where(jax.nn.one_hot(x0, logits.shape[-1], dtype=bool), 0.0, -jnp.inf)
    truth = d3pm_reverse(tables, sure.astype(logits.dtype), xt, t)
    divergence = jnp.mean(jnp.sum(jnp.exp(truth) * (truth - model), -1))
    predicted = jax.nn.log_softmax(logits, -1)
    entropy = -jnp.mean(jnp.take_along_axis(predicted, x0[..., None], -1))
    return divergence + ce_weight * entropy, BoundAux(divergence, entropy)


def d3pm_sample(
    key: Array, network: Network, tables: D3pm, shape: tuple[int, ...]
) -> Int[Array, "..."]:
    """x_T uniform, then T ancestral steps; network(x_t int32, t/T [B]) -> logits."""
    key_start, key_steps = jax.random.split(key)
    size = tables.step.shape[1]
    start = jax.random.randint(key_start, shape, 0, size, jnp.int32)

    def body(x: Array, t: Array) -> tuple[Array, None]:
        times = jnp.full(shape[:1], t / tables.steps)
        law = d3pm_reverse(tables, network(x, times), x, t)
        at = jax.random.fold_in(key_steps, t)
        return jax.random.categorical(at, law, -1).astype(jnp.int32), None

    return jax.lax.scan(body, start, jnp.arange(tables.steps, 0, -1))[0]


def ddpm_sample(
    key: Array,
    eps: Network,
    process: Process,
    shape: tuple[int, ...],
    ts: Float[Array, " m"],
    method: samplers.Method | None = None,
) -> Float[Array, "..."]:
    """x̂_0 of the continuous process from N(0, 1), to be rounded by `Embedding.decode_x`.

    eps(x, t [B]) -> [B, *n]: a network of the head "eps" without its last axis. The method is
    ancestral sampling unless given.
    """
    key_start, key_steps = jax.random.split(key)
    start = jax.random.normal(key_start, shape)

    def denoise(x: Array, t: Array) -> Array:
        w, sig2 = (bcast(f(t), x) for f in (process.w, process.sig2))
        return (x - jnp.sqrt(sig2) * eps(x, t)) / w

    chosen = method or samplers.ddpm()
    return samplers.sample(key_steps, denoise, start, ts, process.schedule, chosen).x0
