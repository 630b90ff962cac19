"""The part on images: training, drawing and judging of every model, and the ablations."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.jumps import drawing, images, judging
from rflib.run.seeds import seeds
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study


def cells(config: Any) -> list[Cell]:
    """What is drawn: every model and seed, then other numbers of steps and correctors."""
    s, all_seeds = config.sampler, seeds(config)
    base = {
        "count": config.eval.samples, "train_steps": config.steps, "step": s.step,
        "denoise": s.final_denoise,
    }  # fmt: skip

    def cell(name: str, seed: int, steps: int, correct: int = 0) -> Cell:
        words = f"{name}-{seed}-{steps}" + (f"-c{correct}" if correct else "")
        own = {"model": name, "seed": seed, "steps": steps, "correct": correct}
        return Cell(words, base | own)

    found = []
    for name in config.model.names:
        steps = config.model.d3pm_steps if name == "d3pm" else s.steps
        found += [cell(name, seed, steps) for seed in all_seeds]
    ablated = [name for name in s.ablated if name in config.model.names]
    found += [cell(name, all_seeds[0], n) for name in ablated for n in s.ablation]
    for name in ("ce", "tauldr"):
        if name in config.model.names:
            found += [cell(name, all_seeds[0], s.steps, n) for n in s.correctors]
    return found


def measure(config: Any, run: Any, judge: judging.Judge) -> dict[str, Any]:
    """rows by cell with their arguments, floors, and the judge that measured them."""
    found = judge.problem
    run.array("data", found.images.train[: config.eval.shown], caption="images of the data")
    params = {
        (name, seed): images.train(config, run, found, name, seed)
        for name in config.model.names
        for seed in seeds(config)
    }

    def one(cell: Cell, key: Key) -> Metrics:
        a = cell.arguments
        call = drawing.sampler(config, found, a["model"], a["steps"], a["correct"])
        drawn = drawing.draw(config, call, params[a["model"], a["seed"]], key, a["count"])
        run.array(
            f"samples-{cell.name}", drawn.values.astype(np.int16), caption=f"drawn: {cell.name}"
        )
        rest = drawn._asdict()
        del rest["values"]
        return judging.measure(judge, drawn.values) | rest

    wanted = cells(config)
    result = study(Study(wanted, one), run, name="draw", seed=config.seed)
    rows = {cell.name: dict(cell.arguments) | dict(result[cell.name]) for cell in wanted}
    return {
        "rows": rows,
        "floors": judging.floors(judge, config.eval.samples, config.seed),
        "judge": judge,
    }


def standard(config: Any, rows: Mapping[str, Mapping[str, Any]], name: str) -> list[Any]:
    """The rows of a model at its standard number of steps without correctors, by seed."""
    steps = config.model.d3pm_steps if name == "d3pm" else config.sampler.steps
    return [
        row
        for row in rows.values()
        if row["model"] == name and row["steps"] == steps and not row["correct"]
    ]
