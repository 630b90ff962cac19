"""The exact best response of one sender among policies near its own.

A profile is a local Nash equilibrium with radius delta and tolerance epsilon if for every sender j

    sup { U_j(pi_j', pi_-j) - U_j(pi) : rows of pi_j' on the simplex, |pi_j' - pi_j|_inf <= delta }

is at most epsilon (Hossain et al., ICML 2024). The supremum is found exactly: for each assignment
of an action profile alpha_s: t -> action to each of the S_j signals, among the profiles that the
signal can induce inside its box, a linear program in the W S_j entries of pi_j' with

    max(pi_j - delta, 0) <= pi_j' <= min(pi_j + delta, 1),   sum_s pi_j'(s | w) = 1,
    sum_w pi_j'(s | w) Q(w, t) (u(w, a) - u(w, alpha_s(t)) + kappa) <= 0    for all s, t, a.

With delta = 1 it is the best response with S_j signals. Ties are broken for j.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.checks import in_range, one_of
from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import check_sender
from rflib.methods.persuasion.game import Game, Profile, others
from rflib.methods.persuasion.programs import (
    USED,
    feasible_profiles,
    obedience,
    reduce_columns,
    solve_blocks,
    wishes,
)

CAP = 5000
METHODS = ("auto", "program", "lines")
CHUNK = 2_000_000  # numbers in the largest temporary array of the closed form


class LocalResponse(NamedTuple):
    """What one sender can reach near its policy.

    value: supremum of U_j over the neighbourhood, ties for j; NaN if unverified. policy: [W, S_j]
    that reaches it; None if unverified. kind: "exact" or "unverified" (a cap stopped the search).
    programs: how many assignments there are. message: why unverified.
    """

    value: float
    policy: np.ndarray | None
    kind: str
    programs: int
    message: str = ""


def box(
    policy: Float[np.ndarray, "*lead states signals"], delta: float
) -> tuple[Float[np.ndarray, "*lead states signals"], Float[np.ndarray, "*lead states signals"]]:
    """Least and largest probabilities within delta of a policy."""
    return np.maximum(policy - delta, 0.0), np.minimum(policy + delta, 1.0)


def local_best_response(
    game: Game,
    profile: Profile,
    sender: int,
    delta: float,
    *,
    kappa: float = 0.0,
    method: str = "auto",
    cap: int = CAP,
) -> LocalResponse:
    """The best that `sender` can do within delta of its policy in `profile` ([W, S_k] each).

    delta: radius in the maximum norm, in [0, 1]. kappa: by how much the receiver must prefer its
    replies, in units of its utility, >= 0; above 0 they do not depend on the rule for ties.
    method: "program", the linear programs; "lines", the closed form for two states and two signals
    (`local_best_response_lines`); "auto", the latter where it applies and kappa is 0.
    cap: most linear programs; above it the answer is "unverified".

    Raises:
        UserError: no such sender or method, delta or kappa out of range.
    """
    check_sender(game, sender)
    in_range("delta", delta, 0, 1)
    in_range("kappa", kappa, 0)
    one_of("method", method, METHODS)
    policy = np.asarray(profile[sender], np.float64)
    if policy.ndim != 2:
        raise UserError(f"profile has leading axes {policy.shape[:-2]}; this takes one profile")
    square = policy.shape == (2, 2) and kappa == 0
    if method == "lines" or (method == "auto" and square):
        if not square:
            raise UserError(f"method='lines' needs 2 states and 2 signals, not {policy.shape}")
        value, best = local_best_response_lines(game, profile, sender, delta)
        return LocalResponse(float(value), best, "exact", 1)
    return _by_programs(game, profile, sender, delta, kappa, cap)


def _by_programs(
    game: Game, profile: Profile, sender: int, delta: float, kappa: float, cap: int
) -> LocalResponse:
    columns = reduce_columns(np.asarray(others(game, profile, sender)))
    rows = obedience(columns.q, game.u, kappa)
    worth = wishes(columns.q, game.v[sender])
    low, high = (bound.T for bound in box(np.asarray(profile[sender]), delta))  # [signal, w]
    options, alike = [], _alike(low, high)
    for s, (least, most) in enumerate(zip(low, high, strict=True)):
        if alike[s] < s:
            options.append(options[alike[s]])
            continue
        found = feasible_profiles(rows, least, most, cap)
        if found is None:
            return LocalResponse(math.nan, None, "unverified", cap, _too_many(sender, cap))
        if len(found) == 0:
            if least.max() > USED:
                return LocalResponse(math.nan, None, "unverified", 0, _no_margin(sender, kappa))
            # Nothing but an unused signal: any profile does, as it is never sent.
            found = np.zeros((1, columns.q.shape[1]), int)
        options.append(found)
    count = _choices(options, alike)
    if count > cap:
        return LocalResponse(math.nan, None, "unverified", count, _too_many(sender, cap, count))
    best = None
    for choice in np.ndindex(*(len(found) for found in options)):
        if any(choice[s] < choice[a] for s, a in enumerate(alike)):
            continue  # the same but for the names of two signals
        chosen = np.stack([found[place] for found, place in zip(options, choice, strict=True)])
        solved = solve_blocks(rows, worth, chosen, low, high)
        if solved is not None and (best is None or solved.value > best.value):
            best = solved
    if best is None:
        return LocalResponse(math.nan, None, "unverified", count, _no_margin(sender, kappa))
    policy = best.likelihoods.T
    return LocalResponse(best.value, policy / policy.sum(1, keepdims=True), "exact", count)


def _alike(low: np.ndarray, high: np.ndarray) -> list[int]:
    """For each signal the last one before it of the same box, or itself."""
    found = []
    for s in range(len(low)):
        same = [a for a in range(s) if (low[a] == low[s]).all() and (high[a] == high[s]).all()]
        found.append(same[-1] if same else s)
    return found


def _choices(options: list[np.ndarray], alike: list[int]) -> int:
    """How many assignments differ by more than the names of signals of one box."""
    groups: dict[int, int] = {}
    root = list(range(len(alike)))
    for s, a in enumerate(alike):
        root[s] = root[a]
        groups[root[s]] = groups.get(root[s], 0) + 1
    return math.prod(
        math.comb(len(options[first]) + size - 1, size) for first, size in groups.items()
    )


def with_margin(
    game: Game,
    profile: Profile,
    sender: int,
    delta: float,
    policy: Float[np.ndarray, "states signals"],
    kappa: float,
) -> Float[np.ndarray, "states signals"] | None:
    """The best policy within delta of the sender's own that gives the replies to `policy` a margin.

    `policy`: of `sender`, whose ties are broken for it, such as the answer of
    `local_best_response`; the result has the same replies under every rule for ties, by a margin
    of kappa in units of the receiver's utility, and is worth O(kappa) less. None if there is none.
    """
    columns = reduce_columns(np.asarray(others(game, profile, sender)))
    worth = wishes(columns.q, game.v[sender])
    scores = np.einsum("ws,wt,wa->sta", policy, columns.q, game.u)
    slack = 1e-9 * np.abs(game.u).max() * columns.q.max(0)[:, None]
    wished = np.einsum("ws,taw->sta", policy, worth)
    tied = scores >= scores.max(-1, keepdims=True) - slack
    replies = np.where(tied, wished, -np.inf).argmax(-1)
    low, high = (bound.T for bound in box(np.asarray(profile[sender]), delta))
    found = solve_blocks(obedience(columns.q, game.u, kappa), worth, replies, low, high)
    if found is None:
        return None
    return found.likelihoods.T / found.likelihoods.sum(0)[:, None]


def _too_many(sender: int, cap: int, count: int | None = None) -> str:
    many = f"more than {cap}" if count is None else f"{count}"
    return f"sender {sender}: {many} assignments of action profiles to signals; the cap is {cap}"


def _no_margin(sender: int, kappa: float) -> str:
    return f"no policy of sender {sender} near its own leaves the receiver a margin of {kappa}"


def _tie_lines(
    q: Float[np.ndarray, "batch 2 joint"], u: Float[np.ndarray, "2 actions"]
) -> Float[np.ndarray, "batch lines 3"]:
    """Lines c_0 x + c_1 y = d of (x, y) = (pi(0|0), pi(0|1)) on which two replies tie.

    c(w) = Q(w, t) (u(w, a) - u(w, b)) for all t, a < b: c.(x, y) = 0 for signal 0, and
    c.(x, y) = c_0 + c_1 for signal 1.
    """
    first, second = np.triu_indices(u.shape[1], 1)
    gap = u[:, first] - u[:, second]
    c = (q[..., None] * gap[:, None, :]).reshape(len(q), 2, -1)
    c = np.swapaxes(c, 1, 2)
    zero, one = np.zeros((*c.shape[:2], 1)), c.sum(-1, keepdims=True)
    return np.concatenate([np.concatenate([c, zero], -1), np.concatenate([c, one], -1)], 1)


def _crossings(
    lines: Float[np.ndarray, "batch lines 3"],
    low: Float[np.ndarray, "batch 2"],
    high: Float[np.ndarray, "batch 2"],
) -> Float[np.ndarray, "batch points 2"]:
    """Points of a box at which two lines cross, its own edges among them; NaN where outside."""
    scale = np.abs(lines[..., :2]).max(-1, keepdims=True)
    lines = lines / np.where(scale > 0, scale, 1.0)
    edges = np.zeros((len(lines), 4, 3))
    edges[:, 0:2, 0], edges[:, 2:4, 1] = 1.0, 1.0
    edges[:, :, 2] = np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], 1)
    lines = np.concatenate([edges, lines], 1)
    i, k = np.triu_indices(lines.shape[1], 1)
    first, second = lines[:, i], lines[:, k]
    det = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    safe = np.where(np.abs(det) > 1e-14, det, np.nan)
    x = (first[..., 2] * second[..., 1] - first[..., 1] * second[..., 2]) / safe
    y = (first[..., 0] * second[..., 2] - first[..., 2] * second[..., 0]) / safe
    points = np.stack([x, y], -1)
    inside = (points >= low[:, None] - 1e-12) & (points <= high[:, None] + 1e-12)
    points = np.clip(points, low[:, None], high[:, None])
    return np.where(inside.all(-1, keepdims=True), points, np.nan)


def _values(
    points: Float[np.ndarray, "batch points 2"],
    q: Float[np.ndarray, "batch 2 joint"],
    u: Float[np.ndarray, "2 actions"],
    v: Float[np.ndarray, "2 actions"],
) -> Float[np.ndarray, "batch points"]:
    """The sender's utility at each point, ties for it; NaN at NaN."""
    likelihoods = np.stack([points, 1 - points], -2)  # [batch, point, signal, w]
    weight = likelihoods[:, :, :, None, :] * np.swapaxes(q, 1, 2)[:, None, None]
    scores, worth = weight @ u, weight @ v
    # The points are ties but for rounding, which grows with the column's probability.
    slack = 1e-12 * np.abs(u).max() * q.max(1)[:, None, None, :, None]
    tied = scores >= scores.max(-1, keepdims=True) - slack
    return np.where(tied, worth, -np.inf).max(-1).sum((-1, -2))


