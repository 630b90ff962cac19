"""Snap: moves a profile that a search found onto the cliff that it stopped short of.

Optimal persuasion leaves the receiver between two actions, so that an optimiser of smooth
utilities ends beside the optimum or falls off. Senders in turn move to the exact best response
within delta of their policy (`local_response`). That point sits on a tie: the whole procedure is
run as it is and, if that leaves a gain under the rule in use, once more with the receiver's
obedience by a margin kappa, which costs O(kappa) and has the same actions under every rule for
ties; the better of both is kept.
"""

from typing import NamedTuple

import numpy as np

from rflib.core.checks import in_range, positive_int
from rflib.methods.persuasion.game import Game, Profile, check_profile, outcome, relative, spans
from rflib.methods.persuasion.local_response import CAP, local_best_response

GAINS = 1e-9  # least gain for a move, in spans
MOVES = 1e-9  # policies that differ by less are one


class Snap(NamedTuple):
    """A profile before and after.

    profile: [W, S_j] each. before, after: U_j [n] under the rule for ties. gap: what a sender can
    still gain within delta, the most over senders, in spans (ties for the sender that deviates);
    NaN if unverified. kappa: the margin of the run that was kept, in units of the receiver's
    utility. settled: whether it ended because nobody gains by a move; where two senders undercut
    each other around a tie, or the rule breaks it against one of them, it does not. rounds: played.
    """

    profile: list[np.ndarray]
    before: np.ndarray
    after: np.ndarray
    gap: float
    kappa: float
    settled: bool
    rounds: int


def snap(
    game: Game,
    profile: Profile,
    *,
    delta: float = 0.1,
    rounds: int = 10,
    kappa: float = 1e-5,
    tie: str = "index",
    cap: int = CAP,
) -> Snap:
    """The better of two runs, without a margin and with one.

    delta: radius of a move, in the maximum norm, in [0, 1]. rounds: most rounds through the
    senders. kappa: the margin, in units of max u - min u, >= 0. tie: the receiver's rule, under
    which utilities count. cap: most linear programs of a move; above it the sender stands still.

    Raises:
        UserError: not a profile of the game, or an argument out of range.
    """
    in_range("kappa", kappa, 0)
    positive_int("rounds", rounds)
    start = check_profile(game, profile)
    margin = kappa * float(np.ptp(game.u))
    plain = _run(game, start, delta, rounds, 0.0, tie, cap)
    if plain.gap <= GAINS or margin == 0:
        return plain  # no margin can end with a smaller gap
    safe = _run(game, start, delta, rounds, margin, tie, cap)
    return safe if safe.gap < plain.gap or np.isnan(plain.gap) else plain


def _run(
    game: Game,
    start: list[np.ndarray],
    delta: float,
    rounds: int,
    kappa: float,
    tie: str,
    cap: int,
) -> Snap:
    span = spans(game)
    before = utilities = outcome(game, start, tie).utilities
    profile, moved, left, played = list(start), True, False, 0
    while played < rounds and moved:
        moved = left = False
        for j in range(game.n_senders):
            found = local_best_response(game, profile, j, delta, kappa=kappa, cap=cap)
            if found.policy is None or found.value - utilities[j] <= GAINS * span[j]:
                continue
            if np.abs(found.policy - profile[j]).max() <= MOVES:
                left = True  # on the tie already, but the rule breaks it against the sender
                continue
            profile[j] = found.policy
            utilities = outcome(game, profile, tie).utilities
            moved = True
        played += 1
    best = [
        local_best_response(game, profile, j, delta, cap=cap).value for j in range(game.n_senders)
    ]
    gap = float(relative(np.array(best) - utilities, span).max())
    return Snap(profile, before, utilities, gap, kappa, not (moved or left), played)
