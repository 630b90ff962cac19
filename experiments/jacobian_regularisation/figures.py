"""The figures of a run, readable in grey: one function a study."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.jacobian_regularisation import kernel_init
from experiments.jacobian_regularisation.claims import LABELS, last_deviations
from experiments.jacobian_regularisation.constancy import Constancy
from experiments.jacobian_regularisation.dynamics import Dynamics, Width
from experiments.jacobian_regularisation.features import correlations
from experiments.jacobian_regularisation.kernel_init import Slope, slope

LINES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "v", "D", "x")


def draw(config: Any, run: Any, study: str, found: Any) -> None:
    """Draws the figures of one study."""
    if not found:
        return
    for name, (make, caption) in DRAWN[study](config, found).items():
        run.figure(name, make, caption)


def new_axes(rows: int = 1, columns: int = 1, *, width: float = 7.0, height: float = 4.4) -> Any:
    """(figure, axes [rows, columns])."""
    from matplotlib import pyplot

    size = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot.subplots(rows, columns, **size)
    for each in axes.ravel():
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def grey(place: int, count: int) -> str:
    """From black to a grey that still shows."""
    return f"{0.68 * place / max(count - 1, 1):.2f}"


def _power(axis: Any, each: Slope, number: int, count: int, label: str) -> None:
    colour = grey(number, count)
    axis.fill_between(each.widths, each.low, each.high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(each.widths, each.error, color=colour, marker=MARKS[number % len(MARKS)],
              markersize=5, linestyle="none")  # fmt: skip
    fit = [each.law.error(width) for width in each.widths]
    axis.plot(each.widths, fit, color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.3)
    axis.plot([], [], color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.3,
              marker=MARKS[number % len(MARKS)], markersize=5, label=f"{label}: slope {each.slope:.2f} [{each.slope_low:.2f}, "
              f"{each.slope_high:.2f}]")  # fmt: skip


def _log_widths(axis: Any, widths: Any) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(list(widths), [str(int(width)) for width in widths])
    axis.minorticks_off()


# Initialisation.


def _kernel_init(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kernel_error": (
            partial(_kernel_error, config, found),
            "Root-mean-square error of the kernels of single networks: means over networks, 95 % "
            "bootstrap bands, fitted power laws.",
        ),
        "gaussian": (partial(_gaussian, found), "How Gaussian (f, df/dx) is over networks."),
    }


def _kernel_error(config: Any, found: Mapping[str, Any]) -> Any:
    figure, axes = new_axes(1, 2, width=11)
    slopes = kernel_init.slopes(config, found)
    titles = {"jnngp": "Jacobian NNGP kernel", "jntk": "Jacobian NTK"}
    for axis, kernel in zip(axes[0], kernel_init.KERNELS, strict=True):
        depths = config.kernel_init.depths
        for number, depth in enumerate(depths):
            _power(axis, slopes[kernel, depth], number, len(depths), f"L = {depth}")
        low, high = axis.get_ylim()
        _log_widths(axis, config.kernel_init.widths)
        axis.set_ylim(top=high * 1.9, bottom=max(low, 0.5 * min(
            slopes[kernel, depth].low.min() for depth in depths)))  # fmt: skip
        mean = np.mean([slopes[kernel, depth].slope for depth in depths])
        axis.set(xlabel="hidden width n [units]", ylabel="rms error over the Gram matrix (no unit)")
        axis.set_title(f"{titles[kernel]}: error falls as n^({mean:.2f})")
        axis.legend(frameon=False, fontsize="small")
    return figure


def _gaussian(found: Mapping[str, Any]) -> Any:
    draws = sorted((m for m in found.values() if m["kind"] == "draws"), key=lambda m: m["width"])
    widths = [m["width"] for m in draws]
    figure, axes = new_axes(1, 2, width=11)
    left, right = axes[0]
    left.errorbar(widths, [m["kurtosis"] for m in draws], color="0", marker="o", capsize=3,
                  yerr=[2 * m["kurtosis_error"] for m in draws],
                  label="mean over f and all df/dx, ± 2 standard errors")  # fmt: skip
    left.axhline(0, color="0.6", linestyle=":", label="Gaussian")
    left.set(xlabel="hidden width n [units]", ylabel="excess kurtosis over networks (no unit)")
    left.set_title(f"Excess kurtosis: {draws[0]['kurtosis']:.2f} at n = {widths[0]}, "
                   f"{draws[-1]['kurtosis']:.3f} at n = {widths[-1]}")  # fmt: skip
    right.plot(widths, [m["covariance"] for m in draws], color="0", marker="s",
               label="covariance of (f, df/dx) over networks")  # fmt: skip
    right.set(xlabel="hidden width n [units]", ylabel="rms error / rms of the limit (no unit)")
    right.set_title(f"The covariance is the limit's within {draws[-1]['covariance']:.1%}")
    right.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.legend(frameon=False)
    return figure


# Training.


def _constancy(config: Any, found: Constancy) -> dict[str, Any]:
    return {
        "constancy": (
            partial(_gaps, found),
            "Gap between the JNTK of a network in training and its limit, and how far the weights "
            "move; means over networks.",
        )
    }


def _gaps(found: Constancy) -> Any:
    figure, axes = new_axes(1, 2, width=11)
    place, count = np.array(found.steps, float), len(found.widths)
    both = ((found.rms, "rms gap to the limit, over kappa² (no unit)"),
            (found.moved, "movement of the weights |θ − θ₀| / |θ₀| (no unit)"))  # fmt: skip
    for axis, (values, label) in zip(axes[0], both, strict=True):
        for number, width in enumerate(found.widths):
            mean, low, high = kernel_init.bootstrap_mean(values[number].T, resamples=1000)
            colour = grey(number, count)
            axis.fill_between(place, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.plot(place, mean, color=colour, linestyle=LINES[number % 4], markersize=4,
                      marker=MARKS[number % len(MARKS)], label=f"n = {width}")  # fmt: skip
        axis.set_xscale("symlog", base=2, linthresh=1)
        axis.set_xticks(place[::2], [f"{step:.0f}" for step in place[::2]])
        axis.set_yscale("log")
        axis.set(xlabel="step of gradient descent", ylabel=label)
        axis.legend(frameon=False, ncols=2, fontsize="small")
    gap, moved = found.rms[:, -1].mean(1), found.moved[:, -1].mean(1)
    axes[0, 0].set_title(f"Gap after {found.steps[-1]} steps: {gap[0]:.2f} at n = "
                         f"{found.widths[0]}, {gap[-1]:.2f} at n = {found.widths[-1]}")  # fmt: skip
    axes[0, 1].set_title(f"Weights move by {moved[0]:.1e} at n = {found.widths[0]}, "
                         f"{moved[-1]:.1e} at n = {found.widths[-1]}")  # fmt: skip
    return figure


def _dynamics(config: Any, found: Dynamics) -> dict[str, Any]:
    return {
        "trajectories": (
            partial(_trajectories, config, found),
            "Test predictions of single networks in training over the limit's curves from the "
            "networks' own start.",
        ),
        "deviation": (
            partial(_deviation, config, found),
            "Root mean square over rows of network less limit after the last step; the networks' "
            "own linearisation beside it.",
        ),
    }


def _trajectories(config: Any, found: Dynamics) -> Any:
    figure, axes = new_axes(1, 2, width=11)
    place = np.array(found.steps, float)
    ends = found.widths[-1].limit_test[-1, 0, :, 0]
    rows = np.argsort(ends)[[0, len(ends) // 2, -1]]
    both = (found.widths[0], found.widths[-1])
    for axis, each in zip(axes[0], both, strict=True):
        for number, row in enumerate(rows):
            colour = grey(number, 3)
            axis.plot(place, each.limit_test[:, 0, row, 0], color=colour, linewidth=2.5, alpha=0.6,
                      linestyle=LINES[number], label=f"limit, test row {row}")  # fmt: skip
            axis.plot(place, each.test[:, 0, row, 0], color=colour, linestyle="none", markersize=5,
                      marker=MARKS[number], label=f"network, test row {row}")  # fmt: skip
        axis.set_xscale("symlog", base=2, linthresh=1)
        axis.set_xticks(place[::2], [f"{step:.0f}" for step in place[::2]])
        axis.set(xlabel="step of gradient descent", ylabel="output f(x) (label is ±1)")
        gap = each.deviation()["test_f"][-1].mean()
        axis.set_title(f"n = {each.width}: {gap:.3f} rms from the limit at the end")
    low = min(axis.get_ylim()[0] for axis in axes[0])
    high = max(axis.get_ylim()[1] for axis in axes[0])
    for axis in axes[0]:
        axis.set_ylim(low, high + 0.25 * (high - low))
    axes[0, 0].legend(frameon=False, ncols=2, fontsize="small", loc="upper left")
    figure.suptitle(f"The wider network follows the limit's curve more closely (L = "
                    f"{config.model.depth}, {config.model.activation})")  # fmt: skip
    return figure


def _deviation(config: Any, found: Dynamics) -> Any:
    figure, axes = new_axes(1, 2, width=11)
    widths = [each.width for each in found.widths]
    gaps = last_deviations(found)
    linear: list[Width] = [each for each in found.widths if each.linear_train is not None]
    for axis, part in zip(axes[0], ("f", "jacobian"), strict=True):
        slopes = {
            name: slope(widths, gaps[f"{name}_{part}"], resamples=1000)
            for name in ("train", "test")
        }
        for number, (name, each) in enumerate(slopes.items()):
            _power(axis, each, number, 3, f"less limit, {name} rows")
        if len(linear) > 1:
            own = [each.deviation(linear=True)[f"test_{part}"][-1] for each in linear]
            each = slope([one.width for one in linear], np.stack(own), resamples=1000)
            _power(axis, each, 2, 3, "less own linearisation, test rows")
        _log_widths(axis, widths)
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (high / low) ** 0.3)
        name = "f" if part == "f" else "∂f/∂x"
        axis.set(xlabel="hidden width n [units]", ylabel=f"rms deviation in {name} (no unit)")
        axis.set_title(f"Deviation in {name} on test rows falls as n^({slopes['test'].slope:.2f})")
        axis.legend(frameon=False, fontsize="small")
    return figure


# The limit itself.


def _spectrum(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
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


def _features(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
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
                         edgecolors="0.7", linewidths=0.7, label="guesses (within 2 s.e. of 1/2)")  # fmt: skip
            axis.scatter(clean[telling], robust[telling], s=16, color="0.1", marker="^",
                         label="tells the classes apart")  # fmt: skip
            unit = "share of test rows" if definition == "accuracy" else "no unit"
            axis.set(xlabel=f"{definition} [{unit}]",
                     ylabel=f"robust {definition}, ε = {config.features.eps:g} [{unit}]")  # fmt: skip
            row = rows[value, definition]
            axis.set_title(f"{name}: rank correlation {row['correlation']:.2f} of {row['count']}")
            axis.legend(frameon=False, fontsize="small", loc="upper left")
            if definition == "usefulness" and np.nanmin(robust) < -20:
                axis.set_yscale("symlog", linthresh=1)
    figure.suptitle(f"Accurate features are robust ones, with the penalty and without "
                    f"({activation}, L = {depth})" if _linked(rows, lam) else
                    f"Accuracy and robustness of eigen-features ({activation}, L = {depth})")  # fmt: skip
    return figure


def _linked(rows: Mapping[Any, Any], lam: float) -> bool:
    return all(rows[value, "accuracy"]["low"] > 0 for value in (lam, 0.0))


def _regression(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
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
        axis.legend(frameon=False, loc="lower left")
    lam = next(m["lam"] for m in curves if m["lam"])
    value, time, last = best["accuracy", lam]
    axes[0, 0].set_ylabel("test accuracy [share of rows]")
    axes[0, 0].set_title(f"λ = {lam:g}: {value:.3f} at t = {time:g}, {last:.3f} at t = ∞")
    value, time, last = best[f"robust_{radius:g}", lam]
    axes[0, 1].set_ylabel(f"robust accuracy, ε = {radius:g} [share of rows]")
    axes[0, 1].set_title(f"λ = {lam:g}: {value:.3f} robust at t = {time:g}, {last:.3f} at t = ∞")
    figure.suptitle(f"The stopping time decides, not λ alone ({config.regression.activation}, "
                    f"L = {config.regression.depth})")  # fmt: skip
    return figure


DRAWN: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "kernel_init": _kernel_init,
    "constancy": _constancy,
    "dynamics": _dynamics,
    "spectrum": _spectrum,
    "features": _features,
    "regression": _regression,
}
