"""Arms against each other on the same data and seeds: ablations, DLinear's kernel, plug-ins.

All intervals are Student's over (cell, seed) pairs, 95 %, and take the pairs as independent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.forecasting.forecasters import ARMS, BACKBONES, PLUGGED, TITLES
from experiments.forecasting.paired import Paired, decide, paired
from experiments.forecasting.training import Cell

Pair = tuple[str, str]  # (the arm that should be worse, the arm that should be better)
CLAIMS: dict[str, tuple[str, Sequence[Pair]]] = {
    "C2": (
        "attention over series and over delayed copies, in parallel, models dependencies "
        "between and variations within series: without either branch the error rises",
        (("leddam-no_auto", "leddam"), ("leddam-no_channel", "leddam")),
    ),
    "C6": (
        "in DLinear, the trainable kernel is better than the moving average",
        (("dlinear", "dlinear-ld"),),
    ),
    "C7": (
        "leaving out either attention branch, or taking the moving average for the trainable "
        "kernel, raises the error",
        (
            ("leddam-no_auto", "leddam"),
            ("leddam-no_channel", "leddam"),
            ("leddam-mov", "leddam"),
        ),
    ),
}
C5 = (
    "the learnable decomposition in front of other forecasters lowers their MSE by 11.87 to 48.56 %"
)


def usable(cells: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """The cells on real data that have all these models."""
    return [
        cell
        for cell in cells
        if not cell.data.generated and all(name in cell.outcomes for name in names)
    ]


def missing(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """Why `usable` finds nothing."""
    absent = [name for name in names if not any(name in cell.outcomes for cell in cells)]
    if absent:
        return f"not trained here: {', '.join(TITLES[name] for name in absent)}"
    return "generated series decide nothing about the paper's data"


def short(config: Any, cells: Sequence[Cell], names: Sequence[str]) -> str:
    """Why these models decide nothing, if config.steps ended a training before its time."""
    cut = any(each.cut for cell in cells for name in names for each in cell.outcomes.get(name, ()))
    return f"training was cut short by steps={config.steps}" if cut else ""


def differences(
    cells: Sequence[Cell], worse: str, better: str, metric: str = "mse", relative: bool = False
) -> list[float]:
    """Error of `worse` less that of `better`, one a (cell, seed); `relative`: over the former."""
    found = []
    for cell in cells:
        for a, b in zip(cell.outcomes[worse], cell.outcomes[better], strict=True):
            high, low = getattr(a, metric), getattr(b, metric)
            found.append((high - low) / high if relative else high - low)
    return found


def where(cells: Sequence[Cell]) -> str:
    """The pairs in words."""
    seeds = len(next(iter(cells[0].outcomes.values())))
    names = ", ".join(cell.name for cell in cells)
    return f"{seeds} seed{'s' * (seeds > 1)} on {names}"


def state_arms(config: Any, run: Any, name: str, cells: Sequence[Cell]) -> None:
    """C2, C6 or C7: every pair's difference of MSE and its interval."""
    text, pairs = CLAIMS[name]
    names = list(dict.fromkeys(model for pair in pairs for model in pair))
    margin = config.expect.margin
    text = f"{text} (refuted by an interval below {margin:g} MSE)"
    found = usable(cells, names)
    if not found:
        run.claim(name, text, measured=None, verdict="undecided", reason=missing(cells, names))
        return
    effects = [paired(differences(found, *pair)) for pair in pairs]
    verdict, reason = decide(effects, margin=margin)
    cut = short(config, found, names)
    run.claim(
        name,
        text,
        measured="; ".join(
            f"{TITLES[worse]} less {TITLES[better]}: {effect}"
            for (worse, better), effect in zip(pairs, effects, strict=True)
        ),
        unit=f"MSE, 95 % intervals, {where(found)}",
        verdict="undecided" if cut else verdict,
        reason=cut or reason,
    )


