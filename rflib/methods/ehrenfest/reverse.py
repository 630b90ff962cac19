"""Rates of the time-reversed Ehrenfest process from ratios, and ratios from network outputs.

In the time t of the forward process, r̄(y|x) = p_t(y)/p_t(x) r(x|y), with the arguments of r
swapped: a birth x -> x + δ of the reversed process is a death x + δ -> x of the forward one.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from rflib.core.checks import choose, one_of
from rflib.diffusion.ctmc import Rates
from rflib.diffusion.schedule import bcast
from rflib.methods.ehrenfest import ratio
from rflib.methods.ehrenfest.process import Process, forward_rates
from rflib.methods.ehrenfest.ratio import Ratios

RATE_AT = ("shift", "here")
# Outputs of a network a coordinate, on the last axis; "posterior" has S + 1.
HEADS = {
    "ratio": 2,
    "ratio_lin": 2,
    "taylor1": 1,
    "taylor2": 2,
    "taylor2_plugin": 1,
    "eps": 1,
    "score": 1,
    "posterior": None,
}
LARGEST_LOG_RATIO = 8.0

RateFunction = Callable[[Array, Array], Rates]
Network = Callable[[Array, Array], Array]


def assemble(
    ratios: Ratios,
    k: Int[Array, "..."],
    size: int,
    rate: Array | float,
    *,
    rate_at: str = "shift",
    floor: float = 0.0,
) -> Rates:
    """birth = r(k | k + 1) R+ and death = r(k | k - 1) R-, at least `floor`, 0 out of {0, …, S}.

    rate_at: "shift" takes the forward rates λ (k + 1)/2 and λ (S - k + 1)/2 of the neighbours, as
    it must be; "here" those of k, λ k/2 and λ (S - k)/2, an error of order 1/S in the authors'
    code, whose floor of 1e-3 also makes spurious jumps.
    """
    one_of("rate_at", rate_at, RATE_AT)
    shift = 1 if rate_at == "shift" else 0
    down = forward_rates(k + shift, size, rate).death
    up = forward_rates(k - shift, size, rate).birth
    birth, death = down * ratios.up, up * ratios.down
    inner_up, inner_down = k < size, k > 0
    below = (inner_up & (birth < 0)).astype(birth.dtype) + (inner_down & (death < 0))
    return Rates(
        jnp.where(inner_up, jnp.maximum(birth, floor), 0),
        jnp.where(inner_down, jnp.maximum(death, floor), 0),
        jnp.mean(below) / 2,
    )


def network_ratios(
    kind: str, out: Array, k: Int[Array, "B *n"], process: Process, t: Array | float
) -> Ratios:
    """R± from a network's output [B, *n, heads] at the states k and times t (scalar or [B]).

    "ratio": exp of (up, down), clipped to ±8. "ratio_lin": 1 ± δ out. "taylor1": out is
    μ = w E[x_0|x]. "taylor2": (μ, E[(x - w x_0)²|x]/σ²). "taylor2_plugin": μ, the second moment
    taken as the square of the first. "eps": ε̂ = -σ score. "score". "posterior": logits of k_0.
    """
    choose("kind", kind, HEADS)
    w, sig2 = (bcast(f(t), k) for f in (process.w, process.sig2))
    delta = process.delta
    if kind == "posterior":
        return ratio.from_posterior(out, k, process.size, w)
    if kind == "ratio":
        up, down = (jnp.exp(jnp.clip(out[..., i], *_LOG_RANGE)) for i in (0, 1))
        return Ratios(up, down)
    if kind == "ratio_lin":
        return Ratios(1 + delta * out[..., 0], 1 - delta * out[..., 1])
    if kind in ("eps", "score"):
        found = out[..., 0]
        return ratio.score(found if kind == "score" else -found / jnp.sqrt(sig2), delta)
    x, mu = process.to_x(k, out.dtype), out[..., 0]
    if kind == "taylor1":
        return ratio.taylor1(x, mu, sig2, delta)
    m1 = x - mu
    m2 = out[..., 1] * sig2 if kind == "taylor2" else jnp.square(m1)
    return ratio.taylor2(m1, m2, sig2, delta)


_LOG_RANGE = (-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def rate_function(
    kind: str,
    network: Network,
    process: Process,
    *,
    rate_at: str = "shift",
    floor: float = 0.0,
    guidance: tuple[Network, float] | None = None,
) -> RateFunction:
    """(k [B, *n], t scalar) -> Rates, from network(x, t [B]) -> [B, *n, heads].

    guidance: the unconditional network and the scale, see `ratio.guide`; `network` is then the
    conditional one.
    """
    choose("kind", kind, HEADS)

    def ratios(network: Network, k: Array, t: Array | float) -> Ratios:
        x = process.to_x(k)
        times = jnp.broadcast_to(t, k.shape[:1]).astype(x.dtype)
        return network_ratios(kind, network(x, times), k, process, t)

    def rates(k: Array, t: Array | float) -> Rates:
        found = ratios(network, k, t)
        if guidance is not None:
            found = ratio.guide(found, ratios(guidance[0], k, t), guidance[1])
        rate = bcast(process.rate(t), k)
        return assemble(found, k, process.size, rate, rate_at=rate_at, floor=floor)

    return rates


def clean_estimate(
    kind: str, out: Array, k: Int[Array, "B *n"], process: Process, t: Array | float
) -> Array:
    """x̂_0 = E[x_0 | x] in scaled units, from the same outputs as `network_ratios`.

    "posterior" gives the most probable state. For ratios the score is taken as (R+ - R-)/(2δ).
    """
    choose("kind", kind, HEADS)
    if kind == "posterior":
        return process.to_x(jnp.argmax(out, -1), out.dtype)
    w, sig2 = (bcast(f(t), k) for f in (process.w, process.sig2))
    if kind.startswith("taylor"):
        return out[..., 0] / w
    x = process.to_x(k, out.dtype)
    if kind == "eps":
        return (x - jnp.sqrt(sig2) * out[..., 0]) / w
    if kind == "score":
        return (x + sig2 * out[..., 0]) / w
    up, down = network_ratios(kind, out, k, process, t)
    return (x + sig2 * (up - down) / (2 * process.delta)) / w


def with_forward(rates: Rates, k: Int[Array, "..."], process: Process, t: Array | float) -> Rates:
    """Reverse plus forward rates, which leave the law p_t as it is: those of the corrector."""
    forward = forward_rates(k, process.size, process.rate(t))
    return Rates(rates.birth + forward.birth, rates.death + forward.death, rates.negative)
