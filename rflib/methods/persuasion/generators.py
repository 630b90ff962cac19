"""Generated games, from the textbook's prosecutor to ride-hailing platforms.

Every generator draws from `numpy.random.default_rng(seed)` and is a function of its arguments.
"""

from collections.abc import Callable, Sequence

import numpy as np

from rflib.core.checks import in_range, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.game import (
    Game,
    full_revelation,
    make_game,
    no_information,
    outcome,
    relative,
    spans,
)

SPREAD = 0.02  # least standard deviation of a utility over random profiles, in spans
DRAWS = 10_000


def random_profile(
    game: Game, rng: np.random.Generator, *lead: int, alpha: float = 1.0
) -> list[np.ndarray]:
    """Policies [*lead, W, S_j] with independent Dirichlet(alpha) rows."""
    return [rng.dirichlet(np.full(count, alpha), (*lead, game.n_states)) for count in game.signals]


def degenerate(game: Game, rng: np.random.Generator) -> str:
    """Why nothing is at stake in a game, or "": random games often are nearly constant.

    A game is kept if the receiver's best action differs between all states (between two of them
    where there are fewer actions than states), if each sender's utility has over 256 Dirichlet(1)
    profiles a standard deviation above 0.02 of its span, and if full revelation is worth something
    else than silence.
    """
    best = len(set(game.u.argmax(1).tolist()))
    if best < (game.n_states if game.n_actions >= game.n_states else 2):
        return "the receiver's best action does not depend on the state"
    values = outcome(game, random_profile(game, rng, 256)).utilities
    if not (relative(values.std(0), spans(game)) > SPREAD).all():
        return "a sender's utility hardly depends on the profile"
    if np.allclose(full_revelation(game).utilities, no_information(game).utilities):
        return "full revelation is worth what silence is"
    return ""


def _drawn(
    name: str, seed: int, signals: Sequence[int], draw: Callable[..., Game], reject: bool
) -> Game:
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS):
        game = draw(rng)._replace(name=name, seed=seed)
        if not reject or not degenerate(game, rng):
            return game
    raise UserError(
        f"no game of {game.v.shape} (senders, states, actions) with signals {tuple(signals)} in "
        f"{DRAWS} draws is worth playing; take more actions or signals, or do not reject"
    )


def uniform(
    seed: int = 0,
    *,
    senders: int = 2,
    states: int = 2,
    actions: int = 2,
    signals: int = 2,
    reject: bool = True,
) -> Game:
    """mu ~ Dirichlet(1), all utilities uniform on [0, 1].

    reject: draw again, from the same generator, until the game is not `degenerate`.
    """
    counts = (positive_int("signals", signals),) * positive_int("senders", senders)

    def draw(rng: np.random.Generator) -> Game:
        mu = rng.dirichlet(np.ones(positive_int("states", states)))
        u = rng.uniform(size=(states, positive_int("actions", actions)))
        return make_game(mu, u, rng.uniform(size=(senders, states, actions)), counts)

    return _drawn("uniform", seed, counts, draw, reject)


def linear_zero_sum(
    seed: int = 0, *, states: int = 2, actions: int = 2, signals: int = 2, reject: bool = True
) -> Game:
    """As `uniform` with two senders of opposed utilities, v_1 = 1 - v_0."""
    counts = (positive_int("signals", signals),) * 2

    def draw(rng: np.random.Generator) -> Game:
        mu = rng.dirichlet(np.ones(positive_int("states", states)))
        u = rng.uniform(size=(states, positive_int("actions", actions)))
        first = rng.uniform(size=(states, actions))
        return make_game(mu, u, [first, 1 - first], counts)

    return _drawn("linear_zero_sum", seed, counts, draw, reject)


def contract_like(
    seed: int = 0, *, states: int = 3, actions: int = 4, signals: int = 3, reject: bool = True
) -> Game:
    """As `uniform` with one sender: its utility is piecewise linear, as a contract's is."""
    game = uniform(seed, senders=1, states=states, actions=actions, signals=signals, reject=reject)
    return game._replace(name="contract_like")


def aligned(seed: int | None = None, *, senders: int = 2, signals: int = 2) -> Game:
    """Prosecutors of common interest: guilty with probability 0.3, all want a conviction.

    The judge wants to be right (Kamenica & Gentzkow 2011). Full revelation is worth 0.3 to each;
    the best outcome, a Nash equilibrium if ties go to conviction, 0.6: one sender plays
    pi(0|0) = 4/7, pi(1|0) = 3/7, pi(1|1) = 1, the others are silent.
    """
    conviction = [[0.0, 1.0], [0.0, 1.0]]
    count = positive_int("senders", senders)
    return make_game(
        [0.7, 0.3], np.eye(2), [conviction] * count, (signals,) * count, "aligned", seed
    )