def ablation_table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row an arm and cell, and one over all cells: how much more error than the full model."""
    rows = []
    arms = [name for name in ARMS if name != "leddam"]
    for arm in [*arms, "dlinear-ld"]:
        full = "dlinear" if arm == "dlinear-ld" else "leddam"
        having = [cell for cell in cells if arm in cell.outcomes and full in cell.outcomes]
        groups = [(cell.name, [cell]) for cell in having]
        for name, group in [*groups, *([("all", having)] if len(having) > 1 else [])]:
            effect = paired(differences(group, arm, full))
            mae = paired(differences(group, arm, full, "mae"))
            rows.append(
                {
                    "arm": TITLES[arm],
                    "against": TITLES[full],
                    "cell": name,
                    "pairs": effect.count,
                    "MSE": float(np.mean([cell.mean(arm, "mse") for cell in group])),
                    "MSE more": effect.mean,
                    "from": effect.low,
                    "to": effect.high,
                    "MAE more": mae.mean,
                }
            )
    return rows


# Plug-ins.


class Gain(NamedTuple):
    """What a split in front of a forecaster gives over the forecaster alone, as shares of it.

    ratio_of_means: 1 - (sum over cells of the error with) / (sum without), errors averaged over
    the seeds. mean_of_ratios: the mean over the cells of 1 - with / without. pairs: of 1 - with /
    without for each cell and seed.
    """

    ratio_of_means: float
    mean_of_ratios: float
    pairs: Paired


def relative_gains(without: Sequence[float], having: Sequence[float]) -> tuple[float, float]:
    """(1 - mean / mean, mean of 1 - ratio), from the errors of the cells in the same order."""
    before, after = np.asarray(without, np.float64), np.asarray(having, np.float64)
    return 1 - float(after.sum() / before.sum()), float(np.mean(1 - after / before))


def gain(cells: Sequence[Cell], without: str, having: str, metric: str = "mse") -> Gain:
    """Of the model `having` over the model `without`."""
    before, after = ([cell.mean(name, metric) for cell in cells] for name in (without, having))
    pairs = paired(differences(cells, without, having, metric, relative=True))
    return Gain(*relative_gains(before, after), pairs)


def plugged(cells: Sequence[Cell], *, generated: bool = False) -> dict[str, list[Cell]]:
    """backbone -> the cells that have it alone, with LD and with the moving average."""
    found = {}
    for backbone in BACKBONES:
        names = [f"{backbone}+{split}" for split in ("raw", "ld", "mov")]
        having = [cell for cell in cells if all(name in cell.outcomes for name in names)]
        having = having if generated else usable(having, names)
        if having:
            found[backbone] = having
    return found


def plugin_table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a forecaster and split: both averages of the relative gain, the interval of one."""
    rows = []
    for backbone, having in plugged(cells, generated=True).items():
        raw = f"{backbone}+raw"
        for split in ("ld", "mov"):
            name = f"{backbone}+{split}"
            mse, mae = (gain(having, raw, name, metric) for metric in ("mse", "mae"))
            rows.append(
                {
                    "forecaster": TITLES[name],
                    "cells": len(having),
                    "pairs": mse.pairs.count,
                    "MSE alone": float(np.mean([cell.mean(raw, "mse") for cell in having])),
                    "MSE": float(np.mean([cell.mean(name, "mse") for cell in having])),
                    "gain of mean MSE [%]": 100 * mse.ratio_of_means,
                    "mean gain of MSE [%]": 100 * mse.mean_of_ratios,
                    "from [%]": 100 * mse.pairs.low,
                    "to [%]": 100 * mse.pairs.high,
                    "gain of mean MAE [%]": 100 * mae.ratio_of_means,
                    "mean gain of MAE [%]": 100 * mae.mean_of_ratios,
                }
            )
    return rows


