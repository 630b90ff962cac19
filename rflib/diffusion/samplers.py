"""One driver for all samplers of continuous states: a scan over pairs of times (t, s), t > s.

A denoiser is `denoise(x, t) -> x̂_0` with t of shape (B,); conditioning, guidance and clipping are
already in it. A method is a `Method`: what it carries from step to step, and one step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, multiple_of, one_of
from rflib.core.errors import UserError
from rflib.diffusion.schedule import Schedule

Denoise = Callable[[Array, Array], Array]


class Level(NamedTuple):
    """A time and its coefficients, all scalars: alpha, sigma, rate = -d log α/dt, g² = σ² dγ/dt."""

    t: Array
    alpha: Array
    sigma: Array
    rate: Array
    diffusion: Array


class Method(NamedTuple):
    """init(x) -> carry; step(key, denoise, x, t, s, carry) -> (x at s, x̂_0 at t, carry)."""

    init: Callable[[Array], Any]
    step: Callable[..., tuple[Array, Array, Any]]


class Inpaint(NamedTuple):
    """Entries with mask 1 are `known`: "noised" to the level of each step, or "clean"."""

    mask: Array
    known: Array
    mode: str = "noised"


class Sampled(NamedTuple):
    """x0: the denoiser's last x̂_0. x: the state at the last time. trace: [n, B, ...] or None."""

    x0: Array
    x: Array
    trace: Array | None


def draw_normal(key: Array, x: Array) -> Array:
    """Standard normal noise like x, from one key or from one key an example.

    With a key an example the noise of an example does not depend on the rest of its batch.
    """
    if key.ndim == 0:
        return jax.random.normal(key, x.shape, x.dtype)
    return jax.vmap(lambda k: jax.random.normal(k, x.shape[1:], x.dtype))(key)


def fold(key: Array, number: Array | int) -> Array:
    """`fold_in` for one key or for one key an example."""
    if key.ndim == 0:
        return jax.random.fold_in(key, number)
    return jax.vmap(lambda k: jax.random.fold_in(k, number))(key)


def _level(schedule: Schedule, t: Array) -> Level:
    return Level(t, schedule.alpha(t), schedule.sigma(t), schedule.rate(t), schedule.diffusion(t))


def sample(
    key: Array,
    denoise: Denoise,
    x: Float[Array, "B *shape"],
    ts: Float[Array, " n"],
    schedule: Schedule,
    method: Method,
    *,
    inpaint: Inpaint | None = None,
    trace_every: int = 0,
) -> Sampled:
    """From x at ts[0] down the times `ts` to ts[-1], and the denoiser's x̂_0 there.

    key: one key, or one an example. trace_every: also return the state after every so many steps
    (it must divide the number of steps, n - 1).

    Raises:
        UserError: fewer than two times, `trace_every` that does not divide the steps.
    """
    steps = ts.shape[0] - 1
    if steps < 1:
        raise UserError(f"ts must hold at least two times, got {ts.shape[0]}")
    blocks = 1
    if trace_every:
        blocks = multiple_of("steps", steps, "trace_every", trace_every) // trace_every
    if inpaint is not None:
        one_of("inpaint.mode", inpaint.mode, ("noised", "clean"))

    def body(state: Any, number: Array) -> tuple[Any, None]:
        x, carry = state
        t, s = _level(schedule, ts[number]), _level(schedule, ts[number + 1])
        key_step, key_known = (fold(fold(key, number), i) for i in (0, 1))
        x, _, carry = method.step(key_step, _batched(denoise), x, t, s, carry)
        if inpaint is not None:
            known = inpaint.known
            if inpaint.mode == "noised":
                known = s.alpha * known + s.sigma * draw_normal(key_known, x)
            x = jnp.where(inpaint.mask > 0, known, x)
        return (x, carry), None

    def block(state: Any, numbers: Array) -> tuple[Any, Array | None]:
        state, _ = jax.lax.scan(body, state, numbers)
        return state, state[0] if trace_every else None

    numbers = jnp.arange(steps).reshape(blocks, -1)
    (x, _), trace = jax.lax.scan(block, (x, method.init(x)), numbers)
    return Sampled(_batched(denoise)(x, ts[-1]), x, trace)


def _batched(denoise: Denoise) -> Denoise:
    return lambda x, t: denoise(x, jnp.broadcast_to(t, x.shape[:1]).astype(x.dtype))


def _nothing(x: Array) -> tuple[()]:
    return ()


def _posterior(t: Level, s: Level) -> tuple[Array, Array, Array, Array]:
    """(c_0, c_t, v, b): q(x_s | x_t, x_0) = N(c_0 x_0 + c_t x_t, v), and b = Var[x_t | x_s]."""
    forward = t.alpha / s.alpha
    left = jnp.square(forward * s.sigma / t.sigma)  # share of σ_t² that is there at s already
    beta = jnp.square(t.sigma) * (1 - left)
    return s.alpha * (1 - left), left / forward, beta * jnp.square(s.sigma / t.sigma), beta


