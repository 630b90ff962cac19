"""Where each method's search ends: candidates for equilibria, with their true utilities."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.persuading import networks
from experiments.persuading.games import SizeClass
from experiments.persuading.networks import KINDS, Trained
from rflib.core.checks import one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion import baselines, sampling
from rflib.methods.persuasion.game import Game, outcome, relative, spans
from rflib.methods.persuasion.iterated import iterated_best_response
from rflib.methods.persuasion.oracle import Payoffs
from rflib.methods.persuasion.search import KINDS as OPTIMISERS
from rflib.methods.persuasion.search import Search, exact_rows, learned, trajectories

KEPT = 50  # iterates of a search
BASELINES = {
    "annealed": "soft receiver that hardens, no network",
    "zeroth": "trial and error on the true game",
    "iterated": "iterated exact best response",
    "random": "random profiles (control)",
}


class Ends(NamedTuple):
    """Where one method ended in one game, one entry a start and seed.

    last: the last iterates, [M, W, S_j] a sender, float64. best: the iterate of each start whose
    true sum_j U_j / span_j is largest. seed: of the network, its place in the config's seeds; 0
    without one. utilities, best_utilities: [M, n], true ones. settled: [M], of iterated best
    response, None elsewhere.
    """

    last: tuple[np.ndarray, ...]
    best: tuple[np.ndarray, ...]
    seed: np.ndarray
    utilities: np.ndarray
    best_utilities: np.ndarray
    settled: np.ndarray | None = None


def methods(config: Any) -> dict[str, str]:
    """method -> what it is called, in the order of tables."""
    found = {}
    for kind in config.search.kinds:
        one_of("config.search.kinds", kind, config.model.kinds)
        found[kind] = f"{networks.TITLES[kind]}, extra-gradient"
    for optimiser in config.search.optimisers:
        one_of("config.search.optimisers", optimiser, OPTIMISERS)
        if optimiser != "extragradient" and config.search.kinds:
            first = config.search.kinds[0]
            found[f"{first} {optimiser}"] = f"{networks.TITLES[first]}, {optimiser}"
    for name in config.search.baselines:
        found[name] = BASELINES[one_of("config.search.baselines", name, BASELINES)]
    return found


def starts(config: Any, game: Game) -> tuple[np.ndarray, ...]:
    """The same starts for every method: Dirichlet(1) rows."""
    rng = np.random.default_rng([game.seed or 0, networks.STARTS])
    return sampling.dirichlet(game, rng, positive_int("config.search.starts", config.search.starts))


def search(config: Any, kind: str) -> Search:
    """The search of the config, by an optimiser."""
    c = config.search
    return Search(kind, c.param, c.eta, c.steps, min(KEPT, c.steps))


def run(config: Any, size: SizeClass, method: str, trained: Trained | None) -> list[Ends]:
    """Where `method` ends, for each game of a class; `trained` is its network, if it has one."""
    if method == "iterated":
        return [_iterated(config, game) for game in size.games]
    begin = [starts(config, game) for game in size.games]
    if method == "random":
        return [
            ends(config, game, [part[:, None] for part in start], np.zeros(len(start[0]), int))
            for game, start in zip(size.games, begin, strict=True)
        ]
    stacked = tuple(np.stack(parts) for parts in zip(*begin, strict=True))
    if method == "annealed":
        kept = _annealed(_payoffs32(size), stacked, search(config, "extragradient"))
    elif method == "zeroth":
        kept = _zeroth(config, size, stacked)
    else:
        kept = _learned(config, size, method, trained, stacked)
    number = kept[0].shape[1] // stacked[0].shape[1]
    seed = np.repeat(np.arange(number), stacked[0].shape[1])
    return [
        ends(config, game, [part[g] for part in exact_rows(kept)], seed)
        for g, game in enumerate(size.games)
    ]


def ends(config: Any, game: Game, kept: list[np.ndarray], seed: np.ndarray) -> Ends:
    """The ends of kept iterates [M, kept, W, S_j], judged by the exact game in float64."""
    utilities = outcome(game, kept, config.tie).utilities
    best = relative(utilities, spans(game)).sum(-1).argmax(-1)
    rows = np.arange(len(best))
    return Ends(
        tuple(part[:, -1] for part in kept),
        tuple(part[rows, best] for part in kept),
        seed,
        utilities[:, -1],
        utilities[rows, best],
    )


def _payoffs32(size: SizeClass) -> Payoffs:
    return Payoffs(*(jnp.asarray(each, jnp.float32) for each in size.payoffs))


def _learned(
    config: Any, size: SizeClass, method: str, trained: Trained | None, begin: tuple
) -> tuple[np.ndarray, ...]:
    """[games, seeds x starts, kept, W, S_j] a sender."""
    if trained is None:
        raise UserError(f"method {method!r} needs a network")
    optimiser = method.partition(" ")[2] or "extragradient"
    kept = _learned_program(
        trained.network,
        search(config, optimiser),
        trained.params,
        tuple(jnp.asarray(part, jnp.float32) for part in begin),
    )
    return tuple(np.asarray(part).reshape(len(size.games), -1, *part.shape[3:]) for part in kept)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _learned_program(network: Any, how: Search, params: Any, begin: Any) -> Any:
    def one(params: Any, begin: Any) -> Any:
        return trajectories(learned(params, network), begin, how)

    return jax.vmap(jax.vmap(one, (0, None)))(params, begin)


@functools.partial(jax.jit, static_argnums=2)
def _annealed_program(payoffs: Payoffs, begin: Any, how: Search) -> Any:
    def one(payoffs: Payoffs, begin: Any) -> Any:
        return trajectories(baselines.annealed(payoffs, how.steps), begin, how)

    return jax.vmap(one)(payoffs, begin)


def _annealed(payoffs: Payoffs, begin: tuple, how: Search) -> tuple[np.ndarray, ...]:
    return _annealed_program(payoffs, tuple(jnp.asarray(p, jnp.float32) for p in begin), how)


def _zeroth(config: Any, size: SizeClass, begin: tuple) -> tuple[np.ndarray, ...]:
    """As many true evaluations a start as the networks were trained on, and a thousand checks."""
    number = config.search.starts
    count = config.data.profiles // number + 1000
    drawn = []
    for game in size.games:
        rng = np.random.default_rng([game.seed or 0, networks.STARTS, 1])
        drawn.append(baselines.proposals(size.signals, game.n_states, number, count, KEPT, rng))
    rows = tuple(np.stack(each) for each in zip(*(rows for rows, _ in drawn), strict=True))
    with jax.enable_x64(True):
        payoffs = Payoffs(*(jnp.asarray(each) for each in size.payoffs))
        sizes = np.stack([each for _, each in drawn])
        kept = _zeroth_program(payoffs, begin, rows, sizes, config.tie)
        return tuple(np.asarray(part) for part in kept)


@functools.partial(jax.jit, static_argnums=4)
def _zeroth_program(payoffs: Payoffs, begin: Any, rows: Any, sizes: Any, tie: str) -> Any:
    def one(payoffs: Payoffs, start: Any, rows: Any, sizes: Any) -> Any:
        return baselines.zeroth_order(payoffs, start, rows, sizes, KEPT, tie)

    return jax.vmap(jax.vmap(one, (None, 0, 0, 0)))(payoffs, begin, rows, sizes)


def _iterated(config: Any, game: Game) -> Ends:
    """From the first of the starts; a game too large for its linear programs stays where it is."""
    number = min(config.search.iterated_starts, config.search.starts)
    begin = [part[:number] for part in starts(config, game)]
    found = [
        iterated_best_response(
            game,
            [part[m] for part in begin],
            rounds=config.search.rounds,
            tie=config.tie,
            cap=config.verify.global_cap,
        )
        for m in range(number)
    ]
    kept = [np.stack([each.profile[j] for each in found])[:, None] for j in range(game.n_senders)]
    settled = np.array([each.settled for each in found])
    return ends(config, game, kept, np.zeros(number, int))._replace(settled=settled)


def network_of(method: str) -> str | None:
    """The kind of network that a method searches on."""
    kind = method.partition(" ")[0]
    return kind if kind in KINDS else None
