"""Games that several tests share, and the game written out as four loops."""

import itertools

import numpy as np

from rflib.methods.persuasion.game import Game, make_game


def worked() -> Game:
    """Two senders of two signals, three states, three actions."""
    return make_game(
        [0.4, 0.35, 0.25],
        [[1, 0, 0.4], [0, 1, 0.3], [0.2, 0.1, 0.9]],
        [
            [[0.1, 0.9, 0.3], [0.2, 0.8, 0.5], [0, 0.7, 0.6]],
            [[0.5, 0.2, 0.9], [0.3, 0.1, 0.8], [0.4, 0.6, 1]],
        ],
        (2, 2),
        "worked",
    )


def worked_profile() -> list[np.ndarray]:
    return [
        np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]]),
        np.array([[0.6, 0.4], [0.1, 0.9], [0.75, 0.25]]),
    ]


def prosecutor() -> Game:
    """The single prosecutor of Kamenica & Gentzkow (2011)."""
    return make_game([0.7, 0.3], np.eye(2), [[[0, 1], [0, 1]]], (2,), "prosecutor")


OPTIMUM = [np.array([[4 / 7, 3 / 7], [0.0, 1.0]]), np.full((2, 2), 0.5)]
"""The best profile of two prosecutors of common interest: one persuades, one is silent."""


def drawn(seed: int, n: int, states: int, actions: int, signals: int) -> Game:
    """A uniform game, degenerate or not."""
    rng = np.random.default_rng(seed)
    mu = rng.dirichlet(np.ones(states))
    u, v = rng.uniform(size=(states, actions)), rng.uniform(size=(n, states, actions))
    return make_game(mu, u, v, (signals,) * n)


def by_loops(
    game: Game, profile: list[np.ndarray], tie: str, tol: float = 1e-9
) -> tuple[np.ndarray, list[int], list[float], float]:
    """(utilities, actions, margins, receiver's value) by the definition."""
    utilities, actions, margins, receiver = np.zeros(game.n_senders), [], [], 0.0
    for signal in itertools.product(*(range(count) for count in game.signals)):
        p = []
        for w in range(game.n_states):
            chance = float(game.mu[w])
            for j, s in enumerate(signal):
                chance *= float(profile[j][w, s])
            p.append(chance)

        def expected(table: np.ndarray, action: int, p: list[float] = p) -> float:
            return sum(p[w] * float(table[w, action]) for w in range(len(p)))

        scores = [expected(game.u, a) for a in range(game.n_actions)]
        tied = [a for a in range(game.n_actions) if scores[a] >= max(scores) - tol]
        taken = tied
        if tie == "index":
            taken = tied[:1]
        elif tie != "uniform":
            rule, _, place = tie.partition(":")
            senders = range(game.n_senders) if rule == "sum" else [int(place)]
            sign = -1 if rule == "adversarial" else 1
            second = [sign * sum(expected(game.v[j], a) for j in senders) for a in tied]
            taken = [a for a, value in zip(tied, second, strict=True) if value >= max(second) - tol]
            taken = taken[:1]
        for j in range(game.n_senders):
            utilities[j] += sum(expected(game.v[j], a) for a in taken) / len(taken)
        actions.append(taken[0])
        margins.append(max(scores) - sorted(scores)[-2] if len(scores) > 1 else float("inf"))
        receiver += max(scores)
    return utilities, actions, margins, receiver
