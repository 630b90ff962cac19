"""Games whose optimum is known: from opposed to common interest, and new samples around finds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.persuading import networks, searching
from experiments.persuading.equilibria import Provide, certified
from experiments.persuading.games import SizeClass
from rflib.methods.persuasion.game import Game, outcome
from rflib.methods.persuasion.mediated import mediated_optimum
from rflib.methods.persuasion.sampling import Samples, project_rows
from rflib.methods.persuasion.snap import snap
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

TEXT = "in the game of common interest the search reaches the optimum's neighbourhood after snap"


def measure(config: Any, run: Any, size: SizeClass, provide: Provide) -> dict[str, Metrics]:
    """Every end of every method, snapped; a cell is one game and method."""

    def of(cell: Cell, key: Key) -> Metrics:
        del key
        place, method = cell.arguments["place"], cell.arguments["method"]
        common = cell.arguments["theta"] == 1
        return _snapped(config, size.games[place], common, provide(size, method)[place])

    cells = [
        Cell(f"{game.name} {method}", {"place": place, "theta": theta, "method": method})
        for place, (game, theta) in enumerate(zip(size.games, config.game.thetas, strict=True))
        for method in searching.methods(config)
    ]
    return study(Study(cells, of), run, name="interests", seed=config.seed)


def _snapped(config: Any, game: Game, common: bool, found: searching.Ends) -> Metrics:
    """Sums before and after snap of the first seed's ends; the best one's certificate.

    At common interest a share of the starts is asked for, so the first `snap.starts` are taken;
    else the `verify.shortlist` of largest sum.
    """
    own = np.flatnonzero(found.seed == 0)
    if common:
        own = own[: config.snap.starts]
    else:
        order = np.argsort(-found.best_utilities[own].sum(1), kind="stable")
        own = own[order[: config.verify.shortlist]]
    before = found.best_utilities[own]
    moved = [
        snap(
            game,
            [part[m] for part in found.best],
            delta=config.snap.delta,
            rounds=config.snap.rounds,
            kappa=config.snap.kappa,
            tie=config.tie,
            cap=config.verify.exact_cap,
        )
        for m in own
    ]
    after = np.stack([each.after for each in moved])
    least = config.expect.optimum
    return {
        "snapped": len(own),
        "optimum": mediated_optimum(game, np.ones(game.n_senders)).value,
        "sum_before": float(before.sum(1).max()),
        "sum_after": float(after.sum(1).max()),
        "reached_before": float((before.min(1) >= least).mean()),
        "reached_after": float((after.min(1) >= least).mean()),
        "unsettled": float(np.mean([not each.settled for each in moved])),
        "best": certified(config, game, moved[int(after.sum(1).argmax())].profile),
    }


def table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One row a method and game."""
    rows = []
    for method, title in searching.methods(config).items():
        for theta in config.game.thetas:
            each = found[f"interest {theta:g} {method}"]
            rows.append(
                {
                    "method": title,
                    "common interest": theta,
                    "best sum as found": each["sum_before"],
                    "best sum after snap": each["sum_after"],
                    "mediated optimum": each["optimum"],
                    "snapped": each["snapped"],
                    "at the optimum as found": each["reached_before"],
                    "at the optimum after snap": each["reached_after"],
                    "not settled": each["unsettled"],
                    "global gain of the best": each["best"]["gap"],
                    "certificate": each["best"]["kind"],
                }
            )
    return rows


