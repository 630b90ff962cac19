"""What an exact best response costs (claim C2): time against the other sender's signals."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.generators import random_profile, uniform
from rflib.methods.persuasion.public import as_public_persuasion, public_persuasion_value
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

FROM = 4  # signals from which the slope is fitted: below, the solver's overhead hides it
ENOUGH = 500  # action profiles of a program whose time is that of solving it
PUBLIC = 1000  # action profiles up to which the public-persuasion view is solved beside it
SOLVERS = ("every action profile", "pruned", "breakpoints")
TEXT = (
    "an exact best response by the literal program takes time exponential in the number of joint "
    "signals of the others"
)


def measure(config: Any, run: Any) -> dict[str, Metrics]:
    """Seconds by number of states, actions and signals; a cell is one point, all solvers."""
    h = config.hardness
    cells = [
        Cell(
            f"{states} states, {actions} actions, {signals} signals",
            {"states": states, "actions": actions, "signals": signals, "repeats": h.repeats,
             "budget": h.budget},
        )
        for states, actions in h.games
        for signals in range(2, h.signals + 1)
    ]  # fmt: skip
    return study(Study(cells, _point), run, name="hardness", seed=config.seed)


def _point(cell: Cell, key: Key) -> Metrics:
    del key  # games are those of the seeds 0, 1, ...
    a = cell.arguments
    seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
    disagreement = 0.0
    for seed in range(a["repeats"]):
        game = uniform(
            seed, states=a["states"], actions=a["actions"], signals=a["signals"], reject=False
        )
        profile = random_profile(game, np.random.default_rng(seed))
        values = []
        if a["actions"] ** a["signals"] <= PUBLIC:
            values.append(public_persuasion_value(as_public_persuasion(game, profile, 0)))
        for name in SOLVERS:
            if name == SOLVERS[0] and a["actions"] ** a["signals"] > a["budget"]:
                continue
            if name == SOLVERS[2] and a["states"] != 2:
                continue
            begun = time.perf_counter()
            found = best_response(
                game,
                profile,
                0,
                method="breakpoints" if name == SOLVERS[2] else "program",
                prune="never" if name == SOLVERS[0] else "always",
                cap=a["budget"],
            )
            seconds[name].append(time.perf_counter() - begun)
            values.append(found.value)
        disagreement = max(disagreement, float(np.ptp(values)))
    return {
        "seconds": {name: float(np.median(each)) for name, each in seconds.items() if each},
        "disagreement": disagreement,
    }


def curves(found: Mapping[str, Metrics], states: int, actions: int) -> dict[str, np.ndarray]:
    """solver -> [points, 2]: signals and seconds."""
    rows: dict[str, list[tuple[int, float]]] = {}
    for name, each in found.items():
        numbers = [int(word.split()[0]) for word in name.split(", ")]
        if numbers[:2] == [states, actions]:
            for solver, seconds in each["seconds"].items():
                rows.setdefault(solver, []).append((numbers[2], seconds))
    return {solver: np.array(sorted(each)) for solver, each in rows.items()}


def slope(curve: np.ndarray) -> float | None:
    """Of log seconds against signals, from FROM on; None with fewer than three points."""
    far = curve[curve[:, 0] >= FROM]
    if len(far) < 3:
        return None
    return float(np.polyfit(far[:, 0], np.log(far[:, 1]), 1)[0])


def table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One row a size: slopes next to log A."""
    rows = []
    for states, actions in config.hardness.games:
        own = curves(found, states, actions)
        row: dict[str, Any] = {"states": states, "actions": actions, "log actions": np.log(actions)}
        row |= {solver: slope(curve) for solver, curve in own.items()}
        rows.append(row)
    return rows


def state(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    """The table of slopes and C2."""
    rows = table(config, found)
    run.table(
        "hardness",
        rows,
        caption=f"Slope of the log of the seconds of one exact best response against the other's "
        f"signals, from {FROM} on; the program over every action profile has A^T blocks.",
    )
    worst = max(each["disagreement"] for each in found.values())
    fitted = [row for row in rows if row.get(SOLVERS[0]) is not None]
    shares = [row[SOLVERS[0]] / row["log actions"] for row in fitted]
    if not shares:
        run.claim("C2", TEXT, measured=None, verdict="undecided",
                  reason=f"needs three points from {FROM} signals on")  # fmt: skip
        return
    verdict, reason = _verdict(fitted, config.expect.slope, found)
    run.claim(
        "C2",
        TEXT,
        measured=", ".join(f"{share:.2f}" for share in shares),
        unit="slope of log time in units of log A, one a size; the public-persuasion view agrees "
        f"to {worst:.0e}",
        verdict=verdict,
        reason=reason,
    )


def _verdict(
    rows: Sequence[Mapping[str, Any]], least: float, found: Mapping[str, Metrics]
) -> tuple[str, str]:
    """(verdict, reason): small programs do not refute, as what they take is not solving them."""
    slow = [row for row in rows if row[SOLVERS[0]] <= least * row["log actions"]]
    if not slow:
        return "holds", ""
    for row in slow:
        far = curves(found, row["states"], row["actions"])[SOLVERS[0]][-1, 0]
        if row["actions"] ** far >= ENOUGH:
            return "refuted", ""
    return "undecided", f"the largest program has fewer than {ENOUGH} action profiles"
