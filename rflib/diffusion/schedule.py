"""Noise schedules x_t = α(t) x_0 + σ(t) ε on t in [0, 1], and tables of discrete steps.

Everything else is derived from the two functions: the signal-to-noise ratio α²/σ², its negative
logarithm γ, and the rate λ(t) = -d log α/dt, which is β/2 of the variance-preserving SDE
dX = -½ β X dt + √β dW and the time change of a jump process with the same signal.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, positive_int
from rflib.core.errors import UserError

Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Schedule:
    """alpha, sigma: pure functions of time, elementwise. rate_range: bounds of `rate`, or None."""

    alpha: Function
    sigma: Function
    rate_range: tuple[float, float] | None = None

    def logsnr(self, t: Array) -> Array:
        """log(α²/σ²)."""
        return 2 * (jnp.log(self.alpha(t)) - jnp.log(self.sigma(t)))

    def gamma(self, t: Array) -> Array:
        """-log(α²/σ²), which grows with t."""
        return -self.logsnr(t)

    def rate(self, t: Array) -> Array:
        """λ(t) = -d log α/dt, within `rate_range` if that is set."""
        rate = slope(lambda t: -jnp.log(self.alpha(t)), t)
        return rate if self.rate_range is None else jnp.clip(rate, *self.rate_range)

    def diffusion(self, t: Array) -> Array:
        """g² = σ² dγ/dt, the squared noise of dX = (d log α/dt) X dt + g dW."""
        return jnp.square(self.sigma(t)) * slope(self.gamma, t)


def slope(function: Function, t: Array) -> Array:
    """Elementwise derivative of an elementwise function, by one forward-mode product."""
    t = jnp.asarray(t, jnp.result_type(float) if not hasattr(t, "dtype") else None)
    return jax.jvp(function, (t,), (jnp.ones_like(t),))[1]


def bcast(t: Array, x: Array) -> Array:
    """`t`, a scalar or of shape (B,), with axes of length 1 added until it broadcasts against x.

    Raises:
        UserError: t is neither a scalar nor as long as the first axis of x.
    """
    t = jnp.asarray(t)
    if t.ndim == 0:
        return t
    if t.ndim != 1 or x.ndim < 1 or t.shape[0] not in (1, x.shape[0]):
        raise UserError(f"times of shape {t.shape} do not fit a batch of shape {x.shape}")
    return t.reshape(t.shape + (1,) * (x.ndim - 1))


def _from_log_alpha(log_alpha: Function, rate_range: tuple[float, float] | None = None) -> Schedule:
    """Variance preserving: σ = √(1 - α²), without cancellation where α is almost 1."""
    return Schedule(
        lambda t: jnp.exp(log_alpha(t)),
        lambda t: jnp.sqrt(-jnp.expm1(2 * log_alpha(t))),
        rate_range,
    )


def vp_linear(bmin: float = 0.1, bmax: float = 20.0) -> Schedule:
    """log α = -t² (bmax - bmin)/4 - t bmin/2: β(t) grows linearly (Song et al., ICLR 2021)."""
    in_range("bmin", bmin, 0)
    in_range("bmax", bmax, bmin)
    return _from_log_alpha(lambda t: -t * t * (bmax - bmin) / 4 - t * bmin / 2)


def constant() -> Schedule:
    """α = exp(-t): the Ornstein-Uhlenbeck process with rate 1. Times may exceed 1."""
    return _from_log_alpha(lambda t: -t)


def _from_logsnr(logsnr: Function) -> Schedule:
    return Schedule(
        lambda t: jnp.sqrt(jax.nn.sigmoid(logsnr(t))),
        lambda t: jnp.sqrt(jax.nn.sigmoid(-logsnr(t))),
    )


def cosine(s: float = 0.008, clip: float = 20.0) -> Schedule:
    """α² = cos²(½π (t + s)/(1 + s)) / cos²(½π s/(1 + s)), log-SNR kept in [-clip, clip].

    Nichol and Dhariwal, ICML 2021.
    """
    start = math.cos(math.pi / 2 * s / (1 + s)) ** 2

    def logsnr(t: Array) -> Array:
        square = jnp.square(jnp.cos(math.pi / 2 * (t + s) / (1 + s))) / start
        tiny = math.exp(-clip)
        square = jnp.clip(square, tiny / (1 + tiny), 1 / (1 + tiny))
        return jnp.clip(jnp.log(square) - jnp.log1p(-square), -clip, clip)

    return _from_logsnr(logsnr)


def cosine_simple() -> Schedule:
    """α = cos(½π t), σ = sin(½π t); λ = ½π tan(½π t)."""
    return Schedule(lambda t: jnp.cos(math.pi / 2 * t), lambda t: jnp.sin(math.pi / 2 * t))


def ehrenfest_cosine() -> Schedule:
    """α = cos²(½π t) and λ = π tan(½π t), clipped to [1e-4, 1e3].

    It is α, not α², that is a squared cosine: not the cosine schedule of DDPM (`cosine`,
    `cosine_simple`), under which noise grows more slowly.
    """
    return _from_log_alpha(lambda t: 2 * jnp.log(jnp.cos(math.pi / 2 * t)), (1e-4, 1e3))


def rectified_flow() -> Schedule:
    """α = 1 - t, σ = t."""
    return Schedule(lambda t: 1 - t, lambda t: t)


def edm(low: float = 0.002, high: float = 80.0, rho: float = 7.0) -> Schedule:
    """α = 1, σ = (low^(1/ρ) + t (high^(1/ρ) - low^(1/ρ)))^ρ (Karras et al., NeurIPS 2022)."""
    first, last = low ** (1 / rho), high ** (1 / rho)
    return Schedule(jnp.ones_like, lambda t: (first + t * (last - first)) ** rho)


def linear_betas(steps: int) -> np.ndarray:
    """β from 1e-4 to 0.02, times 1000/steps: float64 [steps] (Ho et al., NeurIPS 2020)."""
    scale = 1000 / positive_int("steps", steps)
    return np.linspace(1e-4 * scale, 0.02 * scale, steps)


def squared_cosine_betas(steps: int) -> np.ndarray:
    """β_i = min(0.999, 1 - ᾱ((i+1)/steps)/ᾱ(i/steps)) with ᾱ(t) = cos²(½π (t + .008)/1.008)."""
    t = np.arange(positive_int("steps", steps) + 1) / steps
    abar = np.cos(np.pi / 2 * (t + 0.008) / 1.008) ** 2
    return np.minimum(1 - abar[1:] / abar[:-1], 0.999)


@dataclass(frozen=True)
class DiscreteSchedule:
    """T noise levels with ᾱ_i = Π_{j<=i} (1 - β_j); step i belongs to the time t = (i + 1)/T.

    abar: float64 [n], strictly decreasing. times: float64 [n], the times of the levels kept; after
    `respace` still those of the table that a network was trained on.
    """

    abar: np.ndarray
    times: np.ndarray

    @classmethod
    def from_betas(cls, betas: Sequence[float] | np.ndarray) -> "DiscreteSchedule":
        """Raises UserError unless every β lies in (0, 1)."""
        betas = np.asarray(betas, np.float64)
        if betas.ndim != 1 or not len(betas) or not np.all((betas > 0) & (betas < 1)):
            raise UserError("betas must be a vector of numbers in (0, 1)")
        return cls(np.cumprod(1 - betas), (np.arange(len(betas)) + 1) / len(betas))

    @property
    def betas(self) -> np.ndarray:
        """β_i = 1 - ᾱ_i/ᾱ_{i-1} between the levels that are kept, float64 [n]."""
        return 1 - self.abar / np.concatenate([[1.0], self.abar[:-1]])

    def respace(self, indices: Sequence[int] | np.ndarray) -> "DiscreteSchedule":
        """The same levels with only `indices` kept, which must increase.

        Raises:
            UserError: indices that do not increase or are not in 0 … n - 1.
        """
        kept = np.asarray(indices, np.int64)
        low, high = (kept[0], kept[-1]) if kept.ndim == 1 and len(kept) else (-1, -1)
        if low < 0 or high >= len(self.abar) or np.any(np.diff(kept) <= 0):
            raise UserError(f"indices={indices!r} must increase within 0 … {len(self.abar) - 1}")
        return DiscreteSchedule(self.abar[kept], self.times[kept])

    def posterior(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(c_0, c_t, v): q(x_{i-1} | x_i, x_0) = N(c_0 x_0 + c_t x_i, v I), float64 [n] each."""
        before, betas = np.concatenate([[1.0], self.abar[:-1]]), self.betas
        noise = 1 - self.abar
        return (
            np.sqrt(before) * betas / noise,
            np.sqrt(1 - betas) * (1 - before) / noise,
            betas * (1 - before) / noise,
        )

    def schedule(self) -> Schedule:
        """Continuous α, σ that meet the table at its times, log-SNR linear between them."""
        logsnr = np.log(self.abar) - np.log1p(-self.abar)

        def at(t: Array) -> Array:
            t = jnp.asarray(t)
            dtype = jnp.result_type(t.dtype, float)
            return jnp.interp(t, jnp.asarray(self.times, dtype), jnp.asarray(logsnr, dtype))

        return _from_logsnr(at)

    def index_at(self, logsnr: Float[Array, "*n"]) -> tuple[Array, Array]:
        """(i, inside): the fractional index whose log-SNR is the given one, by interpolation.

        Outside of the table i is the nearest end and `inside` is False.
        """
        logsnr = jnp.asarray(logsnr)
        table = (np.log(self.abar) - np.log1p(-self.abar))[::-1]
        places = np.arange(len(table), dtype=np.float64)[::-1]
        as_dtype = [jnp.asarray(a, logsnr.dtype) for a in (table, places)]
        inside = (logsnr >= table[0]) & (logsnr <= table[-1])
        return jnp.interp(logsnr, *as_dtype), inside