def ddim(eta: float = 0.0) -> Method:
    """x_s = α_s x̂_0 + √(σ_s² - v) ε̂ + √v z, v = η² times the posterior variance.

    Song et al., ICLR 2021. eta = 0 is deterministic; eta = 1 is ancestral sampling.
    """
    in_range("eta", eta, 0, 1)

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        x0 = denoise(x, t.t)
        eps = (x - t.alpha * x0) / t.sigma
        if eta == 0:
            return s.alpha * x0 + s.sigma * eps, x0, carry
        variance = eta**2 * _posterior(t, s)[2]
        rest = jnp.sqrt(jnp.maximum(jnp.square(s.sigma) - variance, 0))
        noise = jnp.sqrt(variance) * draw_normal(key, x)
        return s.alpha * x0 + rest * eps + noise, x0, carry

    return Method(_nothing, step)


def ddpm(variance: str = "posterior", share: float = 0.5) -> Method:
    """x_s ~ N(c_0 x̂_0 + c_t x_t, v), the mean of q(x_s | x_t, x_0) (Ho et al., NeurIPS 2020).

    variance: "posterior" that of q(x_s | x_t, x_0); "beta" that of q(x_t | x_s); "interp" the
    geometric mean of both, with weight `share` on "beta".
    """
    one_of("variance", variance, ("posterior", "beta", "interp"))
    power = {"posterior": 0.0, "beta": 1.0, "interp": share}[variance]

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        x0 = denoise(x, t.t)
        of_x0, of_xt, small, large = _posterior(t, s)
        noise = jnp.sqrt(large**power * small ** (1 - power)) * draw_normal(key, x)
        return of_x0 * x0 + of_xt * x + noise, x0, carry

    return Method(_nothing, step)


def _score(x: Array, x0: Array, t: Level) -> Array:
    return (t.alpha * x0 - x) / jnp.square(t.sigma)


def em_sde() -> Method:
    """Euler-Maruyama of the reverse SDE: x_s = x + h (λ x + g² score) + √(g² h) z, h = t - s."""

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        x0 = denoise(x, t.t)
        h = t.t - s.t
        drift = t.rate * x + t.diffusion * _score(x, x0, t)
        noise = jnp.sqrt(t.diffusion * h) * draw_normal(key, x)
        return x + h * drift + noise, x0, carry

    return Method(_nothing, step)


def pf_euler() -> Method:
    """Euler of the probability-flow ODE in t: x_s = x + h (λ x + ½ g² score), h = t - s."""

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        x0 = denoise(x, t.t)
        drift = t.rate * x + 0.5 * t.diffusion * _score(x, x0, t)
        return x + (t.t - s.t) * drift, x0, carry

    return Method(_nothing, step)


def heun() -> Method:
    """Heun's method for z = x/α as a function of σ̃ = σ/α, where dz/dσ̃ = ε̂: two denoisings a step.

    The same ODE as `pf_euler`, in the variables of Karras et al. (NeurIPS 2022); Euler there is
    `ddim()`. A last step to σ = 0 is an Euler step.
    """

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        x0 = denoise(x, t.t)
        first = (x - t.alpha * x0) / t.sigma
        h = s.sigma / s.alpha - t.sigma / t.alpha
        ahead = s.alpha * (x / t.alpha + h * first)
        safe = jnp.where(s.sigma > 0, s.sigma, 1)
        second = (ahead - s.alpha * denoise(ahead, s.t)) / safe
        slope = jnp.where(s.sigma > 0, (first + second) / 2, first)
        return s.alpha * (x / t.alpha + h * slope), x0, carry

    return Method(_nothing, step)


def dpmpp_2m() -> Method:
    """DPM-Solver++(2M) (Lu et al., 2022): x_s = σ_s/σ_t x - α_s (e^{-h} - 1) D, h = ℓ_s - ℓ_t.

    ℓ = log(α/σ); D = x̂_0 + (x̂_0 - x̂_0 of the step before) h/(2 h before), x̂_0 in the first step.
    """

    def init(x: Array) -> tuple[Array, Array, Array]:
        return jnp.zeros_like(x), jnp.ones((), x.dtype), jnp.zeros((), bool)

    def step(key: Array, denoise: Denoise, x: Array, t: Level, s: Level, carry: Any) -> Any:
        before, width, later = carry
        x0 = denoise(x, t.t)
        h = jnp.log(s.alpha / s.sigma) - jnp.log(t.alpha / t.sigma)
        slope = jnp.where(later, h / (2 * width), 0)
        direction = x0 + slope * (x0 - before)
        moved = s.sigma / t.sigma * x - s.alpha * jnp.expm1(-h) * direction
        return moved, x0, (x0, h, jnp.ones((), bool))

    return Method(init, step)


METHODS = {
    "ddim": ddim,
    "ddpm": ddpm,
    "em_sde": em_sde,
    "pf_euler": pf_euler,
    "heun": heun,
    "dpmpp_2m": dpmpp_2m,
}