def plugin_cells(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a forecaster and cell: MSE of the three wirings, means over the seeds."""
    rows = []
    for backbone, having in plugged(cells, generated=True).items():
        for cell in having:
            mse = {s: cell.mean(f"{backbone}+{s}", "mse") for s in ("raw", "ld", "mov")}
            rows.append(
                {
                    "forecaster": BACKBONES[backbone],
                    "cell": cell.name,
                    "seeds": len(cell.outcomes[f"{backbone}+raw"]),
                    "MSE alone": mse["raw"],
                    "MSE + LD": mse["ld"],
                    "MSE + moving average": mse["mov"],
                    "gain with LD [%]": 100 * (1 - mse["ld"] / mse["raw"]),
                    "gain with moving average [%]": 100 * (1 - mse["mov"] / mse["raw"]),
                }
            )
    return rows


def state_plugin(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    """C5, in two parts: LD gains over the bare forecaster, and over the frozen control."""
    found = plugged(cells)
    if not found:
        named = [name for name in PLUGGED if any(name in cell.outcomes for cell in cells)]
        reason = "takes forecasters with and without it"
        if named:
            names = [f"{PLUGGED[named[0]][0]}+{split}" for split in ("raw", "ld", "mov")]
            reason = missing(cells, names)
        run.claim("C5", C5, measured=None, verdict="undecided", reason=reason)
        return
    over: dict[str, dict[str, Gain]] = {
        split: {b: gain(having, f"{b}+{split}", f"{b}+ld") for b, having in found.items()}
        for split in ("raw", "mov")
    }
    names = [f"{backbone}+{split}" for backbone in found for split in ("raw", "ld", "mov")]
    cut = short(config, cells, names)
    parts = {split: decide([each.pairs for each in over[split].values()]) for split in over}
    pairs = where(next(iter(found.values())))
    for name, split, what in (
        ("C5 gain", "raw", "the forecaster alone"),
        ("C5 control", "mov", "the frozen moving average in the same wiring (the control)"),
    ):
        verdict = parts[split][0]
        reason = _open({what: over[split]}) if verdict == "undecided" else ""
        run.claim(
            name,
            f"the learnable decomposition in front of each forecaster has a lower MSE than {what}",
            measured=_percentages(over[split]),
            unit=f"% of MSE: of the means; mean over cells; 95 % interval, {pairs}",
            paper="11.87 to 48.56" if split == "raw" else None,
            verdict="undecided" if cut else verdict,
            reason=cut or reason,
        )
    verdict = decide([each.pairs for gains in over.values() for each in gains.values()])[0]
    against = {"the forecaster alone": over["raw"], "the frozen control": over["mov"]}
    reason = _open(against) if verdict == "undecided" else ""
    control = {b: gain(having, f"{b}+raw", f"{b}+mov") for b, having in found.items()}
    run.claim(
        "C5",
        f"{C5}, and by more than the frozen moving average in the same wiring does",
        measured=f"learnable: {_percentages(over['raw'])}. Frozen: {_percentages(control)}",
        unit=f"% of MSE: of the means; mean over cells; 95 % interval, {pairs}",
        paper="11.87 to 48.56",
        verdict="undecided" if cut else verdict,
        reason=cut or reason,
    )


def _open(against: Mapping[str, Mapping[str, Gain]]) -> str:
    """Which comparisons are not decided."""
    parts = []
    for what, gains in against.items():
        names = [
            BACKBONES[b] for b, each in gains.items() if each.pairs.low <= 0 <= each.pairs.high
        ]
        if names:
            parts.append(f"{', '.join(names)} against {what}")
    return f"intervals include 0: {'; '.join(parts)}"


def _percentages(gains: Mapping[str, Gain]) -> str:
    return ", ".join(
        f"{BACKBONES[backbone]} {100 * each.ratio_of_means:+.1f}; {100 * each.mean_of_ratios:+.1f} "
        f"[{100 * each.pairs.low:+.1f}, {100 * each.pairs.high:+.1f}]"
        for backbone, each in gains.items()
    )
