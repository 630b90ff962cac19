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


VERBS = {
    "predict": Verb(
        predict,
        flags={
            "input": (REQUIRED, "CSV file with the columns of the training data, dates optional"),
            "output": (REQUIRED, "CSV file to write: the rows that follow, in physical units"),
            "data": (None, "data set of the run (default: its first)"),
            "horizon": (None, "rows ahead, one of the run's horizons (default: its first)"),
            "model": (None, "model of the run (default: its first)"),
            "seed": (None, "seed of the run (default: its first)"),
        },
        help="forecast the rows that follow the last one of a CSV file with a trained model",
    )
}

if __name__ == "__main__":
    cli(main, verbs=VERBS)