def local_best_response_lines(
    game: Game, profile: Profile, sender: int, delta: float
) -> tuple[Float[np.ndarray, "*lead"], Float[np.ndarray, "*lead 2 2"]]:
    """`local_best_response` in closed form, for two states, two signals of `sender` and a batch.

    (value, policy) for profiles with any leading axes. The value with ties for the sender is
    piecewise linear and upper semicontinuous in (x, y) = (pi(0|0), pi(0|1)): its maximum over the
    box is where two of these lines cross: the box's edges and the lines on which two replies tie.
    """
    policy = np.asarray(profile[sender], np.float64)
    lead, point = policy.shape[:-2], policy[..., 0].reshape(-1, 2)
    q = np.asarray(others(game, profile, sender)).reshape(len(point), 2, -1)
    low, high = box(point, delta)
    lines = 4 + q.shape[2] * game.n_actions * (game.n_actions - 1)
    each = lines * (lines - 1) * 2 * q.shape[2] * game.n_actions
    step = max(1, CHUNK // max(each, 1))
    values, best = np.empty(len(point)), np.empty((len(point), 2))
    for start in range(0, len(point), step):
        part = slice(start, start + step)
        points = _crossings(_tie_lines(q[part], game.u), low[part], high[part])
        points = np.concatenate([points, point[part, None]], 1)  # also where the box is a point
        found = _values(points, q[part], game.u, game.v[sender])
        found = np.where(np.isnan(found), -np.inf, found)
        place = found.argmax(1)[:, None]
        values[part] = np.take_along_axis(found, place, 1)[:, 0]
        best[part] = np.take_along_axis(points, place[..., None], 1)[:, 0]
    return values.reshape(lead), np.stack([best, 1 - best], -1).reshape(*lead, 2, 2)
