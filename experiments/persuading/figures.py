"""The figures of a run, readable in grey; each title states what was found."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.persuading import hardness, searching, truth
from experiments.persuading.equilibria import best, verified
from experiments.persuading.games import SizeClass
from experiments.persuading.networks import TITLES
from experiments.persuading.verdicts import STAGES, against_revelation
from rflib.train.task import Metrics

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":")
GREYS = ("0.0", "0.45", "0.65", "0.25", "0.8")
PICTURED = 4  # games in the scatter of outcomes


def _axes(rows: int = 1, columns: int = 1, *, width: float, height: float, **options: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def draw_approximation(
    run: Any, found: Mapping[str, Metrics], classes: Sequence[SizeClass]
) -> None:
    run.figure(
        "approximation",
        partial(_approximation, found, classes),
        "Test error of the networks by class of games: one mark a game, mean over its seeds.",
    )


def _approximation(found: Mapping[str, Metrics], classes: Sequence[SizeClass]) -> Any:
    figure, axis = _axes(width=9, height=4)
    kinds = [kind for kind in TITLES if f"{classes[0].name} {kind}" in found]
    for k, kind in enumerate(kinds):
        places, values = [], []
        for c, size in enumerate(classes):
            errors = np.mean(found[f"{size.name} {kind}"]["errors"]["all"], 1)
            places += [c + (k - (len(kinds) - 1) / 2) * 0.13] * len(errors)
            values += errors.tolist()
        axis.plot(
            places, values, MARKS[k], color=GREYS[k % len(GREYS)], markersize=5, label=TITLES[kind]
        )
    axis.set_yscale("log")
    axis.set_xticks(range(len(classes)), [size.name for size in classes])
    axis.set_xlabel("senders x states x actions x signals")
    axis.set_ylabel("test MSE over variance (log scale)")
    means = {
        kind: np.mean(
            [np.log(found[f"{size.name} {kind}"]["errors"]["all"]).mean() for size in classes]
        )
        for kind in kinds
    }
    lowest = min(means, key=means.__getitem__)
    axis.set_title(f"Lowest mean log error over the classes: {TITLES[lowest]}")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def draw_equilibria(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    two = [name for name, game in found.items() if len(game["spans"]) == 2]
    chosen = sorted(two, key=lambda name: not found[name]["possible"])[:PICTURED]
    if chosen:
        run.figure(
            "pareto",
            partial(_pareto, config, {name: found[name] for name in chosen}),
            "Certified local equilibria (after snap) of each method in games of two senders; "
            "line: the hull of what a mediator could recommend, which nobody can exceed.",
        )
    run.figure(
        "control",
        partial(_control, config, found),
        "Share of exactly certified profiles that pass the local test by radius and tolerance. "
        "Dotted: random profiles as drawn; the others are the best few of many ends, and open "
        "marks the best few of as many random profiles, the control.",
    )


def _pareto(config: Any, found: Mapping[str, Metrics]) -> Any:
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure, axes = _axes(rows, columns, width=4.6 * columns + 2, height=3.8 * rows, squeeze=False)
    above = 0
    for axis, (name, game) in zip(axes.reshape(-1), found.items(), strict=False):
        hull = np.array(game["frontier"])
        hull = hull[np.argsort(hull[:, 0])]
        style = {"color": "0.6", "linewidth": 1, "markersize": 4}
        axis.plot(hull[:, 0], hull[:, 1], ".-", label="mediated outcomes", **style)
        known, silent = np.array(game["full_revelation"]), np.array(game["no_information"])
        axis.plot(*known, "x", color="0", markersize=10, markeredgewidth=2, label="full revelation")
        axis.plot(*silent, "+", color="0", markersize=10, markeredgewidth=2, label="silence")
        axis.axvline(known[0], color="0.85", zorder=0)
        axis.axhline(known[1], color="0.85", zorder=0)
        for k, (method, title) in enumerate(searching.methods(config).items()):
            points = np.array(
                [each["utilities"] for each in verified(config, game, method, "after")]
            ).reshape(-1, 2)
            axis.plot(
                points[:, 0],
                points[:, 1],
                MARKS[k % len(MARKS)],
                color=GREYS[k % len(GREYS)],
                markersize=6,
                fillstyle="none" if k % 2 else "full",
                label=title,
            )
        own = best(config, game, config.search.kinds[0], "after")
        above += bool(against_revelation(config, game, own).strict)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("utility of sender 0")
        axis.set_ylabel("utility of sender 1")
    for axis in axes.reshape(-1)[len(found) :]:
        axis.set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.suptitle(
        f"{TITLES[config.search.kinds[0]]} dominates full revelation in {above} of these "
        f"{len(found)} games"
    )
    return figure


def _control(config: Any, found: Mapping[str, Metrics]) -> Any:
    deltas, ratios = config.verify.deltas, config.verify.ratios
    figure, axes = _axes(1, len(deltas), width=4 * len(deltas) + 3, height=3.6, squeeze=False)
    first = config.search.kinds[0]
    shown = {first: TITLES[first]}
    if "random" in config.search.baselines:
        shown["random"] = "best random"
    for d, axis in enumerate(axes[0]):
        chance = np.mean([np.array(game["null"]["rates"])[d] for game in found.values()], 0)
        axis.plot(ratios, chance, LINES[3], color="0", marker="x", label="random profiles")
        for m, method in enumerate(shown):
            for s, (stage, words) in enumerate(STAGES.items()):
                passes = [
                    np.array(each[stage]["passes"])[d]
                    for game in found.values()
                    for each in game["methods"][method]["found"]
                    if each[stage]["kind"] != "sampled"
                ]
                if passes:
                    axis.plot(
                        ratios,
                        np.mean(passes, 0),
                        LINES[s],
                        color=GREYS[s],
                        marker=MARKS[s],
                        fillstyle="none" if m else "full",
                        label=f"{shown[method]}, {words}",
                    )
        axis.set_xscale("log")
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("tolerance over radius, spans")
        axis.set_title(f"radius {deltas[d]:g}", fontsize=10)
    axes[0, 0].set_ylabel("share that passes")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    d, r = list(deltas).index(config.verify.delta), list(ratios).index(config.verify.ratio)
    chance = np.mean([game["null"]["rates"][d][r] for game in found.values()])
    figure.suptitle(
        f"{chance:.0%} of random profiles pass at radius {deltas[d]:g}, tolerance {ratios[r]:g}"
    )
    return figure


def draw_truth(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    run.figure(
        "interests",
        partial(_truth, config, found),
        "Best sum of both utilities after snap, from opposed (0) to common interest (1).",
    )


def _truth(config: Any, found: Mapping[str, Metrics]) -> Any:
    figure, axis = _axes(width=8, height=4)
    thetas = config.game.thetas
    methods = searching.methods(config)
    first = next(iter(methods))
    optimum = [found[f"interest {theta:g} {first}"]["optimum"] for theta in thetas]
    axis.plot(thetas, optimum, "-", color="0.7", linewidth=4, label="mediated optimum (a bound)")
    for k, (method, title) in enumerate(methods.items()):
        axis.plot(
            thetas,
            truth.sums(found, method, thetas),
            LINES[k % 4],
            color=GREYS[k % len(GREYS)],
            marker=MARKS[k % len(MARKS)],
            fillstyle="none",
            label=title,
        )
    axis.set_xlabel("weight of the common interest, theta")
    axis.set_ylabel("sum of the senders' utilities")
    reached = found.get(f"interest 1 {first}")
    share = "" if reached is None else f" in {reached['reached_after']:.0%} of starts"
    axis.set_title(f"{methods[first]}: at common interest the optimum{share}")
    axis.legend(fontsize=8)
    return figure


def draw_hardness(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    run.figure(
        "hardness",
        partial(_hardness, config, found),
        "Seconds of one exact best response (median of the games); dotted: A^T through the last "
        "point of the literal program.",
    )


def _hardness(config: Any, found: Mapping[str, Metrics]) -> Any:
    sizes = list(config.hardness.games)
    figure, axes = _axes(1, len(sizes), width=3.4 * len(sizes) + 1, height=3.6, squeeze=False)
    for axis, (states, actions) in zip(axes[0], sizes, strict=True):
        for s, (solver, curve) in enumerate(hardness.curves(found, states, actions).items()):
            axis.plot(
                curve[:, 0], curve[:, 1], LINES[s], color=GREYS[s], marker=MARKS[s], label=solver
            )
            if solver == hardness.SOLVERS[0]:
                trend = curve[-1, 1] * float(actions) ** (curve[:, 0] - curve[-1, 0])
                axis.plot(curve[:, 0], trend, ":", color="0.6", label="A^T")
        axis.set_yscale("log")
        axis.set_xlabel("signals of the other sender, T")
        axis.set_title(f"{states} states, {actions} actions", fontsize=10)
    axes[0, 0].set_ylabel("seconds (log scale)")
    axes[0, 0].legend(fontsize=8)
    rows = hardness.table(config, found)
    slopes = [row[hardness.SOLVERS[0]] for row in rows if row.get(hardness.SOLVERS[0])]
    shown = ", ".join(f"{slope:.2f}" for slope in slopes)
    figure.suptitle(f"The literal program's log time grows by {shown} a signal")
    return figure


def draw_surfaces(run: Any, found: Mapping[str, np.ndarray]) -> None:
    run.figure(
        "surfaces",
        partial(_surfaces, found),
        "Utility of the first sender over pi_0(0|0) and pi_1(0|0), all else fixed.",
    )


def _surfaces(found: Mapping[str, np.ndarray]) -> Any:
    names = list(found)
    figure, axes = _axes(1, len(names), width=2.9 * len(names) + 1, height=3.3, squeeze=False)
    low, high = found["truth"].min(), found["truth"].max()
    errors = {name: np.mean(np.square(found[name] - found["truth"])) for name in names[1:]}
    picture = None
    for axis, name in zip(axes[0], names, strict=True):
        picture = axis.imshow(
            found[name].T,
            origin="lower",
            extent=(0, 1, 0, 1),
            vmin=low,
            vmax=high,
            cmap="gray",
            aspect="auto",
        )
        title = "truth" if name == "truth" else f"{TITLES[name]}\nMSE {errors[name]:.1e}"
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("pi_0(0|0)")
    axes[0, 0].set_ylabel("pi_1(0|0)")
    figure.colorbar(picture, ax=axes[0, -1], label="utility of sender 0")
    lowest = min(errors, key=errors.__getitem__)
    figure.suptitle(f"The utility jumps; closest on this slice: {TITLES[lowest]}")
    return figure


def draw_known(run: Any, found: Mapping[str, Metrics]) -> None:
    run.figure(
        "known-games",
        partial(_known, found),
        "Games with a known answer: distance to it (zero-sum: duality gap) by step.",
    )


def _known(found: Mapping[str, Metrics]) -> Any:
    figure, axes = _axes(1, len(found), width=4 * len(found), height=3.5, squeeze=False)
    styles = {name: k for k, name in enumerate(found["bilinear"])}  # one a method in every panel
    for axis, (game, curves) in zip(axes[0], found.items(), strict=True):
        for name, curve in curves.items():
            k = styles[name]
            steps = np.arange(1, len(curve) + 1) * (10 if game == "zero-sum" else 1)
            axis.plot(steps, curve, LINES[k], color=GREYS[k], label=name)
        axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_title(game, fontsize=10)
    axes[0, 0].set_ylabel("distance (log scale)")
    axes[0, 0].legend(fontsize=8)
    last = {name: curve[-1] for name, curve in found["bilinear"].items()}
    figure.suptitle(
        f"Bilinear: extra-gradient ends at {last['extragradient']:.2g}, simultaneous ascent at "
        f"{last['simultaneous']:.2g}"
    )
    return figure
