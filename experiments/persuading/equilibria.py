"""Local equilibria by every method, certified: one cell a game."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.persuading import games, searching
from experiments.persuading.games import SizeClass
from experiments.persuading.networks import Trained
from experiments.persuading.searching import Ends
from rflib.core.checks import one_of
from rflib.methods.persuasion import game as exact
from rflib.methods.persuasion import mediated, pareto
from rflib.methods.persuasion.certificate import Certificate, certify, null_control
from rflib.methods.persuasion.game import Game
from rflib.methods.persuasion.local_response import local_best_response_lines
from rflib.methods.persuasion.sampled import sampled_gain
from rflib.methods.persuasion.snap import snap
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

Provide = Callable[[SizeClass, str], list[Ends]]


class Shortlist(NamedTuple):
    """Profiles worth an exact certificate, best first: one [K, W, S_j] a sender; their seeds.

    looked_at, passed: ends that were tested, and those that passed. share: of all last iterates
    that pass the exact test, None where it has no closed form.
    """

    profiles: tuple[np.ndarray, ...]
    seeds: np.ndarray
    passed: int
    looked_at: int
    share: float | None


def find(
    config: Any, run: Any, classes: Sequence[SizeClass], provide: Provide, *, name: str
) -> dict[str, Metrics]:
    """Everything that is found and certified in every game.

    provide(class, method): where a method ended, game by game; asked only for unfinished games.
    """
    one_of("config.verify.delta", config.verify.delta, config.verify.deltas)
    one_of("config.verify.ratio", config.verify.ratio, config.verify.ratios)
    by_name = {size.name: size for size in classes}

    def of(cell: Cell, key: Key) -> Metrics:
        del key  # draws are the same for all methods of a game
        size, place = by_name[cell.arguments["class"]], cell.arguments["place"]
        found = {method: provide(size, method)[place] for method in searching.methods(config)}
        return judge(config, size.games[place], found)

    cells = [
        Cell(f"{size.name} {games.title(game)}", {"class": size.name, "place": place})
        for size in classes
        for place, game in enumerate(size.games)
    ]
    return study(Study(cells, of), run, name=name, seed=config.seed)


def judge(config: Any, game: Game, found: Mapping[str, Ends]) -> Metrics:
    """A game's benchmarks, and what each method found there."""
    known, silent = (
        exact.full_revelation(game, config.tie),
        exact.no_information(game, config.tie),
    )
    possible = mediated.dominance_possible(game, config.tie, config.pareto.tau_prime)
    control = null_control(
        game,
        count=config.verify.null,
        deltas=config.verify.deltas,
        ratios=config.verify.ratios,
        tie=config.tie,
        cap=config.verify.exact_cap,
        deviations=config.verify.deviations,
    )
    return {
        "game": games.title(game),
        "spans": exact.spans(game),
        "full_revelation": known.utilities,
        "full_revelation_is_equilibrium": exact.full_revelation_is_equilibrium(game),
        "no_information": silent.utilities,
        "utopia": mediated.utopia(game),
        "frontier": mediated.frontier(game),
        "possible": possible.possible,
        "possible_gain": possible.gain,
        "tie": config.tie,
        "null": {"rates": control.rates, "kind": control.kind, "gains": control.gains},
        "methods": {method: _method(config, game, each) for method, each in found.items()},
    }


def _method(config: Any, game: Game, found: Ends) -> Metrics:
    chosen = shortlist(config, game, found)
    span = exact.spans(game)
    known = exact.full_revelation(game, config.tie).utilities
    every = np.concatenate([found.utilities, found.best_utilities])
    order = pareto.dominates(
        found.best_utilities, known, span, config.pareto.tau, config.pareto.tau_prime
    )
    return {
        "ends": len(found.seed),
        "distinct": len(pareto.distinct(every)),
        "best_sum": float(exact.relative(every, span).sum(1).max()),
        "dominate": float(order.strict.mean()),
        "settled": None if found.settled is None else float(found.settled.mean()),
        "looked_at": chosen.looked_at,
        "passed": chosen.passed,
        "closed_form": chosen.share,
        "found": [
            _candidate(config, game, [part[k] for part in chosen.profiles], int(chosen.seeds[k]))
            for k in range(len(chosen.seeds))
        ],
    }


def shortlist(config: Any, game: Game, found: Ends) -> Shortlist:
    """The `verify.top` most promising ends over all seeds.

    Those that pass the local test go first, by their sum of utilities in spans, then those of the
    smallest gain. With two states and two signals every end is tested, exactly, in closed form;
    else each seed puts its `verify.shortlist` distinct ends of largest sum to the sampling
    verifier.
    """
    span = exact.spans(game)
    profiles = [np.concatenate(pair) for pair in zip(found.last, found.best, strict=True)]
    utilities = np.concatenate([found.utilities, found.best_utilities])
    seeds = np.concatenate([found.seed, found.seed])
    total = exact.relative(utilities, span).sum(1)
    gains, share = _closed_form(config, game, profiles, utilities), None
    limit = config.verify.ratio * config.verify.delta
    if gains is None:
        kept = _most_promising(config, utilities, seeds, total)
        gains = np.full(len(seeds), np.inf)
        gains[kept] = [_sampled(config, game, [part[k] for part in profiles]) for k in kept]
    else:
        kept = list(range(len(seeds)))
        share = float((gains[: len(found.seed)] <= limit).mean())
    passes = gains <= limit
    # Seeds, and the last and the best iterate of a start, may have found the same outcome.
    ordered = np.array(
        sorted(kept, key=lambda k: (not passes[k], -total[k] if passes[k] else gains[k]))
    )
    ordered = ordered[pareto.distinct(utilities[ordered])][: config.verify.top]
    chosen = tuple(part[ordered] for part in profiles)
    return Shortlist(chosen, seeds[ordered], int(passes[kept].sum()), len(kept), share)


