"""The sampling verifier: a lower bound of what one sender gains near its policy, for any size.

Deviations of four kinds in equal shares, all within delta of the policy and on the simplex, each
judged by its true utility in float64:

- box: uniform in the box of radius delta, projected back;
- vertices: as much mass as the box allows moved between two signals, in one or two states;
- gradient: steps along the exact gradient of the region that the policy lies in;
- crossings: to either side, at 1e-7, of a change of the receiver's action on the way to one of the
  others, as optimal persuasion lies on such boundaries.
"""

from itertools import combinations, permutations, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.checks import in_range, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import check_sender
from rflib.methods.persuasion.game import Game, Profile, action_weights, others

NORMS = ("inf", "l2")
SIDE = 1e-7  # distance from a boundary, in the maximum norm
HALVINGS = 40
VERTICES = 4096  # most vertices that are listed before some are drawn


class Sampled(NamedTuple):
    """The best deviation found. gain: its utility less the profile's, never below 0 (standing
    still). policy: [W, S_j]. kind: which of the four found it, or "none". deviations: tried."""

    gain: float
    policy: np.ndarray
    kind: str
    deviations: int


def project_box(
    points: Float[np.ndarray, "*lead signals"],
    low: Float[np.ndarray, "*lead2 signals"],
    high: Float[np.ndarray, "*lead2 signals"],
) -> Float[np.ndarray, "*lead signals"]:
    """The nearest points of {low <= x <= high, sum x = 1}, which must not be empty.

    They are clip(x - shift, low, high) for the shift at which they sum to 1; the sum is piecewise
    linear in it, with kinks at x - low and x - high.
    """
    low, high = np.broadcast_to(low, points.shape), np.broadcast_to(high, points.shape)
    kinks = np.sort(np.concatenate([points - low, points - high], -1), -1)
    sums = np.clip(
        points[..., None, :] - kinks[..., :, None], low[..., None, :], high[..., None, :]
    )
    sums = sums.sum(-1)  # falls along the kinks
    place = np.clip((sums >= 1).sum(-1) - 1, 0, kinks.shape[-1] - 2)[..., None]
    left, right = (np.take_along_axis(kinks, place + k, -1) for k in (0, 1))
    above, below = (np.take_along_axis(sums, place + k, -1) for k in (0, 1))
    drop = above - below
    share = np.where(drop > 0, (above - 1) / np.where(drop > 0, drop, 1.0), 0.0)
    return np.clip(points - left - np.clip(share, 0, 1) * (right - left), low, high)


