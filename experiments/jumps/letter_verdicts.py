"""What the letter says: a table of exact distances, figures, and claims C1, C4b, C4c and C5."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.jumps.letter import FLOORS, sampling_floor
from rflib.diffusion.metrics import total_variation
from rflib.methods.ehrenfest import transition
from rflib.run.seeds import seeds

TITLES = {
    "ou": "OU (score)",
    "ratio": "exact ratio",
    "gauss": "Gaussian ratio",
    "taylor1": "Taylor 1",
    "taylor2": "Taylor 2",
    "ce": "cross-entropy",
    "ou_score": "OU (weighted)",
}
STYLES = {
    "ou": ("0", "-", "o"),
    "ratio": ("0.3", "--", "s"),
    "gauss": ("0.5", "-.", "^"),
    "taylor1": ("0.6", ":", "v"),
    "taylor2": ("0.45", (0, (5, 1, 1, 1, 1, 1)), "D"),
    "ce": ("0.15", (0, (1, 1)), "x"),
    "ou_score": ("0.7", "-", "+"),
}
TRAINED = 0.5  # share of the untrained distance below which a loss has trained the process


def ends(found: Mapping[str, Any], name: str) -> np.ndarray:
    """TV of every seed after training."""
    cells = found["finals"][name]
    return np.array([each["tv"] for cell, each in cells.items() if cell.startswith("seed")])


def untrained(found: Mapping[str, Any]) -> float:
    """TV of the law that sampling starts from."""
    given = found["letter"]
    start = np.exp(np.asarray(transition.stationary_log_pmf(given.process.size), np.float64))
    return total_variation(np.outer(start, start), given.end)


def compare(one: np.ndarray, other: np.ndarray, least: int) -> tuple[str, str]:
    """(verdict, reason) on `one` being lower: decided where all trainings of both agree."""
    if min(len(one), len(other)) < least:
        return "undecided", f"{len(one)} training(s) a loss; {least} are needed"
    if one.max() < other.min():
        return "holds", ""
    if one.min() > other.max():
        return "refuted", ""
    return "undecided", "the trainings of the two losses overlap"


def state(config: Any, run: Any, found: Mapping[str, Any]) -> None:
    rows = []
    for name, cells in found["finals"].items():
        values, floor = ends(found, name), found["floors"][FLOORS[name]]
        row = {
            "loss": TITLES[name],
            "TV, mean of seeds": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else None,
            "floor of its rate model": floor,
        }
        leaps = {cell: each["tv"] for cell, each in cells.items() if cell.endswith("leaps")}
        row |= {f"TV of samples, {cell}": value for cell, value in leaps.items()}
        rows.append(row | {"rates cut": max(each.get("cut", 0.0) for each in cells.values())})
    noise = sampling_floor(found["letter"], config.letter.samples)
    run.table(
        "letter",
        rows,
        caption=f"Exact TV to p_t at t = {config.process.t_min} by the integrated master equation, "
        f"S = {config.letter.size}, {config.letter.steps} steps; the floor is what no training "
        f"removes. Untrained: {untrained(found):.3f}. {config.letter.samples} samples of the first "
        f"seed, whose histogram alone is {noise:.3f} away from its law.",
    )
    _claims(config, run, found)
    run.figure(
        "letter_curve",
        partial(_curve, config, found),
        "Exact TV against training steps, mean and range over seeds; ticks on the right: the "
        "floor of each loss's rate model.",
    )
    run.figure("letter_laws", partial(_laws, run, found), "The laws after training, first seed.")


def _claims(config: Any, run: Any, found: Mapping[str, Any]) -> None:
    exact = found["floors"]["exact"]
    run.claim(
        "C1 grid",
        "true ratios reverse a two-dimensional jump process",
        measured=exact,
        unit="TV on the grid",
        verdict="holds" if exact < config.expect.exact else "refuted",
    )
    limit, trained = TRAINED * untrained(found), found["finals"]
    texts = {
        "C4b": "losses on jumps train the reversed process: it ends nearer than half the distance "
        "it starts from",
        "C5 trained": "so does regression on conditional ratios, the loss that any chain has",
    }
    for id, names in {"C4b": ("ratio", "gauss", "ce"), "C5 trained": ("ratio",)}.items():
        chosen = {name: float(ends(found, name).max()) for name in names if name in trained}
        if not chosen:
            continue
        worst = np.full(len(seeds(config)), max(chosen.values()))
        verdict, reason = compare(worst, np.full(len(worst), limit), config.expect.seeds)
        run.claim(
            id,
            texts[id],
            measured=chosen,
            unit=f"largest TV over seeds, must be below {limit:.3f}",
            verdict=verdict,
            reason=reason,
        )
    for other in ("ratio", "gauss"):
        if "ou" not in trained or other not in trained:
            continue
        one, two = ends(found, "ou"), ends(found, other)
        verdict, reason = compare(one, two, config.expect.seeds)
        run.claim(
            f"C4c letter {other}",
            f"the score loss (OU) ends nearer than {TITLES[other]} at the same budget, S = "
            f"{config.letter.size}",
            measured={"OU": float(one.mean()), other: float(two.mean())},
            unit="mean exact TV",
            verdict=verdict,
            reason=reason,
        )
        early = {name: _middle(found["curves"][name]) for name in ("ou", other)}
        if all(len(each) for each in early.values()):
            verdict, reason = compare(early["ou"], early[other], config.expect.seeds)
            run.claim(
                f"C4c speed {other}",
                f"the score loss is nearer than {TITLES[other]} on average over training",
                measured={name: float(each.mean()) for name, each in early.items()},
                unit="mean exact TV over the evaluated steps",
                verdict=verdict,
                reason=reason,
            )


def _middle(curves: Mapping[int, list[list[float]]]) -> np.ndarray:
    return np.array([np.mean([tv for _, tv in each]) for each in curves.values() if each])


def _curve(config: Any, found: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axis = figure.subplots()
    first = {name: ends(found, name).mean() for name in found["finals"]}
    for name, curves in found["curves"].items():
        grey, line, mark = STYLES[name]
        each = np.array([curves[seed] for seed in seeds(config)])
        if not each.size:
            continue
        steps, values = each[0, :, 0], each[..., 1]
        floor = found["floors"][FLOORS[name]]
        axis.plot(steps, values.mean(0), color=grey, linestyle=line, marker=mark, markersize=5,
                  label=f"{TITLES[name]}: {first[name]:.3f}, floor {floor:.3f}")  # fmt: skip
        axis.fill_between(steps, values.min(0), values.max(0), color=grey, alpha=0.12)
        axis.annotate("", (1.0, floor), (1.03, floor), xycoords=("axes fraction", "data"),
                      arrowprops={"arrowstyle": "-", "color": grey, "linestyle": line})  # fmt: skip
    axis.set_yscale("log")
    axis.set_xlabel("training steps")
    axis.set_ylabel("exact TV to the letter's law (log scale)")
    figure.legend(
        fontsize=8, title="loss: TV at the end, floor of its rate model", loc="outside right upper"
    )
    axis.set_title(f"Nearest to the letter after {config.letter.steps} steps: "
                   f"{TITLES[min(first, key=first.__getitem__)]}")  # fmt: skip
    return figure


def _laws(run: Any, found: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    from rflib.data import read_npz

    names = list(found["finals"])
    laws = {"p at t_min": found["letter"].end}
    for name in names:
        kept = read_npz(run.workdir / "arrays" / f"letter-{name}.npz")["value"]
        laws[f"{TITLES[name]}, TV {ends(found, name)[0]:.3f}"] = kept
    columns = min(4, len(laws))
    rows = -(-len(laws) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    top, shown = found["letter"].end.max(), None
    for axis, (title, law) in zip(axes, laws.items(), strict=False):
        shown = axis.imshow(law, cmap="Greys", vmin=0, vmax=top)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("second coordinate", fontsize=7)
        axis.set_ylabel("first coordinate", fontsize=7)
    for axis in axes[len(laws) :]:
        axis.set_visible(False)
    if shown is not None:
        figure.colorbar(shown, ax=list(axes), label="probability of a state", shrink=0.8)
    best = min(names, key=lambda name: ends(found, name)[0])
    figure.suptitle(f"The exact laws of the trained processes; nearest: {TITLES[best]}")
    return figure
