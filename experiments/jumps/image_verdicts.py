"""What the images say: tables, figures, and claims C4c and C6."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.jumps.generating import standard
from experiments.jumps.images import TITLES
from experiments.jumps.letter_verdicts import compare
from rflib.data import read_npz

COLUMNS = ("fid_feat", "kid_feat", "kid_se", "is_feat", "tv_pixel", "nearest", "negative",
           "clipped", "evaluations")  # fmt: skip


def state(config: Any, run: Any, found: Mapping[str, Any]) -> None:
    rows, judge = found["rows"], found["judge"]
    table = []
    for name in config.model.names:
        each = standard(config, rows, name)
        row: dict[str, Any] = {"model": TITLES[name]}
        for column in COLUMNS:
            if column in each[0]:
                row[column] = float(np.mean([one[column] for one in each]))
        if len(each) > 1 and "fid_feat" in each[0]:
            row["fid_feat, std of seeds"] = float(np.std([one["fid_feat"] for one in each], ddof=1))
        table.append(row)
    table += [{"model": title} | values for title, values in found["floors"].items()]
    accuracy = "no classifier" if judge.accuracy is None else f"accuracy {judge.accuracy:.3f}"
    run.table(
        "images",
        table,
        caption=f"{config.eval.samples} images a model, {config.steps} steps of training each; "
        f"features of a small classifier ({accuracy} on held-out images), so fid_feat is not FID. "
        "The last rows are what the metrics say of the data themselves.",
    )
    ablations = [
        {"model": TITLES[row["model"]], "steps": row["steps"], "correctors": row["correct"]}
        | {column: row[column] for column in COLUMNS if column in row}
        for row in _ablations(config, rows)
    ]
    if len(ablations) > 1:
        caption = "Steps and corrector leaps with one trained network each."
        run.table("steps", ablations, caption=caption)
        run.figure("steps", partial(_steps, config, rows), caption)
    _claims(config, run, found)
    run.figure("images", partial(_grids, config, run, rows),
               "The first images drawn from each model, first seed; not chosen.")  # fmt: skip


def _ablations(config: Any, rows: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    named = {*config.sampler.ablated, "ce", "tauldr"}
    own = [row for row in rows.values() if row["model"] in named and row["seed"] == config.seed]
    return sorted(own, key=lambda row: (row["model"], row["correct"], row["steps"]))


def _values(config: Any, rows: Mapping[str, Any], name: str, column: str) -> np.ndarray:
    return np.array([row[column] for row in standard(config, rows, name) if column in row])


def _claims(config: Any, run: Any, found: Mapping[str, Any]) -> None:
    rows, judge = found["rows"], found["judge"]
    column = "fid_feat" if judge.features is not None else "tv_pixel"
    weak = judge.accuracy is not None and judge.accuracy < config.features.accuracy
    pairs = [("ou", other, "C4c images") for other in ("ratio", "gauss")]
    pairs += [("ou", other, "C6 images") for other in ("ddpm", "d3pm", "tauldr", "ce")]
    for one, other, id in pairs:
        if not {one, other} <= set(config.model.names):
            continue
        values = [_values(config, rows, name, column) for name in (one, other)]
        verdict, reason = compare(values[0], values[1], config.expect.seeds)
        if weak:
            verdict, reason = "undecided", f"the classifier's accuracy is {judge.accuracy:.3f} only"
        run.claim(
            f"{id} {other}",
            f"trained by OU, the jump process draws better images than: {TITLES[other]}",
            measured={one: float(values[0].mean()), other: float(values[1].mean())},
            unit=f"{column}, lower is better",
            verdict=verdict,
            reason=reason,
        )
    run.claim(
        "C6",
        "CIFAR-10 from scratch: FID near 5 with OU and Taylor 2",
        measured=None,
        verdict="undecided",
        reason="needs an accelerator for days, and Inception features; see the variant paper",
    )


def _grids(config: Any, run: Any, rows: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    shown = {"data": read_npz(run.workdir / "arrays" / "data.npz")["value"]}
    quality: dict[str, float] = {}
    for name in config.model.names:
        row = standard(config, rows, name)[0]
        key = next(cell for cell, each in rows.items() if each is row)
        values = read_npz(run.workdir / "arrays" / f"samples-{key}.npz")["value"]
        column = "fid_feat" if "fid_feat" in row else "tv_pixel"
        quality[name] = row[column]
        shown[f"{TITLES[name]}\n{column} {row[column]:.3g}"] = values
    side = int(np.sqrt(min(config.eval.shown, *(len(each) for each in shown.values()))))
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.7 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    top = max(int(each.max()) for each in shown.values())
    for axis, (title, values) in zip(axes, shown.items(), strict=False):
        axis.imshow(tiled(values[: side * side], side, top), cmap="Greys", vmin=0, vmax=top)
        axis.set_title(title, fontsize=9)
    for axis in axes:
        axis.axis("off")
    best = min(quality, key=quality.__getitem__)
    figure.suptitle(f"Drawn after {config.steps} steps of training; nearest to the data: "
                    f"{TITLES[best]}")  # fmt: skip
    return figure


def tiled(values: np.ndarray, columns: int, top: int, gap: int = 1) -> np.ndarray:
    """Images [n, h, w, c] side by side with a gap of a middle grey; [H, W] or [H, W, 3].

    Values are kept; a row that is not full ends in the gap's grey.
    """
    count, height, width, channels = values.shape
    rows = -(-count // columns)
    shape = (rows * (height + gap) + gap, columns * (width + gap) + gap, channels)
    room = np.full(shape, top // 3, values.dtype)
    for number, image in enumerate(values):
        y, x = divmod(number, columns)
        y, x = y * (height + gap) + gap, x * (width + gap) + gap
        room[y : y + height, x : x + width] = image
    return room[..., 0] if channels != 3 else room


def _steps(config: Any, rows: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    each = _ablations(config, rows)
    styles = {"ou": ("0", "-", "o"), "ce": ("0.4", "--", "s"), "tauldr": ("0.6", ":", "D")}
    best: list[str] = []
    for axis, column in ((left, "fid_feat"), (right, "tv_pixel")):
        for name in dict.fromkeys(row["model"] for row in each):
            grey, line, mark = styles.get(name, ("0.5", "-.", "^"))
            own = [row for row in each if row["model"] == name and column in row]
            plain = sorted((row for row in own if not row["correct"]), key=_work)
            corrected = [row for row in own if row["correct"]]
            axis.plot(*_points(plain, column), color=grey, linestyle=line, marker=mark,
                      label=TITLES[name])  # fmt: skip
            if corrected:
                axis.plot(*_points(corrected, column), mark, color=grey, fillstyle="none",
                          markersize=9, label=f"{TITLES[name]}, with correctors")  # fmt: skip
            if plain and column == "tv_pixel":
                least = min(plain, key=lambda row: row[column])
                best.append(f"{name} {least[column]:.3f} at {least['steps']}")
        axis.set_xscale("log")
        axis.set_xlabel("evaluations of the network (log scale)")
    left.set_ylabel("fid_feat to the data")
    right.set_ylabel("TV of a pixel's values, mean")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, ncols=2)
    figure.suptitle(f"Lowest pixel TV: {', '.join(best)} steps")
    return figure


def _work(row: Mapping[str, Any]) -> float:
    return row["evaluations"]


def _points(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[list[float], list[float]]:
    return [_work(row) for row in rows], [row[column] for row in rows]