class _Near:
    """One sender's problem: its policy, the box around it, and the worth of deviations."""

    def __init__(
        self, game: Game, profile: Profile, sender: int, delta: float, tie: str, norm: str
    ) -> None:
        self.game, self.sender, self.tie, self.delta, self.norm = game, sender, tie, delta, norm
        self.policy = np.asarray(profile[sender], np.float64)
        self.q = np.asarray(others(game, profile, sender))
        self.low = np.maximum(self.policy - delta, 0.0)
        self.high = np.minimum(self.policy + delta, 1.0)

    def weights(self, policies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(p(w, (s, t)), probability of each action) of policies [K, W, S_j]."""
        p = policies[:, :, :, None] * self.q[:, None, :]
        p = p.reshape(*p.shape[:2], -1)
        return p, action_weights(self.game, p, self.tie)[0]

    def utilities(self, policies: np.ndarray) -> np.ndarray:
        """U_j of policies [K, W, S_j] against the others, under the rule for ties."""
        p, weights = self.weights(policies)
        return ((p @ weights) * self.game.v[self.sender]).sum((-1, -2))

    def actions(self, policies: np.ndarray) -> np.ndarray:
        """[K, S]: the receiver's action at joint signals of positive probability, else -1."""
        p, weights = self.weights(policies)
        return np.where(p.sum(-2) > 0, weights.argmax(-1), -1)

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Points of the simplex within delta; in the norm l2 by shrinking the way to them."""
        points = project_box(points, self.low, self.high)
        if self.norm == "inf":
            return points
        way = points - self.policy
        length = np.sqrt((way**2).sum((-1, -2), keepdims=True))
        return self.policy + way * np.minimum(1.0, self.delta / np.maximum(length, 1e-300))


def _box(near: _Near, count: int, rng: np.random.Generator) -> np.ndarray:
    step = rng.uniform(-near.delta, near.delta, (count, *near.policy.shape))
    return near.inside(near.policy + step)


def _vertices(near: _Near, count: int, rng: np.random.Generator) -> np.ndarray:
    states, signals = near.policy.shape
    moves = list(permutations(range(signals), 2))
    one = [((w, move),) for w in range(states) for move in moves]
    pairs = states * (states - 1) // 2 * len(moves) ** 2
    two: list = []
    if pairs <= VERTICES:
        for first, second in combinations(range(states), 2):
            two += [((first, a), (second, b)) for a, b in product(moves, moves)]
    else:
        for _ in range(count):
            first, second = rng.choice(states, 2, replace=False).tolist()
            a, b = rng.integers(len(moves), size=2).tolist()
            two.append(((first, moves[a]), (second, moves[b])))
    chosen = one + two
    if len(chosen) > count:
        chosen = [chosen[k] for k in rng.permutation(len(chosen))[:count]]
    found = np.tile(near.policy, (len(chosen), 1, 1))
    for place, vertex in enumerate(chosen):
        for w, (source, target) in vertex:
            mass = min(near.policy[w, source] - near.low[w, source],
                       near.high[w, target] - near.policy[w, target])  # fmt: skip
            found[place, w, source] -= mass
            found[place, w, target] += mass
    return near.inside(found)


def _gradient(near: _Near, count: int, rng: np.random.Generator) -> np.ndarray:
    """Steps of all lengths along the gradient, with random weights of the states for variety."""
    weights = near.weights(near.policy[None])[1][0]
    weights = weights.reshape(near.policy.shape[1], -1, near.game.n_actions)
    slope = np.einsum("wt,sta,wa->ws", near.q, weights, near.game.v[near.sender])
    slope = slope - slope.mean(1, keepdims=True)
    largest = np.abs(slope).max()
    if largest == 0:
        return np.empty((0, *slope.shape))
    length = near.delta * 10.0 ** rng.uniform(-2, 2, (count, 1, 1))
    share = rng.uniform(0, 1, (count, slope.shape[0], 1))
    share[: count // 2] = 1.0
    return near.inside(near.policy + length * share * slope / largest)


def _crossings(
    near: _Near, targets: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Both sides of a change of the actions on the way to `targets`, by bisection."""
    base = near.actions(near.policy[None])
    # Targets of other actions, those of distinct actions first: a boundary each.
    actions = near.actions(targets)
    order = rng.permutation(np.flatnonzero((actions != base).any(1)))
    if len(order) == 0:
        return targets[:0]
    _, first = np.unique(actions[order], axis=0, return_index=True)
    order = np.concatenate([order[np.sort(first)], np.delete(order, first)])[: max(1, count // 2)]
    way = targets[order] - near.policy
    left, right = np.zeros((len(way), 1, 1)), np.ones((len(way), 1, 1))
    for _ in range(HALVINGS):
        middle = (left + right) / 2
        same = (near.actions(near.policy + middle * way) == base).all(1)[:, None, None]
        left, right = np.where(same, middle, left), np.where(same, right, middle)
    step = SIDE / np.abs(way).max((-1, -2), keepdims=True)
    sides = [np.maximum(left - step, 0.0), np.minimum(right + step, 1.0)]
    return np.concatenate([near.policy + side * way for side in sides])


def sampled_gain(
    game: Game,
    profile: Profile,
    sender: int,
    delta: float,
    *,
    deviations: int = 1000,
    seed: int = 0,
    tie: str = "index",
    norm: str = "inf",
) -> Sampled:
    """The most that `sender` gains by one of `deviations` within delta of its policy.

    profile: [W, S_k] each. delta: radius, in (0, 1] for the maximum norm, above 0 for "l2" (of the
    whole policy). deviations: at least 4. tie: the receiver's rule, before and after.

    Raises:
        UserError: no such sender, rule or norm, or an argument out of range.
    """
    check_sender(game, sender)
    in_range("delta", delta, 0, 1 if norm == "inf" else None, open_low=True)
    one_of("norm", norm, NORMS)
    share = positive_int("deviations", deviations) // 4
    if share < 1:
        raise UserError(f"deviations={deviations} must be at least 4, one of each kind")
    near = _Near(game, profile, sender, delta, tie, norm)
    rng = np.random.default_rng((seed, sender))
    found = {"box": _box(near, share, rng), "vertices": _vertices(near, share, rng)}
    found["gradient"] = _gradient(near, share, rng)
    targets = np.concatenate([found["box"], found["vertices"]])
    found["crossings"] = _crossings(near, targets, share, rng)
    # There may be fewer vertices and crossings than their share: the rest is drawn from the box.
    spare = deviations - sum(len(points) for points in found.values())
    found["box"] = np.concatenate([found["box"], _box(near, spare, rng)])
    policies = np.concatenate([near.policy[None], *found.values()])
    kinds = ["none"] + [kind for kind, points in found.items() for _ in points]
    values = near.utilities(policies)
    best = int(values.argmax())
    return Sampled(float(values[best] - values[0]), policies[best], kinds[best], len(values) - 1)
