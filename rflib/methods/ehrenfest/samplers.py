"""Samplers of the reversed Ehrenfest process; the state is an int32 array all the way.

One driver (`sample`) takes the steps and the corrector; exact paths (`simulate`), draws through
the binomial bridge (`ancestral`) and the reverse Ornstein-Uhlenbeck process (`reverse_ou`) are
for small problems, for small S and for comparison.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import choose, in_range, multiple_of, one_of, positive_int
from rflib.diffusion import ctmc, samplers
from rflib.diffusion.ctmc import Jumps, Leap, Rates
from rflib.methods.ehrenfest import transition
from rflib.methods.ehrenfest.process import Process
from rflib.methods.ehrenfest.reverse import Network, RateFunction, with_forward

STEPS = ("tau_leap", "euler", "midpoint")
CORRECTOR_SCHEDULES = {
    "constant": lambda n, t: n + 0 * t,
    "decreasing": lambda n, t: n * t,
    "increasing": lambda n, t: n * (1 - t),
    "nonlinear": lambda n, t: n * (1 - t**0.33),
}


class Corrector(NamedTuple):
    """Leaps with reverse plus forward rates after each step (Campbell et al., NeurIPS 2022).

    n: number of leaps, made round(n), round(n t), round(n (1 - t)) or round(n (1 - t^.33)) by
    `schedule`. start: active once the time reached is below it. mult: length of a leap in steps.
    """

    n: int = 10
    schedule: str = "constant"
    start: float = 0.1
    mult: float = 1.5


class Clamp(NamedTuple):
    """Coordinates with mask 1 are held at `known`, integers: inpainting.

    mode: "noised" sets them to a draw of the forward process at the time of each step, "clean" to
    the values themselves.
    """

    mask: Array
    known: Int[Array, "..."]
    mode: str = "noised"


class Sampled(NamedTuple):
    """k: the states at t_min. trace: [n, B, ...] or None. The rest are means over the steps.

    mean_rate: of birth + death a coordinate. negative: share of rates set to 0. clipped: share of
    coordinates carried out of {0, …, S} by a leap. evaluations: calls of the rates.
    """

    k: Int[Array, "B *n"]
    trace: Array | None
    mean_rate: Array
    negative: Array
    clipped: Array
    evaluations: Array


def _leap(
    step: str, key: Array, k: Array, rates: RateFunction, t: Array, s: Array, size: int
) -> Any:
    """(Leap, Rates of the last evaluation) over one step from t down to s."""
    h, found = t - s, rates(k, t)
    if step == "tau_leap":
        return ctmc.tau_leap(key, k, found, h, size), found
    if step == "euler":
        return ctmc.euler_categorical(key, k, found, h, size), found
    # Rates at the middle of the step, at the rounded mean state there: second order in h.
    drift = jnp.round(h / 2 * (found.birth - found.death)).astype(k.dtype)
    middle = rates(jnp.clip(k + drift, 0, size), (t + s) / 2)
    return ctmc.tau_leap(key, k, middle, h, size), middle


def sample(
    key: Array,
    k: Int[Array, "B *n"],
    rates: RateFunction,
    process: Process,
    ts: Float[Array, " m"],
    *,
    step: str = "tau_leap",
    corrector: Corrector | None = None,
    clamp: Clamp | None = None,
    trace_every: int = 0,
) -> Sampled:
    """From k at ts[0] down the decreasing times `ts` (`process.times(steps)`).

    step: "tau_leap" Poisson numbers of jumps with rates frozen over the step; "euler" at most one
    jump a coordinate; "midpoint" a tau-leap with the rates of the middle, two evaluations a step.
    trace_every: also return the states after every so many steps; it must divide their number.

    Raises:
        UserError: an unknown choice, or `trace_every` that does not divide the steps.
    """
    one_of("step", step, STEPS)
    steps = positive_int("steps", ts.shape[0] - 1)
    blocks = steps // trace_every if trace_every else 1
    if trace_every:
        multiple_of("steps", steps, "trace_every", trace_every)
    if clamp is not None:
        one_of("clamp.mode", clamp.mode, ("noised", "clean"))
    if corrector is not None:
        choose("corrector.schedule", corrector.schedule, CORRECTOR_SCHEDULES)

    def body(k: Array, number: Array) -> tuple[Array, tuple]:
        t, s = ts[number], ts[number + 1]
        keys = jax.random.split(jax.random.fold_in(key, number), 3)
        leap, found = _leap(step, keys[0], k, rates, t, s, process.size)
        k, used = leap.k, jnp.asarray(2.0 if step == "midpoint" else 1.0, ts.dtype)
        if corrector is not None:
            k, more = _correct(keys[1], k, rates, process, s, t - s, corrector)
            used = used + more
        if clamp is not None:
            k = _clamp(keys[2], k, clamp, process, s)
        mean = jnp.mean(found.birth + found.death)
        return k, (mean, jnp.asarray(found.negative, mean.dtype), leap.clipped, used)

    def block(k: Array, numbers: Array) -> tuple[Array, Any]:
        k, seen = jax.lax.scan(body, k, numbers)
        return k, (k if trace_every else None, seen)

    numbers = jnp.arange(steps).reshape(blocks, -1)
    k, (trace, seen) = jax.lax.scan(block, k, numbers)
    mean, negative, clipped, used = seen
    return Sampled(k, trace, jnp.mean(mean), jnp.mean(negative), jnp.mean(clipped), jnp.sum(used))


def _correct(
    key: Array,
    k: Array,
    rates: RateFunction,
    process: Process,
    t: Array,
    h: Array,
    corrector: Corrector,
) -> tuple[Array, Array]:
    count = jnp.round(CORRECTOR_SCHEDULES[corrector.schedule](corrector.n, t))
    count = jnp.where(t < corrector.start, count, 0).astype(jnp.int32)

    def leap(number: Array, k: Array) -> Array:
        both = with_forward(rates(k, t), k, process, t)
        at = jax.random.fold_in(key, number)
        return ctmc.tau_leap(at, k, both, corrector.mult * h, process.size).k

    return jax.lax.fori_loop(0, count, leap, k), count.astype(h.dtype)


def _clamp(key: Array, k: Array, clamp: Clamp, process: Process, t: Array) -> Array:
    known = jnp.broadcast_to(clamp.known, k.shape).astype(k.dtype)
    if clamp.mode == "noised":
        known = transition.sample(key, known, process.w(t), process.size)
    return jnp.where(clamp.mask > 0, known, k)


def correct(
    key: Array,
    k: Int[Array, "B *n"],
    rates: RateFunction,
    process: Process,
    t: Array,
    leaps: int,
    length: float,
) -> Int[Array, "B *n"]:
    """`leaps` leaps of the given length with reverse plus forward rates at the fixed time t."""
    constant = Corrector(leaps, "constant", float("inf"), 1.0)
    return _correct(key, k, rates, process, t, jnp.asarray(length, t.dtype), constant)[0]


def forward(
    key: Array,
    k: Int[Array, "B *n"],
    process: Process,
    ts: Float[Array, " m"],
    step: str = "tau_leap",
) -> Int[Array, "B *n"]:
    """The forward process simulated by leaps up the increasing times `ts` (a check of leaping)."""
    one_of("step", step, ("tau_leap", "euler"))
    move: Callable[..., Leap] = ctmc.tau_leap if step == "tau_leap" else ctmc.euler_categorical

    def body(k: Array, number: Array) -> tuple[Array, None]:
        h, rate = ts[number + 1] - ts[number], process.rate(ts[number])
        up, down = rate * (process.size - k) / 2, rate * k / 2
        at = jax.random.fold_in(key, number)
        return move(at, k, Rates(up, down), h, process.size).k, None

    return jax.lax.scan(body, k, jnp.arange(ts.shape[0] - 1))[0]


def simulate(
    key: Array,
    k: Int[Array, "B D"],
    rates: RateFunction,
    ts: Float[Array, " m"],
    *,
    window: float = 0.1,
    slack: float = 1.2,
    frozen: bool = False,
) -> Jumps:
    """Exact paths by thinning (`ctmc.gillespie`): states [B, m - 1, D] at the times ts[1:].

    One jump of one coordinate at a time: for few coordinates. frozen: the rates of the last time
    of `ts` that was passed hold until the next one, the cheaper, inexact variant.
    """
    in_range("window", window, 0, open_low=True)

    def each(k: Array, t: Array) -> Array:
        if frozen:
            t = jnp.min(jnp.where(ts >= t, ts, jnp.inf))
        found = rates(k[None], t)
        return jnp.stack([found.birth[0], found.death[0]], -1)

    keys = jax.random.split(key, k.shape[0])
    return jax.vmap(lambda key, k: ctmc.gillespie(key, k, each, ts, window=window, slack=slack))(
        keys, k
    )


def ancestral(
    key: Array,
    k: Int[Array, "B *n"],
    log_posterior: Callable[[Array, Array], Float[Array, "B *n states"]],
    process: Process,
    ts: Float[Array, " m"],
) -> Int[Array, "B *n"]:
    """Draws k_0 from p(k_0 | k_t) and k_s from the bridge, step by step; exact if the posterior is.

    p(k_s | k_t, k_0) is proportional to p(k_t | k_s) p(k_s | k_0), with the signals w(t)/w(s) and
    w(s). log_posterior(k, t scalar): unnormalised. O(S³) work a step: for S up to about 64.
    """

    def body(k: Array, number: Array) -> tuple[Array, None]:
        t, s = ts[number], ts[number + 1]
        key_0, key_s = jax.random.split(jax.random.fold_in(key, number))
        clean = jax.random.categorical(key_0, log_posterior(k, t), -1)
        w_t, w_s = process.w(t), process.w(s)
        late = transition.log_pmf(process.size, jnp.minimum(w_t / w_s, 1))
        early = transition.log_pmf(process.size, w_s)
        # late[k_t, k_s] and early[k_s, k_0]: rows by k_t and by k_0, over k_s.
        logits = late[k] + early.T[clean]
        return jax.random.categorical(key_s, logits, -1).astype(k.dtype), None

    return jax.lax.scan(body, k, jnp.arange(ts.shape[0] - 1))[0]


def reverse_ou(
    key: Array,
    x: Float[Array, "B *n"],
    score: Network,
    process: Process,
    ts: Float[Array, " m"],
    *,
    trace_every: int = 0,
) -> samplers.Sampled:
    """Euler-Maruyama of the reverse Ornstein-Uhlenbeck process with score(x, t [B]) -> [B, *n].

    X <- X + h λ (X + 2 score) + √(2 λ h) z. The same network drives the jump process through
    R± = 1 ± δ score; the result's x0 is (x + σ² score)/w at the last time.
    """

    def denoise(x: Array, t: Array) -> Array:
        w, sig2 = (f(t).reshape((-1,) + (1,) * (x.ndim - 1)) for f in (process.w, process.sig2))
        return (x + sig2 * score(x, t)) / w

    method = samplers.em_sde()
    return samplers.sample(key, denoise, x, ts, process.schedule, method, trace_every=trace_every)
