"""Exact laws: marginals, their limit, Gaussian mixtures, and the law that a rate model leads to."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from scipy.stats import binom, norm

from rflib.core.errors import UserError
from rflib.diffusion.master_equation import integrate_birth_death
from rflib.methods.ehrenfest.process import Process
from rflib.methods.ehrenfest.reverse import RateFunction


def generator(size: int) -> Float[np.ndarray, "states states"]:
    """Q[k + 1, k] = (S - k)/2, Q[k - 1, k] = k/2, float64; eigenvalues 0, -1, …, -S."""
    k = np.arange(size + 1.0)
    jumps = np.diag((size - k[:-1]) / 2, -1) + np.diag(k[1:] / 2, 1)
    return jumps - np.diag(jumps.sum(0))


def transition_column(size: int, k0: int, w: float) -> Float[np.ndarray, " states"]:
    """p(· | k0) as the convolution of two binomial laws; float64, O(S²)."""
    f = (1 + w) / 2
    stay = binom.pmf(np.arange(k0 + 1), k0, f)
    return np.convolve(stay, binom.pmf(np.arange(size - k0 + 1), size - k0, 1 - f))


def marginal(p0: Float[np.ndarray, " states"], w: float) -> Float[np.ndarray, " states"]:
    """p_t = Σ p_0(k0) p(· | k0), float64, for one coordinate."""
    size = len(p0) - 1
    return sum(
        (p * transition_column(size, k0, w) for k0, p in enumerate(p0) if p > 0),
        start=np.zeros(size + 1),
    )


def limit_mass(size: int, x0: float, w: float) -> Float[np.ndarray, " states"]:
    """Mass of N(w x0, 1 - w²) in the cells of width δ around the lattice points x."""
    delta = 2 / np.sqrt(size)
    edges = delta * (np.arange(size + 2) - 0.5 - size / 2)
    return np.diff(norm.cdf(edges, w * x0, np.sqrt(1 - w * w)))


class Mixture(NamedTuple):
    """Σ weight N(mean, std²) on the real line, in scaled units."""

    means: tuple[float, ...]
    stds: tuple[float, ...]
    weights: tuple[float, ...]

    def lattice(self, size: int) -> Float[np.ndarray, " states"]:
        """The law on {0, …, S} proportional to the density at x = δ (k - S/2), float64."""
        x = (2 * np.arange(size + 1) - size) / np.sqrt(size)
        parts = zip(self.means, self.stds, self.weights, strict=True)
        density = sum((a * norm.pdf(x, m, s) for m, s, a in parts), start=np.zeros(size + 1))
        if density.sum() <= 0:
            raise UserError(f"the mixture {self} has no mass on the {size + 1} states")
        return density / density.sum()

    def score_and_curvature(self, x: Array, w: Array | float) -> tuple[Array, Array]:
        """(p'/p, p''/p) of the law of x_t = w x_0 + √(1 - w²) ε."""
        shape = (-1,) + (1,) * x.ndim
        means, stds, weights = (jnp.asarray(a, x.dtype).reshape(shape) for a in self)
        variance = jnp.square(w * stds) + 1 - jnp.square(w)
        gap = (x[None] - w * means) / variance
        shares = jax.nn.softmax(
            jnp.log(weights) - jnp.log(variance) / 2 - jnp.square(gap) * variance / 2, 0
        )
        score = -jnp.sum(shares * gap, 0)
        return score, jnp.sum(shares * (jnp.square(gap) - 1 / variance), 0)

    def score(self, x: Array, w: Array | float) -> Array:
        """d log p_t/dx of the Ornstein-Uhlenbeck process that starts from the mixture."""
        return self.score_and_curvature(x, w)[0]


# The mixture of the paper's first figure.
BIMODAL = Mixture((-2.0, 2.0), (0.5, 0.5), (0.5, 0.5))


def reverse_law(
    rates: RateFunction,
    process: Process,
    start: Float[np.ndarray, " states"],
    *,
    t_stop: float | None = None,
    method: str = "LSODA",
    rtol: float = 1e-7,
) -> Float[np.ndarray, " states"]:
    """The law at t_stop (t_min unless given) of one coordinate with the reverse `rates`, exactly.

    start: the law at t_max. No sampling, no steps: the master equation by SciPy. The rates are
    evaluated in the precision that is on (`jax.enable_x64` for more than single).
    """
    k = jnp.arange(process.size + 1)

    @jax.jit
    def table(t: Array) -> tuple[Array, Array]:
        found = rates(k, t)
        return found.birth, found.death

    dtype = jnp.result_type(float)

    def at(t: float) -> tuple[np.ndarray, np.ndarray]:
        birth, death = table(jnp.asarray(t, dtype))
        return np.asarray(birth, np.float64), np.asarray(death, np.float64)

    stop = process.t_min if t_stop is None else t_stop
    return integrate_birth_death(at, start, process.t_max, stop, method=method, rtol=rtol)


def tabulate(
    rates: RateFunction, process: Process, ts: Float[Array, " n"], dimensions: int
) -> tuple[Array, Array]:
    """(birth, death), [n, D, S + 1, …, S + 1]: rates in every state of a grid at the times ts.

    For `integrate_grid`, which turns them into the exact law that a learned rate model leads to.
    Births out of the top and deaths out of the bottom are 0.
    """
    axes = [jnp.arange(process.size + 1)] * dimensions
    states = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dimensions)

    def at(t: Array) -> tuple[Array, Array]:
        found = rates(states, t)
        return found.birth.T, found.death.T

    shape = (len(ts), dimensions) + (process.size + 1,) * dimensions
    birth, death = jax.lax.map(at, ts)
    return birth.reshape(shape), death.reshape(shape)


def total_jump_rate(
    rates: RateFunction, process: Process, law: Callable[[float], np.ndarray], count: int = 400
) -> float:
    """∫ Σ_k p_t(k) (birth + death) dt over [t_min, t_max], the expected number of jumps.

    Gauss-Legendre with `count` nodes; law(t): p_t, one coordinate.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = (process.t_max - process.t_min) / 2
    ts, k = process.t_min + half * (1 + nodes), jnp.arange(process.size + 1)
    table = jax.jit(lambda ts: jax.lax.map(lambda t: rates(k, t).birth + rates(k, t).death, ts))
    total = np.asarray(table(jnp.asarray(ts, jnp.result_type(float))))
    each = [p @ r for p, r in zip(map(law, ts), total, strict=True)]
    return float(half * np.dot(weights, each))
