"""Figures of the mixture: paths beside their limit, and errors against S; readable in grey."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.jumps import mixture
from rflib.data import read_npz
from rflib.train.task import Metrics


def draw(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    run.figure(
        "paths",
        partial(_paths, config, read_npz(run.workdir / "arrays" / "paths.npz")),
        "Reverse paths of the jump process (exact, by thinning) and of the reversed diffusion, "
        "both with the analytic score of the mixture, and where they end.",
    )
    if len(config.mixture.sizes) > 1:
        run.figure(
            "rate",
            partial(_rate, config, found),
            "Errors against the number of particles S, without sampling noise.",
        )


def _paths(config: Any, each: Mapping[str, np.ndarray]) -> Any:
    from matplotlib.figure import Figure

    from rflib.methods.ehrenfest.process import make_process

    size = config.mixture.shown
    made = make_process(size, "constant", t_max=config.mixture.t_max)
    lattice = (2 * np.arange(size + 1) - size) / np.sqrt(size)
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 2, width_ratios=(3, 1), sharey=True)
    titles = {"jump": f"reversed Ehrenfest process, S = {size}", "limit": "reversed diffusion"}
    truth = np.array(mixture.MIXTURE.lattice(size))
    for row, (name, title) in zip(axes, titles.items(), strict=True):
        for path in each[name]:
            style: Any = {"drawstyle": "steps-post"} if name == "jump" else {}
            row[0].plot(each["times"], path, color="0.2", alpha=0.35, linewidth=0.7, **style)
        row[0].invert_xaxis()
        row[0].set_title(title, fontsize=10)
        row[0].set_xlabel("time t of the forward process (the reverse one runs to the right)")
        row[0].set_ylabel("scaled state x")
        row[1].barh(
            lattice, each[f"{name}_histogram"], made.delta, color="0.75",
            label=f"{config.mixture.samples} samples, t = {made.t_min}",
        )  # fmt: skip
        row[1].plot(truth, lattice, "k-", linewidth=1, label="data law")
        row[1].set_xlabel("probability of a state")
        row[1].set_ylim(-4, 4)
        row[1].legend(fontsize=8, loc="center right")
    figure.suptitle("One score drives both: paths on integers and in the continuum end in one law")
    return figure


MARKS = {"score_shift": "o-", "score_here": "s--", "transition": "^-.", "drift": "D:"}


def _rate(config: Any, found: Mapping[str, Metrics]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for shade, (name, mark) in zip(("0", "0.35", "0.5", "0.65"), MARKS.items(), strict=True):
        sizes, values = mixture.by_size(found, name)
        own = mixture.slope(sizes, values)
        label = f"{mixture.TITLES[name]}; slope {own:.2f}"
        axis.loglog(sizes, values, mark, color=shade, label=label)
    sizes, values = mixture.by_size(found, "score_shift")
    own = mixture.slope(sizes, values)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("number of particles S (log scale)")
    axis.set_ylabel("error (log scale)")
    axis.set_title(f"The error of the continuous score on integers falls like S to the {own:.2f}")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure
