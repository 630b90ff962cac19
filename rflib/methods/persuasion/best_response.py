"""The exact best response of one sender, by linear programs and by the breakpoints of two states.

Hossain et al. (ICML 2024): for fixed policies of the others a signal of sender j with likelihoods
q(w) induces an action profile alpha: t -> action over the others' joint signals t, so that its best
policy solves, with one block of variables q_alpha(w) >= 0 for each of the A^T profiles,

    max sum_alpha sum_w q_alpha(w) sum_t Q(w, t) v_j(w, alpha(t))
    s.t. sum_alpha q_alpha(w) = 1 for all w,
         sum_w q_alpha(w) Q(w, t) (u(w, a) - u(w, alpha(t))) <= 0 for all alpha, t, a.

The value is the supremum over policies with any number of signals, ties broken for j; at most W
signals are needed. It grows with A^T, which is why a best response is NP-hard in general; for a
fixed number of states only polynomially many profiles can be induced at all.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.checks import in_range, one_of
from rflib.core.errors import UserError
from rflib.methods.persuasion.game import Game, Profile, others
from rflib.methods.persuasion.programs import (
    Columns,
    all_profiles,
    feasible_profiles,
    obedience,
    reduce_columns,
    solve_blocks,
    wishes,
)

METHODS = ("auto", "program", "breakpoints")
PRUNE = ("auto", "always", "never")
FEW = 300  # profiles: a program of so many is solved in the time that some prunings take
CAP = 5000
LEAST = 1e-9  # a signal with less likelihood in every state is rounding


class BestResponse(NamedTuple):
    """What one sender can reach.

    value: supremum of U_j, ties for j; NaN if unverified. policy: [W, K] that reaches it, K signals
    in use, rows on the simplex; None if unverified. actions: [K, T], the receiver's reply to each
    of them and each joint signal of the others, -1 where that has probability 0.
    kind: "exact"; "upper bound" if the sender has fewer than K signals, so that the value may be
    out of its reach; "unverified" if a cap stopped the search, and nothing is known.
    programs: number of action profiles in the program, or of breakpoints. message: why unverified.
    """

    value: float
    policy: np.ndarray | None
    actions: np.ndarray | None
    kind: str
    programs: int
    message: str = ""


def unverified(programs: int, message: str) -> BestResponse:
    """The answer when a cap stopped the search."""
    return BestResponse(float("nan"), None, None, "unverified", programs, message)


def check_sender(game: Game, sender: int) -> int:
    """Returns `sender` if the game has it, counted from 0, else a UserError."""
    return one_of("sender", sender, range(game.n_senders))


def best_response(
    game: Game,
    profile: Profile,
    sender: int,
    *,
    method: str = "auto",
    prune: str = "auto",
    reduce: bool = True,
    margin: float = 0.0,
    cap: int = CAP,
) -> BestResponse:
    """The best that `sender` can do against the other policies of `profile` ([W, S_k] each).

    method: "program", the linear program; "breakpoints", which needs two states and has no cap;
        "auto", breakpoints where there are two states and no margin.
    prune: whether profiles that nothing induces are left out first: "always", "never", or "auto",
        above 300 of them. reduce: add up proportional joint signals of the others. Neither changes
        the value.
    margin: by how much the receiver must prefer each reply in units of its utility, >= 0. Above 0
        replies do not depend on the rule for ties, and the value falls by as much in order.
    cap: most profiles of the program; above it the answer is "unverified".

    Raises:
        UserError: no such sender, method or prune, or breakpoints for another number of states.
    """
    check_sender(game, sender)
    one_of("method", method, METHODS)
    one_of("prune", prune, PRUNE)
    in_range("margin", margin, 0)
    q = np.asarray(others(game, profile, sender))
    if q.ndim != 2:
        raise UserError(f"profile has leading axes {q.shape[:-2]}; a best response is to one")
    columns = reduce_columns(q) if reduce else Columns(q, np.arange(q.shape[1]))
    if method == "auto":
        method = "breakpoints" if game.n_states == 2 and margin == 0 else "program"
    if method == "breakpoints":
        if game.n_states != 2 or margin:
            raise UserError(f"method='breakpoints' needs 2 states ({game.n_states}) and margin=0")
        return _by_breakpoints(game, columns, sender)
    return _by_program(game, columns, sender, prune, margin, cap)


def _by_program(
    game: Game, columns: Columns, sender: int, prune: str, margin: float, cap: int
) -> BestResponse:
    joint, actions = columns.q.shape[1], game.n_actions
    rows = obedience(columns.q, game.u, margin)
    zero, one = np.zeros(game.n_states), np.ones(game.n_states)
    profiles = None
    if prune == "always" or (prune == "auto" and actions**joint > min(FEW, cap)):
        profiles = feasible_profiles(rows, zero, one, cap)
    elif actions**joint <= cap:
        profiles = all_profiles(joint, actions)
    if profiles is None:
        return unverified(
            cap,
            f"sender {sender} faces {joint} different joint signals of the others: more than "
            f"{cap} of {actions}^{joint} action profiles would have to be tried",
        )
    count = len(profiles)
    low, high = np.zeros((count, game.n_states)), np.ones((count, game.n_states))
    found = (
        solve_blocks(rows, wishes(columns.q, game.v[sender]), profiles, low, high)
        if count
        else None
    )
    if found is None:
        return unverified(count, f"no policy of sender {sender} has a margin of {margin}")
    kept = np.flatnonzero(found.likelihoods.max(1) > LEAST)
    policy = found.likelihoods[kept].T
    return _answer(game, columns, sender, found.value, policy, profiles[kept], count)


def _answer(
    game: Game,
    columns: Columns,
    sender: int,
    value: float,
    policy: np.ndarray,
    profiles: np.ndarray,
    programs: int,
) -> BestResponse:
    policy = policy / policy.sum(1, keepdims=True)
    actions = np.where(columns.group < 0, -1, profiles[:, columns.group])
    enough = policy.shape[1] <= game.signals[sender] or game.signals[sender] >= game.n_states
    kind = "exact" if enough else "upper bound"
    return BestResponse(float(value), policy, actions, kind, programs)


def breakpoints(
    q: Float[np.ndarray, "2 joint"], u: Float[np.ndarray, "2 actions"]
) -> Float[np.ndarray, " points"]:
    """All x of [0, 1] at which likelihoods (1 - x, x) leave the receiver between two actions.

    (1 - x) c_0 + x c_1 = 0 with c(w) = Q(w, t) (u(w, a) - u(w, b)), for every t and a < b; with 0
    and 1, sorted, each once.
    """
    first, second = np.triu_indices(u.shape[1], 1)
    gap = u[:, first] - u[:, second]
    c = (q[:, :, None] * gap[:, None, :]).reshape(2, -1)
    crossing = c[:, c[0] * c[1] < 0]
    x = crossing[0] / (crossing[0] - crossing[1])
    return np.unique(np.concatenate([[0.0, 1.0], x]))


def _by_breakpoints(game: Game, columns: Columns, sender: int) -> BestResponse:
    x = np.union1d(breakpoints(columns.q, game.u), 0.5)  # 1/2: silence
    likelihoods = np.stack([1 - x, x], 1)  # [point, w]
    weight = likelihoods[:, None, :] * columns.q.T  # [point, t, w]
    scores, worth = weight @ game.u, weight @ game.v[sender]
    # A breakpoint is a tie but for rounding; the tolerance is relative to the column's scale.
    slack = 1e-12 * np.abs(columns.q.T @ np.abs(game.u)).max(-1)[:, None]
    worth = np.where(scores >= scores.max(-1, keepdims=True) - slack, worth, -np.inf)
    values, replies = worth.max(-1).sum(-1), worth.argmax(-1)
    # The value is homogeneous in q and linear between breakpoints: the best policy takes one on
    # either side of 1/2 (or 1/2 itself), with weights c and d: c (1-x, x) + d (1-y, y) = (1, 1).
    left, right = np.flatnonzero(x <= 0.5), np.flatnonzero(x >= 0.5)
    gap = x[right][None, :] - x[left][:, None]
    c = np.where(gap > 0, (2 * x[right][None, :] - 1) / np.where(gap > 0, gap, 1), 2.0)
    total = c * values[left][:, None] + (2 - c) * values[right][None, :]
    # Of equally good pairs the closest: what tells the receiver least leaves most to the others.
    equal = total >= total.max() - 1e-12 * np.abs(values).max()
    i, k = np.unravel_index(np.where(equal, gap, np.inf).argmin(), total.shape)
    pair = np.array([left[i], right[k]])
    mass = np.array([c[i, k], 2 - c[i, k]])
    used = mass > LEAST
    policy = (mass[:, None] * likelihoods[pair])[used].T
    return _answer(game, columns, sender, total[i, k], policy, replies[pair][used], len(x))


def padded(game: Game, sender: int, policy: Float[np.ndarray, "states used"]) -> np.ndarray:
    """`policy` with columns of zeros for the signals not in use: [W, S_j].

    Raises:
        UserError: the policy uses more signals than the sender has.
    """
    used, count = policy.shape[1], game.signals[sender]
    if used > count:
        raise UserError(
            f"a policy of {used} signals is not one of sender {sender}, who has {count}"
        )
    return np.pad(policy, ((0, 0), (0, count - used)))


def gap(
    game: Game,
    profile: Profile,
    utilities: Float[np.ndarray, " senders"],
    *,
    cap: int = CAP,
) -> Float[np.ndarray, " senders"]:
    """What each sender gains by its best response over `utilities`; NaN where unverified.

    The largest is the profile's distance from a Nash equilibrium, an upper bound of it where a
    sender has fewer signals than its best response uses.
    """
    values = [best_response(game, profile, j, cap=cap).value for j in range(game.n_senders)]
    return np.array(values) - utilities
