"""How well the networks know the utilities (claim C4): by game, stratum and place of the jumps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.persuading import bootstrap, games, networks
from experiments.persuading.games import SizeClass
from experiments.persuading.networks import MATCHED, TITLES, Trained
from rflib.methods.persuasion import metrics, model
from rflib.methods.persuasion.sampling import STRATA
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

C4 = "DNL approximates the senders' utilities better than ReLU and DeLU"


def measure(
    config: Any,
    run: Any,
    classes: Sequence[SizeClass],
    trained: Callable[[SizeClass, str], Trained],
) -> dict[str, Metrics]:
    """Test errors of every network; a cell is one kind on one class."""
    by_name = {size.name: size for size in classes}

    def of(cell: Cell, key: Key) -> Metrics:
        del key  # tests are the same for all networks of a game
        size, kind = by_name[cell.arguments["class"]], cell.arguments["kind"]
        return _errors(config, size, trained(size, kind))

    cells = [
        Cell(f"{size.name} {kind}", {"class": size.name, "kind": kind})
        for size in classes
        for kind in config.model.kinds
    ]
    return study(Study(cells, of), run, name="approximation", seed=config.seed)


def _errors(config: Any, size: SizeClass, trained: Trained) -> Metrics:
    last = trained.network.drop_last
    tests = [networks.draw(config, game, config.data.test, networks.TEST) for game in size.games]
    inputs = np.stack([model.flatten(test.profile, last) for test in tests])
    found = networks.predict(trained, inputs)
    strata = [
        metrics.by_stratum(predicted, test.utilities, test.labels)
        for predicted, test in zip(found, tests, strict=True)
    ]
    lines = [
        metrics.segments(game, networks.LINES, config.evals.segments, tie=config.tie)
        for game in size.games
    ]
    jumps = []
    for g, line in enumerate(lines):  # one game at a time: 80,000 points each
        points = model.flatten(line.profile, last)
        predicted = networks.predict(trained.alone(g), points.reshape(1, -1, points.shape[-1]))[0]
        predicted = predicted.reshape(predicted.shape[0], *points.shape[:2], -1)
        jumps.append(metrics.localisation_error(predicted, line))
    return {
        "games": [games.title(game) for game in size.games],
        "parameters": model.parameter_count(trained.network),
        "errors": {
            name: np.stack([each[name] for each in strata])
            for name in ("all", *STRATA)
            if all(name in each for each in strata)
        },
        "jumps": np.stack(jumps),
    }


def table(found: Mapping[str, Metrics], classes: Sequence[SizeClass]) -> list[dict[str, Any]]:
    """One row a class and kind: means over games and seeds."""
    rows = []
    for size in classes:
        for kind, title in TITLES.items():
            each = found.get(f"{size.name} {kind}")
            if each is None:
                continue
            row = {"games": f"{size.name} ({len(size.games)})", "network": title}
            row |= {"parameters": each["parameters"]}
            row |= {name: float(np.nanmean(value)) for name, value in each["errors"].items()}
            rows.append(row | {"place of jumps": float(np.nanmean(each["jumps"]))})
    return rows


def by_game(found: Mapping[str, Metrics], classes: Sequence[SizeClass]) -> list[dict[str, Any]]:
    """One row a game: each network's error, mean over the seeds."""
    rows = []
    for size in classes:
        for g, game in enumerate(size.games):
            row: dict[str, Any] = {"class": size.name, "game": games.title(game)}
            for kind, title in TITLES.items():
                each = found.get(f"{size.name} {kind}")
                if each is not None:
                    row[title] = float(np.mean(each["errors"]["all"][g]))
            rows.append(row)
    return rows


def advantages(
    found: Mapping[str, Metrics], classes: Sequence[SizeClass], other: str
) -> list[float]:
    """log MSE of `other` less that of DNL, seeds averaged, one a game: above 0 DNL is better."""
    values = []
    for size in classes:
        pair = [found.get(f"{size.name} {kind}") for kind in ("dnl", other)]
        if None in pair:
            continue
        own, rival = (np.log(each["errors"]["all"]).mean(1) for each in pair if each is not None)
        values += (rival - own).tolist()
    return values


def state(
    config: Any, run: Any, found: Mapping[str, Metrics], classes: Sequence[SizeClass]
) -> None:
    """Tables, and C4 against networks of as many parameters and of as many units."""
    rows = table(found, classes)
    caption = (
        "Test error of the networks, MSE over variance averaged over senders (1: no better than "
        "the mean), over all profiles and by stratum; place of jumps: mean distance between the "
        "largest step of the network and that of the truth, as a share of a random line (.33: by "
        "chance). Means over games and seeds."
    )
    run.table("approximation", rows, caption=caption)
    run.table(
        "approximation_games",
        by_game(found, classes),
        caption="The same over all profiles, by game.",
    )
    for suffix, words in ((MATCHED, "of as many parameters"), ("", "of as many units")):
        others = [kind for kind in (f"relu{suffix}", f"delu{suffix}") if kind in config.model.kinds]
        effects = {}
        if "dnl" in config.model.kinds:
            for kind in others:
                values = advantages(found, classes, kind)
                effects[kind] = bootstrap.over_games(values, config.expect.bootstrap)
        name, text = f"C4{' unmatched' * (not suffix)}", f"{C4} {words}"
        if len(effects) < 2:
            run.claim(name, text, measured=None, verdict="undecided",
                      reason=f"needs dnl, relu{suffix} and delu{suffix}")  # fmt: skip
            continue
        verdict, reason = bootstrap.above(list(effects.values()))
        run.claim(
            name,
            text,
            measured="; ".join(f"{TITLES[kind]} {effect}" for kind, effect in effects.items()),
            unit="log of the other's test error over DNL's, mean over games with 95 % interval",
            verdict=verdict,
            reason=reason,
        )
