"""The exact evidence bound of a reversed jump process, in nats or bits per dimension.

For one x_0, with the reverse rates given x_0, r̄_0(y|x) = r(x|y) p(y|x_0)/p(x|x_0),

    -log p(x_0) <= KL(p_T(·|x_0) || p_ref)
                   + ∫_{t_min}^{T} E_x Σ_y [ r̄ - r̄_0 + r̄_0 log(r̄_0/r̄) ](y|x) dt
                   + E_{x ~ p_{t_min}(·|x_0)} [ -log p(x_0|x) ],

with equality on average over the data for the exact rates, posterior and p_T. No term is negative.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import xlogy
from jaxtyping import Float, Int

from rflib.core.checks import positive_int
from rflib.diffusion.ctmc import Rates
from rflib.methods.ehrenfest import ratio, transition
from rflib.methods.ehrenfest.process import Process, forward_rates
from rflib.methods.ehrenfest.reverse import RateFunction, assemble


class Bound(NamedTuple):
    """The three terms, nats an example, shape [B] (or [S + 1] from `exact_bound`)."""

    prior: Array
    path: Array
    reconstruction: Array

    @property
    def total(self) -> Array:
        """Upper bound of -log p(x_0)."""
        return self.prior + self.path + self.reconstruction


def bits_per_dimension(nats: Array, dimensions: int) -> Array:
    """nats/(D log 2)."""
    return nats / (dimensions * float(np.log(2)))


def rate_divergence(model: Rates, exact: Rates) -> Array:
    """Σ over both directions of r̄ - r̄_0 + r̄_0 log(r̄_0/r̄) >= 0; r̄ alone where r̄_0 = 0."""

    def one(r: Array, r0: Array) -> Array:
        return r - r0 + xlogy(r0, r0) - xlogy(r0, r)

    return one(model.birth, exact.birth) + one(model.death, exact.death)


def _floored(model: Rates, k: Array, process: Process, t: Array, floor: float) -> Rates:
    """At least `floor` times the forward rates that lead back, so that no term is infinite."""
    rate = process.rate(t)
    least = (
        forward_rates(k + 1, process.size, rate).death,
        forward_rates(k - 1, process.size, rate).birth,
    )
    return Rates(
        jnp.where(k < process.size, jnp.maximum(model.birth, floor * least[0]), 0),
        jnp.where(k > 0, jnp.maximum(model.death, floor * least[1]), 0),
    )


def exact_bound(
    rates: RateFunction,
    process: Process,
    log_posterior: Float[Array, "states states"],
    log_reference: Float[Array, " states"],
    *,
    nodes: int = 64,
    floor: float = 0.0,
) -> Bound:
    """The bound for every x_0 of one coordinate, by enumeration and Gauss-Legendre in log t.

    log_posterior: log p(x_0|x at t_min) as [x, x_0]. log_reference: the law at t_max of the
    generative process. floor: see `path_bound`.
    """
    size, k = process.size, jnp.arange(process.size + 1)
    dtype = log_posterior.dtype
    points, weights = np.polynomial.legendre.leggauss(positive_int("nodes", nodes))
    low, high = np.log(process.t_min), np.log(process.t_max)
    ts = np.exp(low + (high - low) * (1 + points) / 2)
    lengths = jnp.asarray(weights * (high - low) / 2 * ts, dtype)

    def integrand(t: Array) -> Array:
        law = jnp.exp(transition.log_pmf(size, process.w(t)))  # [x, x_0]
        model = _floored(rates(k, t), k, process, t, floor)

        def column(k0: Array) -> Array:
            found = ratio.exact(k, k0[None], size, process.w(t))
            exact = assemble(found, k, size, process.rate(t))
            return rate_divergence(model, exact)

        return jnp.sum(law * jax.vmap(column, out_axes=1)(k), 0)

    values = jax.lax.map(integrand, jnp.asarray(ts, dtype))
    last = transition.log_pmf(size, process.w(jnp.asarray(process.t_max, dtype)))
    first = jnp.exp(transition.log_pmf(size, process.w(jnp.asarray(process.t_min, dtype))))
    gap = last - log_reference[:, None]
    prior = jnp.sum(jnp.where(last > -jnp.inf, jnp.exp(last) * gap, 0), 0)
    missing = jnp.where(first > 0, -first * log_posterior, 0)
    return Bound(prior, jnp.sum(lengths[:, None] * values, 0), jnp.sum(missing, 0))


def path_bound(
    key: Array,
    rates: RateFunction,
    k0: Int[Array, "B *n"],
    process: Process,
    log_marginals: Float[Array, "*n states"],
    *,
    times: int = 32,
    floor: float = 1e-6,
) -> Bound:
    """An unbiased estimate of the bound for every example, with Bin(S, ½) as the reference law.

    t is stratified in log t (`times` draws, shared by the batch), x from the exact law. The last
    term is that of the factorised posterior proportional to p_{t_min}(x_d|·) times the law of the
    pixel in the data, log_marginals, which must be finite where data occur.

    floor: rates are at least this times the forward rate that they reverse; a model that clips a
    ratio to 0 has an infinite bound without it.
    """
    size, rows = process.size, tuple(range(1, k0.ndim))
    key_t, key_x, key_end = jax.random.split(key, 3)
    low, span = np.log(process.t_min), np.log(process.t_max / process.t_min)
    unit = (jnp.arange(times) + jax.random.uniform(key_t, (times,))) / positive_int("times", times)

    def one(number: Array) -> Array:
        t = jnp.exp(low + span * unit[number])
        w = process.w(t)
        k = transition.sample(jax.random.fold_in(key_x, number), k0, w, size)
        exact = assemble(ratio.exact(k, k0, size, w), k, size, process.rate(t))
        model = _floored(rates(k, t), k, process, t, floor)
        return span * t * jnp.sum(rate_divergence(model, exact), rows)

    path = jnp.mean(jax.lax.map(one, jnp.arange(times)), 0)
    last = transition.log_pmf(size, process.w(process.t_max))
    gap = last - jnp.asarray(transition.stationary_log_pmf(size), last.dtype)[:, None]
    each = jnp.sum(jnp.where(last > -jnp.inf, jnp.exp(last) * gap, 0), 0)
    k = transition.sample(key_end, k0, process.w(process.t_min), size)
    likelihood = transition.log_pmf(size, process.w(process.t_min))  # [x, x_0]
    logits = likelihood[k] + log_marginals[None]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), k0[..., None], -1)[..., 0]
    return Bound(jnp.sum(each[k0], rows), path, -jnp.sum(picked, rows))
