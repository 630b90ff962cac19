"""Ratios R± = p_t(x ± δ)/p_t(x): exact ones, and the approximations that networks learn.

The key fact for any jump process: the ratio of marginals is the conditional expectation

    p_t(y)/p_t(x) = E[ p(y | x_0)/p(x | x_0) | x_t = x ],

so that a regression on the ratio of transition probabilities learns the reverse rates. With the
Gaussian law N(w x_0, σ²), σ² = 1 - w², in the place of the binomial one and μ = w x_0, the ratio is
exp(-(δ² ± 2 δ (x - μ))/(2σ²)), and its expansions in δ need only moments of x_0 or the score.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from rflib.methods.ehrenfest.transition import log_pmf, log_prob


class Ratios(NamedTuple):
    """up: p(x + δ)/p(x). down: p(x - δ)/p(x). Both 0 beyond the ends of the lattice if exact."""

    up: Array
    down: Array


def exact(k: Int[Array, "..."], k0: Int[Array, "..."], size: int, w: Array | float) -> Ratios:
    """p(k ± 1 | k0)/p(k | k0) of the binomial law; w broadcasts; O(S) work an entry."""
    here = log_prob(k, k0, size, w)
    up, down = (log_prob(k + step, k0, size, w) for step in (1, -1))
    return Ratios(jnp.exp(up - here), jnp.exp(down - here))


def marginal(log_p: Float[Array, " states"], k: Int[Array, "..."]) -> Ratios:
    """p(k ± 1)/p(k) of a tabulated law on {0, …, S}."""
    end = jnp.full((1,), -jnp.inf, log_p.dtype)
    padded = jnp.concatenate([end, log_p, end])
    return Ratios(jnp.exp(padded[k + 2] - padded[k + 1]), jnp.exp(padded[k] - padded[k + 1]))


def from_posterior(
    log_posterior: Float[Array, "... states"],
    k: Int[Array, "..."],
    size: int,
    w: Array | float,
) -> Ratios:
    """Σ_{k0} p(k0 | k) p(k ± 1 | k0)/p(k | k0) for a categorical law of k0, normalised here.

    w: broadcasts against k. A scalar w costs one table and O(S) work a coordinate, else O(S²).
    """
    w = jnp.asarray(w)
    weights = jax.nn.softmax(log_posterior, -1)
    if w.ndim == 0:
        end = jnp.full((1, size + 1), -jnp.inf, w.dtype)
        table = log_pmf(size, w)  # [k, k0]
        up = jnp.exp(jnp.concatenate([table[1:], end]) - table)
        down = jnp.exp(jnp.concatenate([end, table[:-1]]) - table)
        return Ratios(*(jnp.sum(weights * r[k], -1) for r in (up, down)))
    w = jnp.broadcast_to(w, k.shape)[..., None]
    k0 = jnp.arange(size + 1).reshape((1,) * k.ndim + (-1,))
    ratios = exact(k[..., None], k0, size, w)
    return Ratios(*(jnp.sum(weights * r, -1) for r in ratios))


def gauss(x: Array, mu: Array, sig2: Array | float, delta: float) -> Ratios:
    """exp(-(δ² ± 2 δ (x - μ))/(2σ²)), the ratio of the Gaussian law given x_0."""
    lever = delta * (x - mu) / sig2
    flat = delta**2 / (2 * sig2)
    return Ratios(jnp.exp(-flat - lever), jnp.exp(-flat + lever))


def gauss_smoothed(
    x: Float[Array, "..."],
    atoms: Float[Array, " m"],
    log_weights: Float[Array, " m"],
    w: Array | float,
    sig2: Array | float,
    delta: float,
) -> Ratios:
    """p_G(x ± δ)/p_G(x) with p_G = Σ_m weight_m N(w atom_m, σ²): the posterior mean of `gauss`.

    In log space: the conditional ratios overflow as soon as σ² is much smaller than δ². sig2:
    a scalar, or one variance an atom (for mixtures of Gaussians).
    """
    sig2 = jnp.broadcast_to(sig2, atoms.shape)

    def log_density(x: Array) -> Array:
        row = (1,) * x.ndim + (-1,)
        square = jnp.square(x[..., None] - (w * atoms).reshape(row)) / sig2.reshape(row)
        level = (log_weights - jnp.log(sig2) / 2).reshape(row)
        return jax.nn.logsumexp(level - square / 2, -1)

    here = log_density(x)
    return Ratios(*(jnp.exp(log_density(x + step) - here) for step in (delta, -delta)))


def taylor1(x: Array, mu: Array, sig2: Array | float, delta: float) -> Ratios:
    """exp(-δ²/(2σ²)) (1 ∓ δ (x - w E[x_0 | x])/σ²); mu is w E[x_0 | x]."""
    factor, slope = jnp.exp(-(delta**2) / (2 * sig2)), delta * (x - mu) / sig2
    return Ratios(factor * (1 - slope), factor * (1 + slope))


def taylor2(m1: Array, m2: Array, sig2: Array | float, delta: float) -> Ratios:
    """exp(-δ²/(2σ²)) (1 ∓ δ m1/σ² + δ² m2/(2σ⁴)), m1 = E[x - w x_0 | x], m2 = E[(x - w x_0)² | x].

    The authors' code takes m1² in the place of m2.
    """
    factor, slope = jnp.exp(-(delta**2) / (2 * sig2)), delta * m1 / sig2
    bend = delta**2 * m2 / (2 * jnp.square(sig2))
    return Ratios(factor * (1 - slope + bend), factor * (1 + slope + bend))


def score(score: Array, delta: float) -> Ratios:
    """1 ± δ s(x), s = d log p_t/dx of the Ornstein-Uhlenbeck process; negative where |s| > 1/δ."""
    return Ratios(1 + delta * score, 1 - delta * score)


def _quotient(c: Array, u: Array) -> Array:
    """c/u where both are positive, else 1: no NaN in the branch that is not taken."""
    return jnp.where((u > 0) & (c > 0), c / jnp.where(u > 0, u, 1), 1)


def guide(conditional: Ratios, unconditional: Ratios, scale: float) -> Ratios:
    """R_u (R_c/R_u)^scale: classifier-free guidance of a jump process; 0 unless both are positive.

    To first order in δ it adds scale times the difference of the scores, as `guidance.cfg` does.
    """
    return Ratios(
        *(
            jnp.where((u > 0) & (c > 0), u * _quotient(c, u) ** scale, 0)
            for c, u in zip(conditional, unconditional, strict=True)
        )
    )
