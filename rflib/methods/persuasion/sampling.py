"""Profiles to learn from: six kinds, since uniform ones miss what matters.

Good policies in persuasion are informative and sit on the edge where the receiver changes its
mind, while rows drawn uniformly from their simplices are neither. So utilities are learned, and
tested, on a mixture of six strata; a label says which stratum each profile is from.

In NumPy, float64: the position of an edge needs more digits than float32 has, the draws are the
same on every device, and half a million small evaluations take less time than one compilation.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rflib.core.checks import choose, in_range, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.game import Game, outcome

Profile = tuple[np.ndarray, ...]

STRATA = (
    "dirichlet_0.1",
    "dirichlet_0.3",
    "dirichlet_1",
    "dirichlet_3",
    "deterministic",
    "boundary",
)
CONCENTRATIONS = (0.1, 0.3, 1.0, 3.0)
MIXTURES: dict[str, tuple[float, ...]] = {
    "strata": (0.2, 0.2, 0.2, 0.2, 0.1, 0.1),
    "dirichlet_1": (0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
}
HALVINGS = 40
JITTER = 1e-2
REDRAWS = 20
SIDE = 1e-6  # how far from an edge, as a fraction of the segment, its two sides are looked at


class Samples(NamedTuple):
    """Profiles with their exact utilities.

    profile: one [N, W, S_j] a sender, float64. utilities: U_j. labels: index into STRATA.
    crossed: for the stratum 'boundary', whether an edge was found; where none was (the receiver
    may never change its mind) the profile is a jittered uniform one. True in other strata.
    """

    profile: Profile
    utilities: Float[np.ndarray, "profiles senders"]
    labels: Int[np.ndarray, " profiles"]
    crossed: Bool[np.ndarray, " profiles"]


class Crossing(NamedTuple):
    """An edge on each of a batch of segments, where the receiver's actions change.

    found: the actions at the ends differ. position: of the edge in [0, 1]. before, after: profiles
    1e-6 of the segment on its two sides. jump: U_j(after) - U_j(before). Where none was found the
    position is 1, both sides are the far end and the jump is 0.
    """

    found: Bool[np.ndarray, "*lead"]
    position: Float[np.ndarray, "*lead"]
    before: Profile
    after: Profile
    jump: Float[np.ndarray, "*lead senders"]


def project_rows(x: Float[np.ndarray, "*lead n"]) -> Float[np.ndarray, "*lead n"]:
    """The nearest points of the simplex on the last axis; `rflib.optim.simplex` in NumPy."""
    ordered = -np.sort(-x, -1)
    theta = ((np.cumsum(ordered, -1) - 1) / np.arange(1, x.shape[-1] + 1)).max(-1, keepdims=True)
    return np.maximum(x - theta, 0)


def dirichlet(
    game: Game, rng: np.random.Generator, count: int, concentration: float = 1.0
) -> Profile:
    """`count` profiles whose rows are symmetric Dirichlet draws; 1 is uniform on the simplex."""
    shape = (count, game.n_states)
    return tuple(rng.dirichlet(np.full(s, concentration), shape) for s in game.signals)


def deterministic(game: Game, rng: np.random.Generator, count: int) -> Profile:
    """`count` profiles in which every state sends one signal of each sender for certain."""
    shape = (count, game.n_states)
    return tuple(np.eye(s)[rng.integers(0, s, shape)] for s in game.signals)


def _at(start: Profile, step: Profile, position: np.ndarray) -> Profile:
    along = position[..., None, None]
    return tuple(project_rows(p + along * d) for p, d in zip(start, step, strict=True))


def _actions(game: Game, profile: Profile, tie: str) -> np.ndarray:
    return outcome(game, profile, tie).actions


def _bisect(actions_at: Callable[[np.ndarray], np.ndarray], lead: tuple[int, ...]) -> np.ndarray:
    """[*lead] positions in [0, 1] just before an edge: the actions there are those at 0."""
    low, high = np.zeros(lead), np.ones(lead)
    first = actions_at(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        same = (actions_at(middle) == first).all(-1)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return low


def cross(game: Game, profile: Profile, direction: Profile, tie: str = "index") -> Crossing:
    """An edge between pi and pi + direction, each point projected back on the rows' simplices.

    Bisection with 40 halvings: one edge, not always the first. profile and direction: one
    [*lead, W, S_j] a sender, as a batch of segments.
    """
    lead = profile[0].shape[:-2]
    ends = [_actions(game, _at(profile, direction, np.full(lead, x)), tie) for x in (0.0, 1.0)]
    found = (ends[0] != ends[1]).any(-1)
    position = _bisect(lambda x: _actions(game, _at(profile, direction, x), tie), lead)
    position = np.where(found, position, 1.0)
    shift = np.where(found, SIDE, 0.0)
    before = _at(profile, direction, np.clip(position - shift, 0, 1))
    after = _at(profile, direction, np.clip(position + shift, 0, 1))
    jump = outcome(game, after, tie).utilities - outcome(game, before, tie).utilities
    return Crossing(found, position, before, after, jump)


def near_boundary(
    game: Game, rng: np.random.Generator, count: int, tie: str = "index"
) -> tuple[Profile, np.ndarray]:
    """(`count` profiles close to an edge, whether an edge was found for each).

    A uniform profile is moved towards a second one up to an edge; where the receiver acts the same
    at both, the second is drawn again, at most 20 times. Then N(0, 0.01²) is added to every
    probability and the rows are projected back on their simplices.
    """
    start, target = dirichlet(game, rng, count), dirichlet(game, rng, count)
    if count == 0:
        return start, np.ones(0, bool)
    first = _actions(game, start, tie)
    same = (first == _actions(game, target, tie)).all(-1)
    for _ in range(REDRAWS):
        if not same.any():
            break
        fresh = dirichlet(game, rng, int(same.sum()))
        for policy, new in zip(target, fresh, strict=True):
            policy[same] = new
        same[same] = (first[same] == _actions(game, fresh, tie)).all(-1)
    step = tuple(t - s for t, s in zip(target, start, strict=True))
    position = _bisect(lambda x: _actions(game, _at(start, step, x), tie), (count,))
    edge = _at(start, step, np.where(same, 0.0, position))
    jittered = tuple(project_rows(p + rng.normal(0, JITTER, p.shape)) for p in edge)
    return jittered, ~same


def shares(mixture: str | Mapping[str, float] = "strata") -> np.ndarray:
    """The share of each stratum: a name in MIXTURES, or stratum -> share with sum 1.

    Raises:
        UserError: an unknown name, a share outside [0, 1], or another sum.
    """
    if isinstance(mixture, str):
        return np.array(choose("mixture", mixture, MIXTURES))
    for name, share in mixture.items():
        one_of("mixture", name, STRATA)
        in_range(f"mixture.{name}", share, 0, 1)
    found = np.array([mixture.get(name, 0.0) for name in STRATA])
    if abs(found.sum() - 1) > 1e-9:
        raise UserError(f"mixture={dict(mixture)!r} must sum to 1; it sums to {found.sum()}")
    return found


def counts(count: int, share: Float[np.ndarray, " strata"]) -> list[int]:
    """Whole numbers with sum `count`, each within 1 of its share (largest remainders first)."""
    exact = count * share
    whole = np.floor(exact + 1e-9).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: count - whole.sum()]] += 1
    return whole.tolist()


def sample(
    game: Game,
    count: int,
    seed: int | np.random.Generator,
    mixture: str | Mapping[str, float] = "strata",
    tie: str = "index",
) -> Samples:
    """`count` profiles with exact utilities, strata in their exact shares and in random order.

    Raises:
        UserError: `count` below 1, or a mixture that `shares` refuses.
    """
    count = positive_int("count", count)
    rng = np.random.default_rng(seed)
    each = counts(count, shares(mixture))
    parts = [dirichlet(game, rng, k, a) for k, a in zip(each, CONCENTRATIONS, strict=False)]
    parts.append(deterministic(game, rng, each[4]))
    edge, found = near_boundary(game, rng, each[5], tie)
    parts.append(edge)
    order = rng.permutation(count)
    profile = tuple(np.concatenate(policies)[order] for policies in zip(*parts, strict=True))
    labels = np.repeat(np.arange(len(STRATA)), each)[order]
    crossed = np.ones(count, bool)
    crossed[labels == 5] = np.concatenate([np.ones(count - each[5], bool), found])[order][
        labels == 5
    ]
    return Samples(profile, outcome(game, profile, tie).utilities, labels, crossed)


def split(
    labels: Int[np.ndarray, " profiles"], share: float, seed: int
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " held"]]:
    """(training rows, validation rows), sorted: `share` of every stratum is held out.

    Raises:
        UserError: a share outside [0, 1).
    """
    in_range("share", share, 0, 1, open_high=True)
    rng = np.random.default_rng(seed)
    held = [
        rng.permutation(np.flatnonzero(labels == label))[: round(share * (labels == label).sum())]
        for label in np.unique(labels)
    ]
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
