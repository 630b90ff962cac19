"""Bars of what arms and plug-ins change, with their intervals; readable in grey."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.forecasting.figures import new_axes
from experiments.forecasting.forecasters import ARMS, BACKBONES, TITLES
from experiments.forecasting.paired import Paired, paired
from experiments.forecasting.studies import differences, gain, plugged
from experiments.forecasting.training import Cell


def draw_studies(run: Any, cells: Sequence[Cell], margin: float) -> None:
    """The figures of the studies whose arms are there. margin: the smallest effect, MSE."""
    arms = [arm for arm in ARMS if _full_cells(cells, arm)]
    if arms:
        run.figure(
            "ablation",
            partial(_ablation, cells, arms, margin),
            "MSE of each arm less that of the full model: mean and 95 % interval over (cell, "
            "seed) pairs; one pair has no interval.",
        )
    if plugged(cells, generated=True):
        run.figure(
            "plugin-gain",
            partial(_plugin, cells),
            "MSE saved in front of each forecaster by the learnable decomposition and by the "
            "frozen moving average in the same wiring (the control): mean of the gains of (cell, "
            "seed) pairs and 95 % interval; one pair has no interval.",
        )


def _full_cells(cells: Sequence[Cell], arm: str) -> list[Cell]:
    if arm == "leddam":
        return []
    return [cell for cell in cells if arm in cell.outcomes and "leddam" in cell.outcomes]


def _ablation(cells: Sequence[Cell], arms: Sequence[str], margin: float) -> Any:
    effects = [paired(differences(_full_cells(cells, arm), arm, "leddam")) for arm in arms]
    figure, axis = new_axes(width=8, height=1.6 + 0.42 * len(arms))
    places = np.arange(len(arms))[::-1]
    axis.barh(places, [e.mean for e in effects], 0.6, color="0.7", edgecolor="0", linewidth=0.8)
    for place, effect in zip(places, effects, strict=True):
        _interval(axis, effect, place, across=True)
    axis.axvspan(-margin, margin, color="0.9", zorder=0, label=f"less than {margin:g}: nothing")
    axis.axvline(0, color="0", linewidth=0.8)
    if max(abs(effect.mean) for effect in effects) > 0.1:
        axis.set_xscale("symlog", linthresh=0.01, linscale=1.5)
        axis.set_xticks([-0.1, -0.01, 0, 0.01, 0.1, 1], ["-.1", "-.01", "0", ".01", ".1", "1"])
        ends = [end for effect in effects for end in effect[:3] if np.isfinite(end)]
        axis.set_xlim(1.2 * min(-2 * margin, *ends), 1.2 * max(ends))
    axis.set_yticks(places, [TITLES[arm] for arm in arms])
    axis.set_xlabel("MSE more than the full model's, standardised scale")
    names = list(dict.fromkeys(cell.name for arm in arms for cell in _full_cells(cells, arm)))
    worst = int(np.argmax([effect.mean for effect in effects]))
    axis.set_title(
        f"{_listed(names)}: {TITLES[arms[worst]]} is last, {effects[worst].mean:+.4f} MSE"
    )
    figure.legend(frameon=False, loc="outside lower right", fontsize="small")
    return figure


def _plugin(cells: Sequence[Cell]) -> Any:
    found = plugged(cells, generated=True)
    figure, axis = new_axes(width=2.5 + 1.5 * len(found) + 1.5)
    places = np.arange(len(found))
    ahead = 0
    for offset, split, grey, hatch, label in (
        (-0.2, "ld", "0.35", "", "learnable kernel (LD)"),
        (0.2, "mov", "0.85", "///", "frozen moving average (control)"),
    ):
        gains = [gain(having, f"{b}+raw", f"{b}+{split}") for b, having in found.items()]
        values = [100 * each.pairs.mean for each in gains]
        axis.bar(places + offset, values, 0.36, color=grey, edgecolor="0", linewidth=0.8,
                 hatch=hatch, label=label)  # fmt: skip
        for place, each in zip(places + offset, gains, strict=True):
            _interval(axis, _percent(each.pairs), place)
    for backbone, having in found.items():
        ahead += gain(having, f"{backbone}+mov", f"{backbone}+ld").pairs.mean > 0
    axis.axhline(0, color="0", linewidth=0.8)
    axis.set_xticks(places, [BACKBONES[backbone] for backbone in found])
    axis.set_ylabel("MSE saved [% of the forecaster alone]")
    axis.set_xlabel("forecaster behind the split")
    names = list(dict.fromkeys(cell.name for having in found.values() for cell in having))
    axis.set_title(f"{_listed(names)}: LD beats its frozen control for {ahead} of {len(found)}")
    figure.legend(frameon=False, fontsize="small", loc="outside lower center", ncols=2)
    return figure


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} cells"


def _percent(effect: Paired) -> Paired:
    return Paired(100 * effect.mean, 100 * effect.low, 100 * effect.high, effect.count)


def _interval(axis: Any, effect: Paired, place: float, *, across: bool = False) -> None:
    """An error bar from low to high; none where they are infinite."""
    if not np.isfinite(effect.low):
        return
    size = [[effect.mean - effect.low], [effect.high - effect.mean]]
    style: dict[str, Any] = {"color": "0", "capsize": 4, "linewidth": 1.2, "fmt": "none"}
    if across:
        axis.errorbar([effect.mean], [place], xerr=size, **style)
    else:
        axis.errorbar([place], [effect.mean], yerr=size, **style)
