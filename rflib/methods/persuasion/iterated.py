"""Iterated exact best response: the strong baseline that learns nothing.

Senders in turn move to the vertex that their linear program returns, also where it gains nothing:
moving on a strict gain only gets stuck in inferior equilibria. It may cycle, which is reported.
"""

from typing import NamedTuple

import numpy as np

from rflib.core.checks import positive_int
from rflib.methods.persuasion import best_response as exact
from rflib.methods.persuasion.game import Game, Profile, check_profile, outcome, relative, spans
from rflib.methods.persuasion.local_response import local_best_response

SETTLED = 1e-9  # largest gain, in spans, at an equilibrium
SAME = 1e-9  # policies that differ by less are one


class Iterated(NamedTuple):
    """Where iterated best response ended.

    profile: [W, S_j] each. utilities: U_j under the rule for ties. gap: the largest gain over
    senders by an exact best response (ties for the one that moves), in utility; NaN if unverified.
    settled: whether that is an equilibrium, to 1e-9 spans. rounds: how many were played.
    cycle: 0, or after how many rounds the profile came back (1: nobody moves any more).
    message: why a sender stood still, if a cap stopped its linear program.
    """

    profile: list[np.ndarray]
    utilities: np.ndarray
    gap: float
    settled: bool
    rounds: int
    cycle: int
    message: str = ""


def respond(
    game: Game, profile: Profile, sender: int, *, method: str = "program", cap: int = exact.CAP
) -> exact.BestResponse:
    """The exact best response with the signals that `sender` has: its policy is [W, K], K <= S_j.

    Where it has fewer than its unlimited best response uses, the local one with radius 1.
    """
    found = exact.best_response(game, profile, sender, method=method, cap=cap)
    if found.kind != "upper bound":
        return found
    near = local_best_response(game, profile, sender, 1.0, cap=cap)
    if near.policy is None:
        return exact.unverified(near.programs, near.message)
    return exact.BestResponse(near.value, near.policy, None, "exact", near.programs)


def iterated_best_response(
    game: Game,
    profile: Profile,
    *,
    rounds: int = 12,
    tie: str = "sum",
    method: str = "auto",
    cap: int = exact.CAP,
) -> Iterated:
    """Plays at most `rounds` rounds from `profile` ([W, S_j] each); stops when a profile returns.

    method: of the best responses. The end depends on which optimal vertex it returns.

    Raises:
        UserError: not a profile of the game, no such tie rule or method.
    """
    positive_int("rounds", rounds)
    current = [policy.copy() for policy in check_profile(game, profile)]
    seen = [np.concatenate([policy.reshape(-1) for policy in current])]
    message, played, cycle = "", 0, 0
    while played < rounds and not cycle:
        for j in range(game.n_senders):
            found = respond(game, current, j, method=method, cap=cap)
            if found.policy is None:
                message = found.message
            else:
                current[j] = exact.padded(game, j, found.policy)
        played += 1
        flat = np.concatenate([policy.reshape(-1) for policy in current])
        back = [k for k, old in enumerate(seen) if np.abs(old - flat).max() < SAME]
        cycle = played - back[-1] if back else 0
        seen.append(flat)
    utilities = outcome(game, current, tie).utilities
    best = [respond(game, current, j, method=method, cap=cap).value for j in range(game.n_senders)]
    gains = np.array(best) - utilities
    settled = bool((relative(gains, spans(game)) <= SETTLED).all())
    return Iterated(current, utilities, float(gains.max()), settled, played, cycle, message)