def state(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    """The sweep's table and the claim about common interest."""
    run.table(
        "interests",
        table(config, found),
        caption="The second sender wants what the first wants with weight theta, the opposite with "
        f"1 - theta. At the optimum: at least {config.expect.optimum:g} for each sender; only at "
        "theta = 1 that is possible (0.6).",
    )
    if 1.0 not in config.game.thetas:
        run.claim("C5 common interest", TEXT, measured=None, verdict="undecided",
                  reason="config.game.thetas leaves 1 out")  # fmt: skip
        return
    for method, title in searching.methods(config).items():
        if searching.network_of(method) is None or " " in method:
            continue
        each = found[f"interest 1 {method}"]
        best = each["best"]
        exact = best["kind"] == "exact-global"
        stable = exact and best["gap"] <= config.verify.ratio * config.verify.delta
        reached = stable and each["reached_after"] >= config.expect.share
        run.claim(
            f"C5 common interest {method}",
            f"{TEXT}: {title}",
            measured=f"{each['reached_before']:.2f} of starts as found, "
            f"{each['reached_after']:.2f} after snap; the best one's global gain "
            f"{'unknown' if best['gap'] is None else format(best['gap'], '.1e')} spans, "
            f"{best['kind']}",
            unit=f"share of starts at {config.expect.optimum:g} or more for each sender; "
            f"{config.expect.share:.2f} asked for, and of the best one a global gain of at most "
            f"{config.verify.ratio * config.verify.delta:g} spans",
            verdict="undecided" if not exact else "holds" if reached else "refuted",
            reason="" if exact else "no exact certificate",
        )


def refined(config: Any, game: Game, samples: Samples, ends: searching.Ends, round: int) -> Samples:
    """`samples` and new ones in the neighbourhood of what was found, with exact utilities.

    Every policy is moved by a uniform step in [-delta, delta] and projected back on its simplices;
    the new rows carry the label of the stratum next to an edge, where finds lie.
    """
    rng = np.random.default_rng([game.seed or 0, networks.TRAIN, round])
    chosen = rng.integers(0, len(ends.seed), config.refine.profiles)
    delta = config.refine.delta
    profile = tuple(
        project_rows(part[chosen] + rng.uniform(-delta, delta, part[chosen].shape))
        for part in ends.best
    )
    label = samples.labels.max()
    return Samples(
        tuple(np.concatenate(pair) for pair in zip(samples.profile, profile, strict=True)),
        np.concatenate([samples.utilities, outcome(game, profile, config.tie).utilities]),
        np.concatenate([samples.labels, np.full(len(chosen), label)]),
        np.concatenate([samples.crossed, np.ones(len(chosen), bool)]),
    )


def refine(config: Any, run: Any, size: SizeClass, kind: str) -> list[dict[str, Any]]:
    """Rounds of training, search and new samples on the game of common interest; one row each."""
    game = size.games[list(config.game.thetas).index(1.0)]
    own = SizeClass(f"{size.name} {game.name}".replace(" ", "-"), (game,))

    def rounds(cell: Cell, key: Key) -> Metrics:
        del cell, key
        samples = networks.training_profiles(config, own)[0]
        rows: list[dict[str, Any]] = []
        for round in range(config.refine.rounds + 1):
            name = f"{own.name}-{kind}-round-{round}"
            trained = networks.train(config, run, own, kind, [samples], name=name)
            ends = searching.run(config, own, kind, trained)[0]
            rows.append(_round(config, round, len(samples.labels), ends))
            samples = refined(config, game, samples, ends, round)
        return {"rows": rows}

    cells = [Cell(kind, {"rounds": config.refine.rounds})]
    return list(study(Study(cells, rounds), run, name="refinement", seed=config.seed)[kind]["rows"])


def _round(config: Any, round: int, profiles: int, ends: searching.Ends) -> dict[str, Any]:
    return {
        "round": round,
        "profiles": profiles,
        "starts at the optimum as found": float(
            (ends.best_utilities.min(1) >= config.expect.optimum).mean()
        ),
        "best sum as found": float(ends.best_utilities.sum(1).max()),
        "mean sum as found": float(ends.best_utilities.sum(1).mean()),
    }


def sums(found: Mapping[str, Metrics], method: str, thetas: Sequence[float]) -> np.ndarray:
    """The best sum after snap, by theta."""
    return np.array([found[f"interest {theta:g} {method}"]["sum_after"] for theta in thetas])
