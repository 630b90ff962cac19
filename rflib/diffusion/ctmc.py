"""Jump processes in continuous time on {0, …, S}: laws, leaps and exact simulation.

Columns are origins: the generator has Q[y, x] = r(y|x), the rate of the jump from x to y, and the
master equation is dp/dt = Q p. Simulation runs in the time of the forward process, downwards, with
rates of the reversed process. States are integers throughout.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import xlog1py, xlogy
from jaxtyping import Float, Int
from scipy.special import gammaln

from rflib.core.checks import in_range

# Up to the first mean a few terms of the distribution function do, up to the second more; above
# it a rounded normal number.
SMALL_MEAN, LARGE_MEAN = 4.0, 50.0
_TERMS, _MORE_TERMS = 16, 128


class Rates(NamedTuple):
    """Rates of one unit up and one unit down in each coordinate, both >= 0.

    negative: share of rates that a model gave below 0 and that were set to 0.
    """

    birth: Array
    death: Array
    negative: Array | float = 0.0


class Leap(NamedTuple):
    """k: new state. clipped: share of coordinates that a leap carried out of {0, …, S}."""

    k: Array
    clipped: Array


class Jumps(NamedTuple):
    """states: [n - 1, D] at the times ts[1:]. count: of jumps. halvings: windows found too long."""

    states: Array
    count: Array
    halvings: Array


def log_factorials(n: int) -> np.ndarray:
    """log 0!, …, log n! in float64."""
    return gammaln(np.arange(n + 1) + 1.0)


def binomial_log_pmf(j: Array, n: Array, p: Array, table: Array) -> Array:
    """log P(Bin(n, p) = j), -inf outside 0 … n, exact at p = 0 and p = 1.

    table: log factorials up to the largest n, in the dtype of the result.
    """
    inside = (j >= 0) & (j <= n)
    i = jnp.where(inside, j, 0)
    choose = table[n] - table[i] - table[n - i]
    rest = (n - i).astype(table.dtype)
    value = choose + xlogy(i.astype(table.dtype), p) + xlog1py(rest, -p)
    return jnp.where(inside, value, -jnp.inf)


def two_binomials_log_pmf(
    k: Int[Array, "..."],
    k0: Int[Array, "..."],
    size: int,
    stay: Array | float,
    switch: Array | float,
) -> Float[Array, "..."]:
    """log P(Bin(k0, stay) + Bin(size - k0, switch) = k), elementwise.

    The number of `size` two-state particles that are up, of which k0 were, if each stays up with
    probability `stay` and comes up with probability `switch`. All arguments broadcast; the result
    has the dtype of `stay`. O(size) work an entry.
    """
    stay = jnp.asarray(stay, jnp.result_type(float, stay))
    switch = jnp.asarray(switch, stay.dtype)
    table = jnp.asarray(log_factorials(size), stay.dtype)
    shape = jnp.broadcast_shapes(k.shape, k0.shape, stay.shape)
    k, k0, stay, switch = (jnp.broadcast_to(a, shape)[..., None] for a in (k, k0, stay, switch))
    j = jnp.arange(size + 1).reshape((1,) * len(shape) + (-1,))
    terms = binomial_log_pmf(j, k0, stay, table)
    terms += binomial_log_pmf(k - j, size - k0, switch, table)
    return jax.nn.logsumexp(terms, -1)


def poisson(key: Array, mean: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """Poisson numbers, int32, forty times faster than `jax.random.poisson` for small means.

    mean <= 50: inversion of one uniform, over 16 terms for mean <= 4 (the tail beyond has 5e-6 at
    mean 4) and over 128 above; larger ones: a normal number of that mean and variance, rounded and
    at least 0. What no entry of the batch needs is not computed.
    """
    key_u, key_n = jax.random.split(key)
    u = jax.random.uniform(key_u, mean.shape, mean.dtype)
    m = jnp.minimum(mean, SMALL_MEAN)
    term = cdf = jnp.exp(-m)
    small = (u > cdf).astype(jnp.int32)
    for i in range(1, _TERMS):  # unrolled: one fused pass
        term = term * m / i
        cdf = cdf + term
        small += (u > cdf).astype(jnp.int32)

    def middle() -> Array:
        m = jnp.minimum(mean, LARGE_MEAN)

        def add(i: Array, state: tuple) -> tuple:
            term, cdf, count = state
            term = term * m / i.astype(m.dtype)
            cdf = cdf + term
            return term, cdf, count + (u > cdf).astype(jnp.int32)

        first = jnp.exp(-m)
        start = (first, first, (u > first).astype(jnp.int32))
        return jnp.where(mean > SMALL_MEAN, jax.lax.fori_loop(1, _MORE_TERMS, add, start)[2], small)

    def large() -> Array:
        noise = jax.random.normal(key_n, mean.shape, mean.dtype)
        rounded = jnp.maximum(jnp.round(mean + jnp.sqrt(mean) * noise), 0).astype(jnp.int32)
        return jnp.where(mean > LARGE_MEAN, rounded, found)

    between = jnp.any((mean > SMALL_MEAN) & (mean <= LARGE_MEAN))
    found = jax.lax.cond(between, middle, lambda: small)
    return jax.lax.cond(jnp.any(mean > LARGE_MEAN), large, lambda: found)


def tau_leap(key: Array, k: Int[Array, "*n"], rates: Rates, h: Array | float, size: int) -> Leap:
    """k + Poisson(h birth) - Poisson(h death), clipped to {0, …, size}; rates frozen for h."""
    up, down = poisson(key, jnp.stack([h * rates.birth, h * rates.death]))
    moved = k + up - down
    kept = jnp.clip(moved, 0, size)
    return Leap(kept, jnp.mean((kept != moved).astype(rates.birth.dtype)))


def euler_categorical(
    key: Array, k: Int[Array, "*n"], rates: Rates, h: Array | float, size: int
) -> Leap:
    """At most one jump a coordinate: up with probability h birth, down with h death.

    Both are divided by their sum where that exceeds 1. Needs a small h, but cannot overshoot.
    """
    up, down = h * rates.birth, h * rates.death
    scale = jnp.maximum(up + down, 1)
    u = jax.random.uniform(key, k.shape, up.dtype)
    step = (u < up / scale).astype(k.dtype) - (u > 1 - down / scale).astype(k.dtype)
    kept = jnp.clip(k + step, 0, size)
    return Leap(kept, jnp.mean((kept != k + step).astype(up.dtype)))


def unit_jump(k: Int[Array, " D"], coordinate: Array, event: Array) -> Int[Array, " D"]:
    """Event 0 is one up, event 1 one down."""
    return k.at[coordinate].add(1 - 2 * event)


def gillespie(
    key: Array,
    k: Int[Array, " D"],
    rates: Callable[[Array, Array], Float[Array, "D events"]],
    ts: Float[Array, " n"],
    *,
    jump: Callable[[Array, Array, Array], Array] = unit_jump,
    window: float = 0.1,
    slack: float = 1.2,
) -> Jumps:
    """One exact path down the decreasing times `ts` from k at ts[0]; `vmap` for many.

    Thinning: events are proposed at the rate L = slack x the larger total rate at the two ends of
    a window and accepted with probability (total rate)/L. A total rate above L at a proposal
    halves the window, which is counted; the window doubles again, up to `window`, after each. The
    path is exact if there was no halving: choose `window` and `slack` such that there is none,
    and `window` shorter than any peak of the rates.

    rates(k, t): rates of the events of each coordinate. jump(k, coordinate, event): the new state.
    """
    in_range("window", window, 0, open_low=True)
    in_range("slack", slack, 1)

    def total(k: Array, t: Array) -> Array:
        return jnp.sum(rates(k, t))

    def advance(state: tuple, stop: Array) -> tuple[tuple, Array]:
        def proposal(state: tuple) -> tuple:
            key, k, t, width, count, halvings = state
            key, key_t, key_a, key_e = jax.random.split(key, 4)
            end = jnp.maximum(t - width, stop)
            bound = slack * jnp.maximum(total(k, t), total(k, end))
            when = t - jax.random.exponential(key_t, (), t.dtype) / jnp.maximum(bound, 1e-30)
            past = when <= end
            at = jnp.where(past, end, when)
            each = rates(k, at)
            share = jnp.sum(each) / jnp.maximum(bound, 1e-30)
            broken = ~past & (share > 1)
            accepted = ~past & ~broken & (jax.random.uniform(key_a, (), t.dtype) < share)
            event = jax.random.categorical(key_e, jnp.log(each).ravel())
            place, kind = event // each.shape[1], event % each.shape[1]
            k = jnp.where(accepted, jump(k, place, kind), k)
            t = jnp.where(broken, t, at)
            width = jnp.where(broken, width / 2, jnp.where(past, 2 * width, width))
            width = jnp.minimum(width, window).astype(t.dtype)
            return key, k, t, width, count + accepted, halvings + broken

        state = jax.lax.while_loop(lambda s: s[2] > stop, proposal, state)
        return state, state[1]

    zero = jnp.zeros((), jnp.int32)
    start = (key, k, ts[0], jnp.full((), window, ts.dtype), zero, zero)
    end, states = jax.lax.scan(advance, start, ts[1:])
    return Jumps(states, end[4], end[5])
