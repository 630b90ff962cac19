"""Pareto order, hypervolume and distinct points of utility vectors.

Differences count in units of a sender's span, sum_w mu(w) (max_a v_j - min_a v_j): a profile
dominates another if no sender loses more than tau spans and some sender gains more than tau_prime.
Signals may be relabelled without changing anything, so equilibria are counted as utility vectors.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rflib.core.errors import UserError
from rflib.methods.persuasion.game import relative

TAU, TAU_PRIME = 1e-6, 1e-4
SAMPLES = 2**14  # Sobol points of a hypervolume in three dimensions and more


class Order(NamedTuple):
    """How far one profile dominates another, elementwise over any leading axes.

    weak: no sender loses more than tau. strict: weak, and some sender gains more than tau_prime.
    all_strict: every sender does. least: the smallest gain over senders, in spans.
    total: the sum of gains, in spans.
    """

    weak: np.ndarray
    strict: np.ndarray
    all_strict: np.ndarray
    least: np.ndarray
    total: np.ndarray


def dominates(
    first: Float[np.ndarray, "*a senders"],
    second: Float[np.ndarray, "*b senders"],
    span: Float[np.ndarray, " senders"],
    tau: float = TAU,
    tau_prime: float = TAU_PRIME,
) -> Order:
    """Whether the utilities `first` dominate `second`; leading axes broadcast.

    A sender of span 0 is indifferent: it never loses or gains, and all_strict is about the others.
    """
    gain = relative(first - second, span)
    live = span > 0
    weak = np.asarray((gain >= -tau).all(-1))
    strict = np.asarray(weak & (gain > tau_prime).any(-1))
    every = weak & live.any() & (gain > tau_prime)[..., live].all(-1)
    least = gain[..., live].min(-1) if live.any() else np.zeros(weak.shape)
    return Order(weak, strict, every, least, gain.sum(-1))


def front(
    points: Float[np.ndarray, "points senders"],
    span: Float[np.ndarray, " senders"],
    tau: float = TAU,
    tau_prime: float = TAU_PRIME,
) -> Bool[np.ndarray, " points"]:
    """Which points no other point strictly dominates."""
    order = dominates(points[:, None], points[None], span, tau, tau_prime)
    return np.asarray(~order.strict.any(0))


def compare(
    first: Float[np.ndarray, "m senders"],
    second: Float[np.ndarray, "k senders"],
    span: Float[np.ndarray, " senders"],
    tau: float = TAU,
    tau_prime: float = TAU_PRIME,
) -> str:
    """ "win", "loss" or "tie" of one set of outcomes against another, by Pareto order.

    A set wins if each point of the other is weakly dominated by one of its own, one of them
    strictly, and the reverse does not hold. An empty set loses to any other.
    """
    if len(first) == 0 or len(second) == 0:
        return "win" if len(first) else "loss" if len(second) else "tie"
    ahead = dominates(first[:, None], second[None], span, tau, tau_prime)
    behind = dominates(second[:, None], first[None], span, tau, tau_prime)
    won = bool(ahead.weak.any(0).all() and ahead.strict.any())
    lost = bool(behind.weak.any(0).all() and behind.strict.any())
    return "tie" if won == lost else "win" if won else "loss"


def hypervolume(
    points: Float[np.ndarray, "points senders"],
    reference: Float[np.ndarray, " senders"],
    best: Float[np.ndarray, " senders"],
    span: Float[np.ndarray, " senders"],
) -> float:
    """Volume of the union of the boxes from `reference` up to each point, in spans.

    Exact for one and two senders; else the share of 2^14 Sobol points of the box from the reference
    to `best` (the utopia point, which bounds every point) times that box's volume. Senders of
    span 0 are left out. 0 if no point is above the reference for every sender.

    Raises:
        UserError: a point above `best`.
    """
    live = span > 0
    if (points > best + 1e-6 * np.abs(span)).any():
        raise UserError("best must be at least as large as every point")
    scaled = (points[:, live] - reference[live]) / span[live]
    top = (best[live] - reference[live]) / span[live]
    scaled = scaled[(scaled > 0).all(1)]
    if not live.any() or len(scaled) == 0:
        return 0.0
    if scaled.shape[1] == 1:
        return float(scaled.max())
    if scaled.shape[1] == 2:
        scaled = scaled[np.argsort(-scaled[:, 0])]  # from the right: steps of growing height
        height = np.maximum.accumulate(scaled[:, 1])
        width = scaled[:, 0] - np.append(scaled[1:, 0], 0.0)
        return float((height * width).sum())
    from scipy.stats import qmc  # imports all of SciPy's statistics

    sample = qmc.Sobol(len(top), scramble=True, rng=0).random(SAMPLES) * top
    inside = np.zeros(SAMPLES, bool)
    for point in scaled:
        inside |= (sample <= point).all(1)
    return float(inside.mean() * top.prod())


def distinct(
    points: Float[np.ndarray, "points senders"], tolerance: float = 1e-4
) -> Int[np.ndarray, " kept"]:
    """Indices of points that differ by more than `tolerance` from every point kept before."""
    kept: list[int] = []
    for place, point in enumerate(points):
        if not kept or np.abs(points[kept] - point).max(1).min() > tolerance:
            kept.append(place)
    return np.array(kept, int)
