"""The Ehrenfest process and its scaling.

Winkler, Richter and Opper, "Bridging discrete and continuous state spaces: Exploring the Ehrenfest
process in time-continuous diffusion models", ICML 2024.

S particles sit in two boxes and each changes its box at rate λ(t)/2. The state k in {0, …, S} is
the number in one box; x = δ (k - S/2) with δ = 2/√S is the scaled state, whose law tends to that
of the Ornstein-Uhlenbeck process dX = -λ X dt + √(2λ) dW as S grows. With w(t) = exp(-∫ λ):

    E[x_t | x_0] = w x_0,   Var[x_t | x_0] = 1 - w²   for every S.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import choose, in_range, one_of, positive_int
from rflib.core.errors import UserError
from rflib.diffusion import schedule as schedules
from rflib.diffusion.ctmc import Rates
from rflib.diffusion.schedule import Schedule

# "cosine" is the authors': w, not w², is a squared cosine; see `schedules.ehrenfest_cosine`.
SCHEDULES = {
    "song": schedules.vp_linear,
    "cosine": schedules.ehrenfest_cosine,
    "cosine_ddpm": schedules.cosine_simple,
    "constant": schedules.constant,
}
INITIAL = ("binomial", "gaussian")


@dataclass(frozen=True)
class Process:
    """size: S. schedule: gives w = α(t) and λ = -d log α/dt. Times run from t_min to t_max."""

    size: int
    schedule: Schedule
    t_min: float = 0.01
    t_max: float = 0.99

    @property
    def delta(self) -> float:
        """δ = 2/√S, the distance of neighbouring scaled states."""
        return 2 / math.sqrt(self.size)

    def w(self, t: Array | float) -> Array:
        """w(t) = exp(-∫_0^t λ)."""
        return self.schedule.alpha(jnp.asarray(t))

    def sig2(self, t: Array | float) -> Array:
        """1 - w(t)², the variance of x_t given x_0."""
        return jnp.square(self.schedule.sigma(jnp.asarray(t)))

    def rate(self, t: Array | float) -> Array:
        """λ(t)."""
        return self.schedule.rate(jnp.asarray(t))

    def to_x(self, k: Array, dtype: jnp.dtype | None = None) -> Array:
        """x = δ (k - S/2) = (2k - S)/√S; integers keep large S exact until here."""
        dtype = dtype or jnp.result_type(float)
        return (2 * k - self.size).astype(dtype) / math.sqrt(self.size)

    def to_k(self, x: Array) -> Array:
        """The state nearest to x, int32, within {0, …, S}."""
        k = jnp.round(x * (math.sqrt(self.size) / 2) + self.size / 2)
        return jnp.clip(k, 0, self.size).astype(jnp.int32)

    def times(self, steps: int) -> Float[Array, " n"]:
        """t_max down to t_min in `steps` equal steps: [steps + 1]."""
        return jnp.linspace(self.t_max, self.t_min, positive_int("steps", steps) + 1)


def make_process(
    size: int,
    schedule: str = "song",
    *,
    t_min: float = 0.01,
    t_max: float = 0.99,
    bmin: float = 0.1,
    bmax: float = 20.0,
) -> Process:
    """A process by the name of its schedule; bmin and bmax are for "song".

    "song": w = exp(-t² (bmax - bmin)/4 - t bmin/2). "cosine": w = cos²(½π t), λ = π tan(½π t)
    clipped to [1e-4, 1e3]. "cosine_ddpm": w = cos(½π t). "constant": w = exp(-t), t_max free.

    Raises:
        UserError: unknown schedule or times out of order, or above 1 (but for "constant").
    """
    positive_int("size", size)
    made = choose("schedule", schedule, SCHEDULES)
    in_range("t_min", t_min, 0)
    in_range("t_max", t_max, t_min, None if schedule == "constant" else 1.0, open_low=True)
    return Process(size, made(bmin, bmax) if schedule == "song" else made(), t_min, t_max)


def forward_rates(k: Int[Array, "..."], size: int, rate: Array | float) -> Rates:
    """birth r(k + 1|k) = λ (S - k)/2 and death r(k - 1|k) = λ k/2; in x, λ (√S/4)(√S ∓ x)."""
    rate = jnp.asarray(rate, jnp.result_type(float, rate))
    k = k.astype(rate.dtype)
    return Rates(rate * (size - k) / 2, rate * k / 2)


def jump_moments(rates: Rates, delta: float) -> tuple[Array, Array]:
    """(b, D): b = δ (birth - death), D = δ² (birth + death); forward they are -λ x and 2 λ."""
    return delta * (rates.birth - rates.death), delta**2 * (rates.birth + rates.death)


def draw_initial(
    key: Array, shape: tuple[int, ...], process: Process, kind: str = "binomial"
) -> Int[Array, "..."]:
    """The start of the reverse process, int32: Bin(S, ½), or N(0, 1) rounded to the lattice."""
    one_of("init", kind, INITIAL)
    if kind == "gaussian":
        return process.to_k(jax.random.normal(key, shape))
    if process.size > 4096:
        raise UserError(f"init='binomial' is for size <= 4096, not {process.size}: take 'gaussian'")
    if process.size <= 64:  # as a sum of coins: the general sampler takes seconds to compile
        return jnp.sum(jax.random.bernoulli(key, 0.5, (*shape, process.size)), -1, jnp.int32)
    return jax.random.binomial(key, process.size, 0.5, shape).astype(jnp.int32)
