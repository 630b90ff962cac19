"""Leddam: learnable decomposition and dual attention forecast many related series at once.

Yu et al., "Revitalizing Multivariate Time Series Forecasting: Learnable Decomposition with
Inter-Series Dependencies and Intra-Series Variations Modeling", ICML 2024. Trains Leddam and its
competitors on every data set, horizon and seed of the config, tests each at its best validation
error, and says which of the paper's claims held.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.core.errors import UserError
from rflib.run.cli import cli
from rflib.run.verbs import REQUIRED, Verb

# What needs jax is imported where it is used: a mistake in a flag is answered before that.


def main(config: Any, run: Any) -> None:
    from experiments.forecasting import claims, figures
    from experiments.forecasting.data import data_sets
    from experiments.forecasting.study_figures import draw_studies
    from experiments.forecasting.trained import keep_scaling
    from experiments.forecasting.training import train_cell
    from rflib.train.mesh import make_mesh

    mesh = make_mesh({"data": config.mesh.data, "model": config.mesh.model})
    cells = []
    for data in data_sets(config, run):
        keep_scaling(run, data)
        cells.append(train_cell(config, run, data, mesh))
        claims.tabulate(config, run, cells)
    if not cells:
        raise UserError(f"none of the data sets {', '.join(config.data.names)} was found")
    figures.draw(run, cells)
    draw_studies(run, cells, config.expect.margin)
    claims.state(config, run, cells)


def predict(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.forecasting.predict import predict

    rest = dict(flags)
    source, target = (Path(rest.pop(name) or "") for name in ("input", "output"))
    predict(config, workdir, input=source, output=target, **rest)


def backtest(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.forecasting.backtest import backtest

    rest = dict(flags)
    source, target = (Path(rest.pop(name) or "") for name in ("input", "output"))
    chosen = {name: rest.pop(name) for name in ("alpha", "stride", "skip", "model")}
    backtest(config, workdir, input=source, output=target, **chosen, **rest)


def export(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.forecasting.export import export

    rest = dict(flags)
    export(config, workdir, output=Path(rest.pop("output") or ""), **rest)


CHOICE = {
    "data": (None, "data set of the run (default: its first)"),
    "horizon": (None, "rows ahead, one of the run's horizons (default: its first)"),
    "seed": (None, "seed of the run (default: its first)"),
}
MODEL = {"model": (None, "model of the run (default: its first)")}

VERBS = {
    "predict": Verb(
        predict,
        flags={
            "input": (REQUIRED, "CSV file with the columns of the training data, dates optional"),
            "output": (REQUIRED, "CSV file to write: the rows that follow, in physical units"),
            **CHOICE,
            **MODEL,
        },
        help="forecast the rows that follow the last one of a CSV file with a trained model",
    ),
    "backtest": Verb(
        backtest,
        flags={
            "input": (REQUIRED, "CSV file with the columns of the training data, dates optional"),
            "output": (REQUIRED, "directory for errors.csv, intervals.csv and backtest.png"),
            "alpha": ("0.1", "share of values that the intervals may miss, in (0, 1)"),
            "stride": ("1", "rows from one origin to the next"),
            "skip": (None, "first rows not judged (default: those known from the training)"),
            "model": (None, "model of the run (default: all of them)"),
            **CHOICE,
        },
        help="judge trained models on a CSV file: errors by horizon, intervals and their coverage",
    ),
    "export": Verb(
        export,
        flags={"output": (REQUIRED, ".npz file to write"), **CHOICE, **MODEL},
        help="write a trained Leddam or DLinear as arrays and the NumPy code that reads them",
    ),
}

if __name__ == "__main__":
    cli(main, verbs=VERBS)