def interpolated(seed: int | None = None, *, theta: float = 0.75, signals: int = 2) -> Game:
    """A prosecutor and a second sender with v_2 = theta v_1 + (1 - theta)(1 - v_1).

    theta: 0 for opposed, 1 for common interest; at 0.5 the second sender is indifferent.
    """
    in_range("theta", theta, 0, 1)
    game = aligned(seed, signals=signals)
    second = theta * game.v[0] + (1 - theta) * (1 - game.v[0])
    v = np.stack([game.v[0], second])
    return make_game(game.mu, game.u, v, game.signals, "interpolated", seed)


def opposed(seed: int | None = None, *, signals: int = 2) -> Game:
    """A prosecutor against a defender, v_2 = 1[acquitted]. Full revelation: (0.3, 0.7)."""
    return interpolated(seed, theta=0.0, signals=signals)._replace(name="opposed")


def ride_hailing(seed: int = 0, *, platforms: int = 2, signals: int | None = None) -> Game:
    """Platforms that tell a driver where demand is. Numbers are ours, not the paper's.

    As many regions as platforms; W = A = regions + 1. State 0: quiet everywhere, state r: region r
    is hot. Action 0: stay offline (worth 0 to all), action a: drive to region a, which costs
    cost_a ~ U[.4, .6] and earns fare_a ~ U[.8, 1.2] where it is hot and the share lo ~ U[.2, .4] of
    it elsewhere. Platform j earns commission_j ~ U[.1, .3], half of it outside its own region, and
    0.4 of that in a region that is not hot. mu ~ Dirichlet(4).

    signals: of each platform; None: one a state.
    """
    regions = positive_int("platforms", platforms)
    count = regions + 1
    rng = np.random.default_rng(seed)
    mu = rng.dirichlet(np.full(count, 4.0))
    fare = rng.uniform(0.8, 1.2, regions)
    low = rng.uniform(0.2, 0.4)
    cost = rng.uniform(0.4, 0.6, regions)
    commission = rng.uniform(0.1, 0.3, platforms)
    u, v = np.zeros((count, count)), np.zeros((platforms, count, count))
    hot = np.eye(count, dtype=bool)[:, 1:]  # [state, region]
    u[:, 1:] = fare * np.where(hot, 1.0, low) - cost
    own = np.where(np.arange(regions) == np.arange(platforms)[:, None], 1.0, 0.5)
    v[:, :, 1:] = commission[:, None, None] * own[:, None] * np.where(hot, 1.0, 0.4)
    return make_game(mu, u, v, (signals or count,) * platforms, "ride_hailing", seed)


def advertisers(seed: int = 0, *, senders: int = 2, signals: int | None = None) -> Game:
    """Sellers of products of unknown quality, each for its market share. Numbers are ours.

    State w: bit j is the quality q_j of product j, 1 with probability p_j ~ U[.3, .6]. Action 0:
    buy nothing, action j + 1: buy product j at the price c_j ~ U[.4, .8], worth q_j - c_j.

    signals: of each sender; None: one a state (2^senders).
    """
    count = 2 ** positive_int("senders", senders)
    rng = np.random.default_rng(seed)
    good, price = rng.uniform(0.3, 0.6, senders), rng.uniform(0.4, 0.8, senders)
    quality = (np.arange(count)[:, None] >> np.arange(senders)) & 1
    mu = np.where(quality == 1, good, 1 - good).prod(1)
    u = np.concatenate([np.zeros((count, 1)), quality - price], 1)
    v = np.broadcast_to(np.eye(senders + 1)[1:, None], (senders, count, senders + 1))
    return make_game(mu, u, v, (signals or count,) * senders, "advertisers", seed)


GENERATORS: dict[str, Callable[..., Game]] = {
    "uniform": uniform,
    "aligned": aligned,
    "opposed": opposed,
    "interpolated": interpolated,
    "ride_hailing": ride_hailing,
    "advertisers": advertisers,
    "linear_zero_sum": linear_zero_sum,
    "contract_like": contract_like,
}
"""name -> function(seed, **sizes) that makes a Game."""
