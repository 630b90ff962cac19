"""Figures of the limit itself: spectra, eigen-features, stopping times."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.jacobian_regularisation.axes import LINES, MARKS, grey, new_axes
from experiments.jacobian_regularisation.claims import LABELS
from experiments.jacobian_regularisation.features import correlations


def of_spectrum(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    names = [m["activation"] for m in found.values() if m["kind"] == "exact"]
    return {
        "spectra": (
            partial(_spectra, config, found, names),
            "Smallest eigenvalues by depth; hollow crosses are negative values, at their size.",
        )
    }


def _signed(axis: Any, depths: Any, values: Any, *, label: str, **style: Any) -> None:
    """A curve on a logarithmic axis; negative values are crosses at their size."""
    place, values = np.asarray(depths, float), np.asarray(values, float)
    axis.plot(place, np.where(values > 0, values, np.nan), label=label, **style)
    below = values <= 0
    if below.any():
        axis.plot(place[below], np.maximum(-values[below], 1e-300), marker="x", markersize=9,
                  linestyle="none", color=style["color"],
                  label=f"{label}: negative, size shown")  # fmt: skip


def _spectra(config: Any, found: Mapping[str, Any], names: list[str]) -> Any:
    few = any(m["kind"] == "few" for m in found.values())
    figure, axes = new_axes(1 + few, len(names), width=5.8 * len(names), height=4.6 * (1 + few))
    paper = dict(map(tuple, config.expect.positive))
    for column, name in enumerate(names):
        axis, exact = axes[0, column], found[f"exact-{name}"]
        depths = exact["depths"]
        _signed(axis, depths, exact["ntk"], label="NTK, float64", color="0.6", marker="s",
                linestyle="--", markersize=5)  # fmt: skip
        _signed(axis, depths, exact["jntk"], label="JNTK, float64", color="0", marker="o",
                linestyle="-", markersize=5)  # fmt: skip
        if f"single-{name}" in found:
            _signed(axis, depths, found[f"single-{name}"]["jntk"], label="JNTK, float32",
                    color="0.35", marker="^", linestyle=":", markersize=5)  # fmt: skip
        if name in paper:
            axis.axvline(paper[name], color="0.8", linewidth=4, zorder=0,
                         label=f"paper: positive from L = {paper[name]}")  # fmt: skip
        first = exact["jntk"][0]
        axis.set_title(f"{name}, {exact['rows']} rows: JNTK has {first:.0e} at L = {depths[0]}")
        if few:
            _few(axes[1, column], found, name)
    for axis in axes.ravel():
        axis.set_yscale("log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel="depth L [hidden layers]", ylabel="smallest eigenvalue (no unit, κ = 1)")
        axis.legend(frameon=False, fontsize="small")
    return figure


def _few(axis: Any, found: Mapping[str, Any], name: str) -> None:
    exact = found[f"few-{name}"]
    _signed(axis, exact["depths"], exact["jntk"], label="JNTK, float64", color="0", marker="o",
            linestyle="-", markersize=5)  # fmt: skip
    for kind, mark, line, colour in (("joint", "D", "--", "0.35"), ("pairs", "v", ":", "0.6")):
        m = found.get(f"{kind}-{name}")
        if m is not None:
            _signed(axis, m["depths"], m["jntk"], label=f"JNTK, {LABELS[kind]}", color=colour,
                    marker=mark, linestyle=line, markersize=5)  # fmt: skip
    pairs = found.get(f"pairs-{name}", {"jntk": [np.nan]})
    sign = "negative" if np.nanmin(pairs["jntk"]) < 0 else "positive"
    axis.set_title(f"{name}, {exact['rows']} rows: sampling pair by pair gives {sign} values")


def of_features(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "features": (
            partial(_scatter, config, found),
            "Every kept eigen-feature on the test rows: accuracy against robust accuracy, first "
            "order, and usefulness against robust usefulness.",
        )
    }


def _scatter(config: Any, found: Mapping[str, Any]) -> Any:
    lam, split = config.features.attack_lam, config.features.splits[0]
    activation, depth = config.features.nets[0]
    figure, axes = new_axes(2, 2, width=10, height=8.4)
    rows = {
        (row["lam"], row["definition"]): row for row in correlations(found)
        if row["activation"] == activation and row["depth"] == depth and row["split"] == split
        and row["form"] == "first order" and row["features"] == "telling"
    }  # fmt: skip
    for column, value in enumerate((lam, 0.0)):
        name = f"JNTK, λ = {lam:g}" if value else "plain NTK"
        m = next(m for m in found.values() if (m["activation"], m["depth"], m["lam"], m["split"])
                 == (activation, depth, value, split))  # fmt: skip
        accuracy = np.array(m["accuracy"])
        telling = np.abs(accuracy - 0.5) > 1 / np.sqrt(m["tests"])
        for axis, definition in zip(axes[:, column], ("accuracy", "usefulness"), strict=True):
            clean, robust = np.array(m[definition]), np.array(m[f"robust_{definition}"])
            axis.scatter(clean[~telling], robust[~telling], s=14, facecolors="none",
                         edgecolors="0.7", linewidths=0.7,
                         label="guesses (within 2 s.e. of 1/2)")  # fmt: skip
            axis.scatter(clean[telling], robust[telling], s=16, color="0.1", marker="^",
                         label="tells the classes apart")  # fmt: skip
            unit = "share of test rows" if definition == "accuracy" else "no unit"
            radius = f"ε = {config.features.eps:g}"
            axis.set(xlabel=f"{definition} [{unit}]",
                     ylabel=f"robust {definition}, {radius} [{unit}]")  # fmt: skip
            row = rows[value, definition]
            axis.set_title(f"{name}: rank correlation {row['correlation']:.2f} of {row['count']}")
            axis.legend(frameon=False, fontsize="small", loc="upper left")
            if definition == "usefulness" and np.nanmin(robust) < -20:
                axis.set_yscale("symlog", linthresh=1)
    linked = "Accurate features are robust ones, with the penalty and without"
    text = linked if _linked(rows, lam) else "Accuracy and robustness of eigen-features"
    figure.suptitle(f"{text} ({activation}, L = {depth})")
    return figure


def _linked(rows: Mapping[Any, Any], lam: float) -> bool:
    return all(rows[value, "accuracy"]["low"] > 0 for value in (lam, 0.0))


def of_regression(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    m = next(iter(found.values()))
    if "accuracy" not in m:
        return {}
    return {
        "stopping": (
            partial(_stopping, config, found),
            "Test accuracy of the limit against the stopping time for several penalties; right: "
            "at the worst perturbation of the radius, to first order.",
        )
    }


def _stopping(config: Any, found: Mapping[str, Any]) -> Any:
    radius = config.regression.eps[-1]
    figure, axes = new_axes(1, 2, width=11)
    curves = [m for m in found.values() if m["kernel"] in ("jntk", "ntk")]
    best = {}
    for axis, name in zip(axes[0], ("accuracy", f"robust_{radius:g}"), strict=True):
        for number, m in enumerate(curves):
            label = f"λ = {m['lam']:g}" if m["lam"] else "λ = 0 (plain NTK)"
            times, values = np.array(m["times"], float), np.array(m[name], float)
            finite = np.isfinite(times)
            colour = grey(number, len(curves))
            axis.plot(times[finite], values[finite], color=colour, marker=MARKS[number],
                      markersize=5, linestyle=LINES[number % 4], label=label)  # fmt: skip
            end = times[finite][-1] * 10
            axis.plot([end], values[~finite], color=colour, marker=MARKS[number], markersize=9,
                      fillstyle="none", linestyle="none")  # fmt: skip
            top = int(np.argmax(values))
            best[name, m["lam"]] = values[top], times[top], values[-1]
        axis.axvline(end / 3, color="0.85", linewidth=1)
        axis.set_xscale("log")
        axis.set(xlabel="stopping time t (κ = 1, mean loss); hollow: t = ∞")
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.3 * (high - low), high)
        axis.legend(frameon=False, loc="lower left", ncols=2)
    lam = next(m["lam"] for m in curves if m["lam"])
    value, time, last = best["accuracy", lam]
    axes[0, 0].set_ylabel("test accuracy [share of rows]")
    axes[0, 0].set_title(f"λ = {lam:g}: {value:.3f} at t = {time:g}, {last:.3f} at t = ∞")
    value, time, last = best[f"robust_{radius:g}", lam]
    axes[0, 1].set_ylabel(f"robust accuracy, ε = {radius:g} [share of rows]")
    axes[0, 1].set_title(f"λ = {lam:g}: {value:.3f} robust at t = {time:g}, {last:.3f} at t = ∞")
    ends = [last for (name, each), (*_, last) in best.items() if name == "accuracy" and each]
    same = np.ptp(ends) < 1e-9
    text = "All λ > 0 end alike: they differ in time" if same else "Accuracy by stopping time"
    figure.suptitle(f"{text} ({config.regression.activation}, L = {config.regression.depth})")
    return figure
