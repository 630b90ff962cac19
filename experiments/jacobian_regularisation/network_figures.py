"""Figures of networks beside the limit: at initialisation, in training."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.jacobian_regularisation import kernel_init
from experiments.jacobian_regularisation.axes import LINES, MARKS, grey, new_axes
from experiments.jacobian_regularisation.claims import last_deviations
from experiments.jacobian_regularisation.constancy import Constancy
from experiments.jacobian_regularisation.dynamics import Dynamics, Width
from experiments.jacobian_regularisation.kernel_init import Slope, slope
from rflib.methods.jacobian_ntk.theory import bootstrap_mean


def _power(axis: Any, each: Slope, number: int, count: int, label: str) -> None:
    colour = grey(number, count)
    axis.fill_between(each.widths, each.low, each.high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(each.widths, each.error, color=colour, marker=MARKS[number % len(MARKS)],
              markersize=5, linestyle="none")  # fmt: skip
    fit = [each.law.error(width) for width in each.widths]
    axis.plot(each.widths, fit, color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.3)
    axis.plot([], [], color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.3,
              marker=MARKS[number % len(MARKS)], markersize=5,
              label=f"{label}: slope {each.slope:.2f} [{each.slope_low:.2f}, "
              f"{each.slope_high:.2f}]")  # fmt: skip


def _log_widths(axis: Any, widths: Any) -> None:
    from matplotlib.ticker import LogLocator

    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(list(widths), [str(int(width)) for width in widths])
    axis.xaxis.minorticks_off()
    axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}")


# Initialisation.


def of_kernel_init(config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
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
    right.plot(widths, [m["sampling"] for m in draws], color="0.6", linestyle=":", marker="o",
               label="as many draws of the limit's Gaussian")  # fmt: skip
    right.set(xlabel="hidden width n [units]", ylabel="rms error / rms of the limit (no unit)")
    right.set_title(f"n = {widths[-1]}: covariance within {draws[-1]['covariance']:.1%}, sampling "
                    f"alone gives {draws[-1]['sampling']:.1%}")  # fmt: skip
    right.set_ylim(0, 1.35 * max(m["covariance"] for m in draws))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.legend(frameon=False)
    return figure


# Training.


def of_constancy(config: Any, found: Constancy) -> dict[str, Any]:
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
    both = ((found.rms, "rms gap to the limit, over κ² (no unit)"),
            (found.moved, "movement of the weights |θ - θ₀| / |θ₀| (no unit)"))  # fmt: skip
    for axis, (values, label) in zip(axes[0], both, strict=True):
        for number, width in enumerate(found.widths):
            mean, low, high = (
                np.where(each > 0, each, np.nan)  # nothing has moved at step 0
                for each in bootstrap_mean(values[number].T, resamples=1000)
            )
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


def of_dynamics(config: Any, found: Dynamics) -> dict[str, Any]:
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
    ends = [each.deviation()["test_f"][-1].mean() for each in both]
    text = f"{ends[0] / ends[1]:.1f} times closer to" if ends[1] < ends[0] else "no closer to"
    figure.suptitle(f"The widest networks are {text} the limit's curve than the narrowest ones "
                    f"(L = {config.model.depth}, {config.model.activation})")  # fmt: skip
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
