"""Time reversal of any finite jump process by regression of conditional expectations.

A chain on K states has a generator Q (columns are origins) that a schedule speeds up by λ(t), so
that p(y|x_0) = exp(Q τ)[y, x_0] with τ = ∫ λ and w = exp(-τ). Its reversal has the rates

    r̄(y|x) = r(x|y) p_t(y)/p_t(x) = r(x|y) E[ p(y|x_0)/p(x|x_0) | x_t = x ],

whatever the chain; coordinates are independent given x_0 and jump one at a time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import positive_int
from rflib.core.errors import UserError
from rflib.diffusion.losses import sample_time
from rflib.diffusion.schedule import bcast
from rflib.methods.ehrenfest import theory, transition
from rflib.methods.ehrenfest.process import Process

JumpRates = Callable[[Array, Array], Array]


class Chain(NamedTuple):
    """states: K. values: the states 0 … values - 1 that data take.

    generator: [K, K], float64, columns add up to 0. log_law(w): [K, K], log p(y|x_0) as [y, x_0],
    w a scalar. initial: [K], the law that the reversed process starts from.
    """

    states: int
    values: int
    generator: np.ndarray
    log_law: Callable[[Array], Array]
    initial: np.ndarray


def ehrenfest(size: int) -> Chain:
    """The birth-death chain of `transition`, for one interface with the others."""
    law = np.exp(transition.stationary_log_pmf(size))
    generator = theory.generator(size)
    return Chain(size + 1, size + 1, generator, lambda w: transition.log_pmf(size, w), law)


def uniform(states: int) -> Chain:
    """r(y|x) = λ/K for y ≠ x; p(y|x_0) = w 1{y = x_0} + (1 - w)/K; starts uniform."""
    size = positive_int("states", states)
    generator = np.full((size, size), 1 / size) - np.eye(size)

    def log_law(w: Array) -> Array:
        w = jnp.asarray(w)
        return jnp.log(w * jnp.eye(size, dtype=w.dtype) + (1 - w) / size)

    return Chain(size, size, generator, log_law, np.full(size, 1 / size))


def absorbing(values: int) -> Chain:
    """A further state m = `values` with r(m|x) = λ; p(x_0|x_0) = w, p(m|x_0) = 1 - w; starts in m.

    The reversed process only jumps from m to values.
    """
    size = positive_int("values", values) + 1
    generator = -np.eye(size)
    generator[-1] += 1
    initial = np.eye(size)[-1]

    def log_law(w: Array) -> Array:
        w = jnp.asarray(w)
        stay = jnp.diag(jnp.concatenate([jnp.full(values, w), jnp.ones(1, w.dtype)]))
        leave = jnp.concatenate([jnp.full(values, 1 - w), jnp.zeros(1, w.dtype)])
        return jnp.log(stay.at[-1].add(leave))

    return Chain(size, values, generator, log_law, initial)


def general(generator: Float[np.ndarray, "states states"]) -> Chain:
    """Any generator, by matrix exponentials; it starts from its stationary law.

    Raises:
        UserError: not square, negative rates, or columns that do not add up to 0.
    """
    generator = np.asarray(generator, np.float64)
    square = generator.ndim == 2 and generator.shape[0] == generator.shape[1]
    if not square or np.any(generator - np.diag(np.diag(generator)) < 0):
        raise UserError(f"generator of shape {generator.shape}: square, rates >= 0 are needed")
    if np.abs(generator.sum(0)).max() > 1e-9 * max(1, np.abs(generator).max()):
        raise UserError("generator: columns (rates out of a state) must add up to 0")
    size = len(generator)
    system = np.vstack([generator, np.ones(size)])
    law = np.linalg.lstsq(system, np.append(np.zeros(size), 1), rcond=None)[0]

    def log_law(w: Array) -> Array:
        w = jnp.asarray(w)
        law = jax.scipy.linalg.expm(jnp.asarray(generator, w.dtype) * -jnp.log(w))
        return jnp.log(jnp.maximum(law, 0))

    return Chain(size, size, generator, log_law, np.maximum(law, 0))


def _tables(chain: Chain, w: Array) -> Array:
    """log p(y|x_0) as [B, y, x_0] for w [B], or [1, y, x_0] for a scalar."""
    return jax.vmap(chain.log_law)(jnp.atleast_1d(w))


def noise(key: Array, chain: Chain, x0: Int[Array, "B *n"], w: Array) -> Int[Array, "B *n"]:
    """x_t ~ p(· | x_0), coordinates independent; w a scalar or [B]."""
    table = jnp.swapaxes(_tables(chain, w), 1, 2)  # [B, x_0, y]
    flat = x0.reshape(x0.shape[0], -1)
    rows = jnp.arange(x0.shape[0])[:, None] * (table.shape[0] > 1)
    drawn = jax.random.categorical(key, table[rows, flat], -1)
    return drawn.reshape(x0.shape).astype(jnp.int32)


def conditional_ratios(
    chain: Chain, x: Int[Array, "B *n"], x0: Int[Array, "B *n"], w: Array
) -> Float[Array, "B *n states"]:
    """p(y|x_0)/p(x|x_0) for every y with r(x|y) > 0, else 0: what a network is regressed on."""
    table = _tables(chain, w)
    shape, x, x0 = x.shape, x.reshape(x.shape[0], -1), x0.reshape(x.shape[0], -1)
    rows = jnp.arange(x.shape[0])[:, None] * (table.shape[0] > 1)
    column = jnp.swapaxes(table, 1, 2)[rows, x0]  # [B, n, y]
    here = jnp.take_along_axis(column, x[..., None], -1)
    ratios = jnp.where(_reachable(chain)[x], jnp.exp(column - here), 0)
    return ratios.reshape(*shape, chain.states)


def _reachable(chain: Chain) -> Array:
    """[x, y]: whether y ≠ x can jump to x."""
    into = (chain.generator > 0) & ~np.eye(chain.states, dtype=bool)
    return jnp.asarray(into)


def posterior_ratios(
    chain: Chain, log_posterior: Float[Array, "B *n values"], x: Int[Array, "B *n"], w: Array
) -> Float[Array, "B *n states"]:
    """Σ_{x_0} p(x_0|x) p(y|x_0)/p(x|x_0) for every y with r(x|y) > 0, else 0.

    log_posterior: logits of x_0; values of x_0 that cannot lead to x are left out of it.
    """
    table = _tables(chain, w)[:, :, : chain.values]
    shape, x = x.shape, x.reshape(x.shape[0], -1)
    rows = jnp.arange(x.shape[0])[:, None] * (table.shape[0] > 1)
    here = table[rows, x]  # [B, n, x_0]
    possible = here > -jnp.inf
    logits = log_posterior.reshape(*x.shape, chain.values)
    weights = jax.nn.softmax(jnp.where(possible, logits, -jnp.inf), -1)
    lever = jnp.where(possible, weights * jnp.exp(-jnp.where(possible, here, 0)), 0)
    every = jnp.exp(table)[rows[:, 0]]  # [B, y, x_0]
    ratios = jnp.einsum("bnv,byv->bny", lever, every)
    ratios = jnp.where(_reachable(chain)[x], ratios, 0)
    return ratios.reshape(*shape, chain.states)


def marginal_ratios(chain: Chain, p0: Float[Array, " values"], w: Array) -> Float[Array, "x y"]:
    """p_t(y)/p_t(x) for one coordinate with the law p0, as [x, y], 0 where r(x|y) = 0."""
    p = jnp.exp(chain.log_law(w))[:, : chain.values] @ p0
    return jnp.where(_reachable(chain) & (p > 0)[:, None], p[None] / p[:, None], 0)


def reverse_rates(
    chain: Chain, ratios: Float[Array, "*n states"], x: Int[Array, "*n"], rate: Array | float
) -> Float[Array, "*n states"]:
    """r̄(y|x) = λ r(x|y) ratio[y], 0 for y = x; negative ratios count as 0."""
    into = jnp.asarray(chain.generator * (1 - np.eye(chain.states)), ratios.dtype)
    return rate * into[x] * jnp.maximum(ratios, 0)


def ratio_loss(
    apply: Callable[[Any, Array, Array], Array],
    params: Any,
    key: Array,
    x0: Int[Array, "B *n"],
    chain: Chain,
    process: Process,
) -> tuple[Array, Array]:
    """Mean over batch and coordinates of Σ_y |φ_y - p(y|x_0)/p(x|x_0)|² over y with r(x|y) > 0.

    apply(params, x [B, *n] int32, t [B]) -> [B, *n, K]. Its minimiser is p_t(y)/p_t(x). `process`
    gives the times and the schedule only. Returns the loss and the errors by example [B].
    """
    key_t, key_x = jax.random.split(key)
    unit = sample_time(key_t, x0.shape[0], "stratified")
    t = process.t_min + (process.t_max - process.t_min) * unit
    w = process.w(t)
    x = noise(key_x, chain, x0, w)
    target = conditional_ratios(chain, x, x0, w)
    residual = jnp.where(_reachable(chain)[x], apply(params, x, t) - target, 0)
    each = jnp.mean(jnp.square(residual).sum(-1).reshape(x0.shape[0], -1), 1)
    return jnp.mean(each), each


def draw_initial(key: Array, chain: Chain, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Independent draws from the chain's initial law, int32."""
    logits = jnp.log(jnp.asarray(chain.initial, jnp.result_type(float)))
    return jax.random.categorical(key, logits, shape=shape).astype(jnp.int32)


def euler_jump(
    key: Array, x: Int[Array, "*n"], rates: Float[Array, "*n states"], h: Array | float
) -> Int[Array, "*n"]:
    """At most one jump a coordinate: to y with probability h rates[y], or its share if > 1."""
    total = h * rates.sum(-1, keepdims=True)
    moves = h * rates / jnp.maximum(total, 1)
    here = jax.nn.one_hot(x, rates.shape[-1], dtype=rates.dtype)
    stay = jnp.maximum(1 - total, 0)
    probabilities = moves * (1 - here) + stay * here
    return jax.random.categorical(key, jnp.log(probabilities), -1).astype(x.dtype)


def sample(
    key: Array,
    x: Int[Array, "B *n"],
    rates: JumpRates,
    ts: Float[Array, " m"],
) -> Int[Array, "B *n"]:
    """Euler jumps down the decreasing times `ts` with rates(x, t scalar) -> [B, *n, K]."""

    def body(x: Array, number: Array) -> tuple[Array, None]:
        t, s = ts[number], ts[number + 1]
        at = jax.random.fold_in(key, number)
        return euler_jump(at, x, rates(x, t), t - s), None

    return jax.lax.scan(body, x, jnp.arange(ts.shape[0] - 1))[0]


def rate_function(
    chain: Chain,
    process: Process,
    network: Callable[[Array, Array], Array],
    head: str = "ratio",
) -> JumpRates:
    """(x, t) -> reverse rates [B, *n, K] from a network of (x int32, t [B]).

    head: "ratio", the network gives p_t(y)/p_t(x) [B, *n, K]; "posterior", logits [B, *n, values].
    """
    if head not in ("ratio", "posterior"):
        raise UserError(f"head={head!r} is neither 'ratio' nor 'posterior'")

    def rates(x: Array, t: Array) -> Array:
        times = jnp.broadcast_to(t, x.shape[:1])
        out = network(x, times)
        ratios = out if head == "ratio" else posterior_ratios(chain, out, x, process.w(t))
        rate = bcast(process.rate(t), ratios)
        return reverse_rates(chain, ratios, x, rate)

    return rates