def _most_promising(
    config: Any, utilities: np.ndarray, seeds: np.ndarray, total: np.ndarray
) -> list[int]:
    """Each seed's distinct ends of largest sum."""
    kept = []
    for seed in np.unique(seeds):
        own = np.flatnonzero(seeds == seed)
        own = own[np.argsort(-total[own], kind="stable")]
        kept += own[pareto.distinct(utilities[own])][: config.verify.shortlist].tolist()
    return kept


def _sampled(config: Any, game: Game, profile: list[np.ndarray]) -> float:
    """The largest gain over senders that the sampling verifier finds, in spans."""
    gains = [
        sampled_gain(
            game,
            profile,
            j,
            config.verify.delta,
            deviations=config.verify.deviations,
            tie=config.tie,
        ).gain
        for j in range(game.n_senders)
    ]
    return float(exact.relative(np.array(gains), exact.spans(game)).max())


def _closed_form(
    config: Any, game: Game, profiles: Sequence[np.ndarray], utilities: np.ndarray
) -> np.ndarray | None:
    """The largest exact gain over senders of each profile, in spans; None without closed form."""
    if game.n_states != 2 or set(game.signals) != {2}:
        return None
    values = [
        local_best_response_lines(game, profiles, j, config.verify.delta)[0]
        for j in range(game.n_senders)
    ]
    return exact.relative(np.stack(values, 1) - utilities, exact.spans(game)).max(1)


def _candidate(config: Any, game: Game, profile: list[np.ndarray], seed: int) -> Metrics:
    moved = snap(
        game,
        profile,
        delta=config.snap.delta,
        rounds=config.snap.rounds,
        kappa=config.snap.kappa,
        tie=config.tie,
        cap=config.verify.exact_cap,
    )
    return {
        "seed": seed,
        "before": certified(config, game, profile),
        "after": certified(config, game, moved.profile) | {"settled": moved.settled},
    }


def certified(config: Any, game: Game, profile: Sequence[np.ndarray]) -> dict[str, Any]:
    """A profile and what its certificate says, gains in spans: largest over senders by radius.

    gap: by any deviation; with fewer signals than states that may be an upper bound (`kind`).
    """
    found = certify(
        game,
        profile,
        deltas=config.verify.deltas,
        ratios=config.verify.ratios,
        tie=config.tie,
        deviations=config.verify.deviations,
        local_cap=config.verify.exact_cap,
        global_cap=config.verify.global_cap,
        reach_cap=config.verify.reach_cap,
    )
    return {
        "profile": [np.asarray(part) for part in profile],
        "utilities": found.utilities,
        "gains": [max(gain.relative for gain in row) for row in found.local],
        "passes": found.passes,
        "gap": _gap(found),
        "kind": found.kind,
        "cliff": found.cliff,
    }


def _gap(found: Certificate) -> float | None:
    """The largest gain by any deviation, in spans; None where it is not verified."""
    gains = [gain.relative for gain in found.best]
    return None if np.isnan(gains).any() else max(gains)


def verified(config: Any, game: Metrics, method: str, stage: str) -> list[dict[str, Any]]:
    """The profiles whose exact certificate says that they are local equilibria."""
    d = list(config.verify.deltas).index(config.verify.delta)
    limit = config.verify.ratio * config.verify.delta
    return [
        each[stage]
        for each in game["methods"][method]["found"]
        if each[stage]["kind"] != "sampled" and each[stage]["gains"][d] <= limit
    ]


def best(config: Any, game: Metrics, method: str, stage: str) -> dict[str, Any] | None:
    """The certified local equilibrium of largest sum of utilities; None if none is certified."""
    span = np.array(game["spans"])
    return max(
        verified(config, game, method, stage),
        key=lambda each: exact.relative(np.array(each["utilities"]), span).sum(),
        default=None,
    )


def provider(config: Any, trained: Callable[[SizeClass, str], Trained]) -> Provide:
    """Runs each search once, when it is first asked for."""
    kept: dict[tuple[str, str], list[Ends]] = {}

    def provide(size: SizeClass, method: str) -> list[Ends]:
        if (size.name, method) not in kept:
            kind = searching.network_of(method)
            own = trained(size, kind) if kind else None
            if not any(name == size.name for name, _ in kept):
                kept.clear()  # classes come one after the other: keep one in memory
            kept[size.name, method] = searching.run(config, size, method, own)
        return kept[size.name, method]

    return provide
