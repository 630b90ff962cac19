"""What senders could reach together: bounds on every profile, by one linear program.

A mediator who sees the state and recommends an action is one sender with any number of signals:

    max sum_w sum_a x(w, a) y(w, a)   over x >= 0 with sum_a x(w, a) = mu(w),
    sum_w x(w, a) (u(w, b) - u(w, a)) <= 0   for all a, b,

where y is the utility that is maximised. Whatever independent senders induce, a mediator can
recommend, so that nothing they do lies beyond the frontier (Bergemann & Morris 2016).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.errors import UserError
from rflib.methods.persuasion.game import Game, full_revelation, spans
from rflib.methods.persuasion.programs import minimise

MIX = 1e-6  # weight on every sender, so that the ends of the frontier are efficient


class Mediated(NamedTuple):
    """A mediator's optimum. value: of its objective. utilities: of the senders [n].
    joint: x(w, a) [W, A], the joint distribution of state and recommended action."""

    value: float
    utilities: np.ndarray
    joint: np.ndarray


class Dominance(NamedTuple):
    """Whether something can be better for all senders than full revelation.

    gain: the largest t such that some recommendation gives every sender full revelation's utility
    plus t of its span. possible: gain > tau_prime. utilities: of the senders [n] there.
    """

    gain: float
    possible: bool
    utilities: np.ndarray


def _solve(game: Game, cost: np.ndarray, extra: Any = None) -> Any:
    """minimise cost . (x, t) over recommendations x and one free number t."""
    states, actions = game.u.shape
    rows = []
    for a in range(actions):
        for b in range(actions):
            if a != b:
                row = np.zeros((states, actions))
                row[:, a] = game.u[:, b] - game.u[:, a]
                rows.append(np.append(row, 0.0))
    matrix = np.array(rows).reshape(len(rows), states * actions + 1)
    limit = np.zeros(len(rows))
    if extra is not None:
        matrix, limit = np.concatenate([matrix, extra[0]]), np.concatenate([limit, extra[1]])
    total = np.concatenate([np.repeat(np.eye(states), actions, 1), np.zeros((states, 1))], 1)
    bounds = [(0.0, None)] * (states * actions) + [(None, None) if extra is not None else (0, 0)]
    found = minimise(cost, A_ub=matrix, b_ub=limit, A_eq=total, b_eq=game.mu, bounds=bounds)
    if found.status != 0:
        raise UserError(f"the mediator's linear program failed: {found.message}")
    return found


def mediated_optimum(game: Game, weights: Float[np.ndarray, " senders"]) -> Mediated:
    """The recommendation that maximises sum_j weights_j U_j, ties of the receiver for it.

    With one sender it is Bayesian persuasion itself: the concave closure, at the prior, of
    V(p) = v(p, a*(p)).
    """
    payoff = np.einsum("j,jwa->wa", weights, game.v)
    found = _solve(game, np.append(-payoff.reshape(-1), 0.0))
    joint = found.x[:-1].reshape(game.u.shape)
    return Mediated(-found.fun, np.einsum("wa,jwa->j", joint, game.v), joint)


def single_sender_optimum(game: Game, sender: int) -> Mediated:
    """What `sender` reaches if all others are silent, with any number of signals."""
    return mediated_optimum(game, np.eye(game.n_senders)[sender])


def utopia(game: Game) -> Float[np.ndarray, " senders"]:
    """The best that each sender can hope for, each in an outcome of its own."""
    return np.array([single_sender_optimum(game, j).value for j in range(game.n_senders)])


def simplex_weights(senders: int, count: int = 33) -> Float[np.ndarray, "count senders"]:
    """Weights that cover the simplex: evenly for two senders, else the corners and a Sobol set."""
    if senders == 1:
        return np.ones((1, 1))
    if senders == 2:
        first = np.linspace(0, 1, count)
        return np.stack([first, 1 - first], 1)
    from scipy.stats import qmc  # imports all of SciPy's statistics

    points = qmc.Sobol(senders, scramble=True, rng=0).random(2 ** int(np.ceil(np.log2(count))))
    inner = -np.log(1 - points[: max(count - senders, 0)])  # exponential: uniform on the simplex
    return np.concatenate([np.eye(senders), inner / inner.sum(1, keepdims=True)])[:count]


def frontier(game: Game, count: int = 33) -> Float[np.ndarray, "count senders"]:
    """Utilities of the mediator's optima for `count` weights of the senders, each in its span.

    Convex combinations of the points are mediated outcomes too; no profile of independent senders
    lies above their upper hull.
    """
    span = spans(game)
    unit = np.where(span > 0, 1 / np.where(span > 0, span, 1.0), 0.0)
    weights = (1 - MIX) * simplex_weights(game.n_senders, count) + MIX / game.n_senders
    return np.stack([mediated_optimum(game, weight * unit).utilities for weight in weights])


def dominance_possible(game: Game, tie: str = "index", tau_prime: float = 1e-4) -> Dominance:
    """Whether any outcome gives every sender more than full revelation, and by how much at most.

    max t subject to U_j(x) >= U_j^FR + t span_j for all j. A sender of span 0 sets no condition.
    tie: the receiver's rule under full revelation.
    """
    known, span = full_revelation(game, tie).utilities, spans(game)
    live = span > 0
    if not live.any():
        return Dominance(0.0, False, known)
    payoffs = game.v[live].reshape(live.sum(), -1)
    extra = np.concatenate([-payoffs, span[live][:, None]], 1), -known[live]
    found = _solve(game, np.append(np.zeros(game.u.size), -1.0), extra)
    joint = found.x[:-1].reshape(game.u.shape)
    gain = float(found.x[-1])
    return Dominance(gain, gain > tau_prime, np.einsum("wa,jwa->j", joint, game.v))
