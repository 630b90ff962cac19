"""A best response as public persuasion of many receivers, the source of the hardness proof.

Hossain et al. (ICML 2024) reduce public persuasion to a sender's best response. The other way is a
change of names: each joint signal t of the others becomes a receiver of its own with the common
prior mu, utility u(w, a) prod_{k != j} pi_k(t_k | w), and the sender's objective is the sum over t
of v_j(w, a_t) prod_{k != j} pi_k(t_k | w).
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize

from rflib.core.errors import UserError
from rflib.methods.persuasion.best_response import check_sender
from rflib.methods.persuasion.game import Game, Profile, others


class PublicPersuasion(NamedTuple):
    """One sender, one public signal, T receivers who each take an action.

    mu: common prior [W]. receivers: their utilities [T, W, A]. sender: [T, W, A], what the action
    of each receiver is worth to the sender, whose utility is the sum over receivers.
    """

    mu: np.ndarray
    receivers: np.ndarray
    sender: np.ndarray


def as_public_persuasion(game: Game, profile: Profile, sender: int) -> PublicPersuasion:
    """The best response of `sender` to the others' policies ([W, S_k] each) in these words."""
    check_sender(game, sender)
    chance = (np.asarray(others(game, profile, sender)) / game.mu[:, None]).T[:, :, None]
    return PublicPersuasion(game.mu, chance * game.u, chance * game.v[sender])


def public_persuasion_value(problem: PublicPersuasion, cap: int = 5000) -> float:
    """The sender's optimum, ties for it: a linear program over recommended action profiles.

    max sum_w sum_alpha x(w, alpha) sum_t sender_t(w, alpha_t) over joint distributions x of state
    and profile with sum_alpha x(w, alpha) = mu(w), under which each receiver obeys:
    sum_w x(w, alpha) (receiver_t(w, a) - receiver_t(w, alpha_t)) <= 0.

    Raises:
        UserError: more than `cap` action profiles A^T.
    """
    count, states, actions = problem.receivers.shape
    if actions**count > cap:
        raise UserError(f"{actions}^{count} action profiles of {count} receivers; cap={cap}")
    profiles = list(np.ndindex(*(actions,) * count))
    worth, rows = [], []
    for place, profile in enumerate(profiles):
        worth.append(sum(problem.sender[t, :, a] for t, a in enumerate(profile)))
        for t, taken in enumerate(profile):
            for action in set(range(actions)) - {taken}:
                row = np.zeros((len(profiles), states))
                row[place] = problem.receivers[t, :, action] - problem.receivers[t, :, taken]
                rows.append(row.reshape(-1))
    found = optimize.linprog(
        -np.concatenate(worth),
        A_ub=np.stack(rows) if rows else None,
        b_ub=np.zeros(len(rows)) if rows else None,
        A_eq=np.tile(np.eye(states), len(profiles)),
        b_eq=problem.mu,
        method="highs-ipm",
    )
    if found.status != 0:
        raise UserError(f"the linear program of {len(profiles)} profiles failed: {found.message}")
    return -float(found.fun)
