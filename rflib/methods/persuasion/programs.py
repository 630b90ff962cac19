"""Linear programs of persuasion: what the others' signals leave to decide, and obedience to it.

Fix the policies of all senders but j and let t index their T joint signals, with
Q(w, t) = mu(w) prod_{k != j} pi_k(t_k | w). A signal of j with likelihoods q(w) >= 0 induces an
action profile alpha: t -> action, the receiver's best replies:

    sum_w q(w) Q(w, t) (u(w, a) - u(w, alpha(t))) <= 0    for all t, a         (obedience)

Hossain et al. (ICML 2024) show that choosing among the A^T profiles is what makes even one
sender's best response NP-hard. Solved by HiGHS (`scipy.optimize.linprog`), in float64.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, sparse

FEASIBILITY = 1e-10  # of the solver; its own 1e-7 lets profiles through that are 1e-7 off a cliff
USED = 1e-9  # a cone or a box that holds no more mass than this is empty
ZERO = 1e-15


class Columns(NamedTuple):
    """The others' joint signals that differ: Q [W, R], and for each of T its column, or -1."""

    q: np.ndarray
    group: np.ndarray


def reduce_columns(q: Float[np.ndarray, "states joint"]) -> Columns:
    """Adds up proportional columns and drops those that are zero, which changes no value.

    Proportional joint signals of the others tell the receiver the same, so that its best replies
    agree; so do the sender's wishes. Silent senders leave one column, revealing ones W.
    """
    total = q.sum(0)
    live = np.flatnonzero(total > ZERO)
    shares = q[:, live] / total[live]
    group = np.full(q.shape[1], -1)
    first: list[int] = []
    for place, t in enumerate(live.tolist()):
        same = [
            r for r, f in enumerate(first) if np.abs(shares[:, f] - shares[:, place]).max() < 1e-12
        ]
        group[t] = same[0] if same else len(first)
        if not same:
            first.append(place)
    reduced = np.stack([q[:, group == r].sum(1) for r in range(len(first))], 1)
    return Columns(reduced, group)


def obedience(
    q: Float[np.ndarray, "states joint"],
    u: Float[np.ndarray, "states actions"],
    margin: float = 0.0,
) -> Float[np.ndarray, "joint actions actions states"]:
    """rows[t, a, b]: coefficients of q(w) that must sum to <= 0 for a to be taken and not b at t.

    Q(w, t) (u(w, b) - u(w, a) + margin) for b != a, scaled to a largest entry of 1 (0 if a = b):
    the solver's tolerance is absolute, and signals of small probability count like others.
    """
    gain = np.swapaxes(u[:, None, :] - u[:, :, None], 0, 1)  # [a, w, b] = u(w, b) - u(w, a)
    gain = np.moveaxis(gain, 1, 2) + margin * ~np.eye(u.shape[1], dtype=bool)[:, :, None]
    rows = gain[None] * q.T[:, None, None, :]
    scale = np.abs(rows).max(-1, keepdims=True)
    return rows / np.where(scale > 0, scale, 1.0)


def minimise(cost: np.ndarray, **constraints: Any) -> Any:
    """`scipy.optimize.linprog` by the dual simplex method: its solution is a vertex."""
    return optimize.linprog(
        cost,
        method="highs-ds",
        options={
            "primal_feasibility_tolerance": FEASIBILITY,
            "dual_feasibility_tolerance": FEASIBILITY,
        },
        **constraints,
    )


def _largest(
    rows: Float[np.ndarray, "rows states"],
    low: Float[np.ndarray, " states"],
    high: Float[np.ndarray, " states"],
) -> float:
    """max sum_w q(w) with rows q <= 0 and low <= q <= high; -1 if there is no such q."""
    found = minimise(
        -np.ones(len(low)), A_ub=rows, b_ub=np.zeros(len(rows)), bounds=np.stack([low, high], 1)
    )
    return -found.fun if found.status == 0 else -1.0


def feasible_profiles(
    rows: Float[np.ndarray, "joint actions actions states"],
    low: Float[np.ndarray, " states"],
    high: Float[np.ndarray, " states"],
    cap: int,
) -> Int[np.ndarray, "profiles joint"] | None:
    """All profiles that some likelihoods in a box induce with a mass above 1e-9; None above `cap`.

    Grown one joint signal at a time; a prefix that no q of the box induces has no continuation.
    low, high: of q(w); 0 and 1 for a signal that may be anything.
    """
    worst = np.maximum(rows * low, rows * high).sum(-1).max(-1)  # [t, a]
    possible = np.minimum(rows * low, rows * high).sum(-1).max(-1) <= FEASIBILITY
    prefixes = [()] if high.sum() > USED else []
    for t in range(len(rows)):
        grown = []
        for prefix in prefixes:
            for action in np.flatnonzero(possible[t]).tolist():
                longer = (*prefix, action)
                if worst[t, action] <= 0 or _largest(_stack(rows, longer), low, high) > USED:
                    grown.append(longer)
            if len(grown) > cap:
                return None
        prefixes = grown
    return np.array(prefixes, int).reshape(len(prefixes), len(rows))


def _stack(rows: np.ndarray, profile: Any) -> np.ndarray:
    """The obedience rows [(t, b), w] of a profile or of its beginning."""
    taken = rows[np.arange(len(profile)), list(profile)]
    return taken.reshape(-1, rows.shape[-1])


def wishes(
    q: Float[np.ndarray, "states joint"], v: Float[np.ndarray, "states actions"]
) -> Float[np.ndarray, "joint actions states"]:
    """Q(w, t) v(w, a): what a unit of likelihood in state w is worth to the sender at t."""
    return np.einsum("wt,wa->taw", q, v)


class Blocks(NamedTuple):
    """Likelihoods [K, W] of K signals that maximise the sender's utility, and its value."""

    value: float
    likelihoods: np.ndarray


def solve_blocks(
    rows: Float[np.ndarray, "joint actions actions states"],
    worth: Float[np.ndarray, "joint actions states"],
    profiles: Int[np.ndarray, "blocks joint"],
    low: Float[np.ndarray, "blocks states"],
    high: Float[np.ndarray, "blocks states"],
) -> Blocks | None:
    """One signal for each profile, obedient to it: the best likelihoods, or None if there are none.

    max sum_k sum_w q_k(w) sum_t Q(w, t) v(w, alpha_k(t)) with sum_k q_k(w) = 1 for every state w,
    the obedience rows of alpha_k for every k, and low <= q <= high.
    """
    count, states = low.shape
    t = np.arange(len(rows))
    cost = -worth[t, profiles].sum(1).reshape(-1)
    blocks = rows[t, profiles].reshape(count, -1, states)
    matrix = _block_diagonal(blocks)
    found = minimise(
        cost,
        A_ub=matrix,
        b_ub=np.zeros(matrix.shape[0]),
        A_eq=np.tile(np.eye(states), (1, count)),
        b_eq=np.ones(states),
        bounds=np.stack([low, high], -1).reshape(-1, 2),
    )
    if found.status != 0:
        return None
    return Blocks(-found.fun, np.clip(found.x.reshape(count, states), low, high))


def _block_diagonal(blocks: np.ndarray) -> Any:
    count, height, width = blocks.shape
    place = np.arange(count + 1)
    matrix = sparse.bsr_array((blocks, place[:-1], place), shape=(count * height, count * width))
    return matrix.tocsr() if count > 8 else matrix.toarray()


def all_profiles(joint: int, actions: int) -> Int[np.ndarray, "profiles joint"]:
    """The A^T profiles, in lexicographic order."""
    return np.indices((actions,) * joint).reshape(joint, -1).T
