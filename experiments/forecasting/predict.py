"""The verb `predict`: a CSV file in, a forecast of its next rows in physical units out."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from experiments.forecasting import models, training
from experiments.forecasting.forecasters import forecasters
from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.data import Series, Standardiser, future_dates, read_npz, read_series, write_series
from rflib.methods.leddam.data import ForecastData
from rflib.train.checkpoint import Checkpointer

PyTree = Any
SCALING = "scaling-{}"


def keep_scaling(run: Any, data: ForecastData) -> None:
    """Keeps in the run what `predict` has to know of its data: columns and their scaling."""
    run.array(
        SCALING.format(data.name),
        caption="columns, and mean and standard deviation of their training rows in physical units",
        columns=np.array(data.columns),
        mean=data.standardiser.mean,
        scale=data.standardiser.scale,
    )


def predict(config: Any, workdir: Path, *, input: Path, output: Path, **choice: str | None) -> None:
    """Forecasts what follows the last row of a CSV file with one of a run's trained models.

    config: the run's. choice: data, horizon, model and seed; None stands for the run's first.
    """
    data, horizon, model, seed = _chosen(config, workdir, **choice)
    source = workdir / "arrays" / f"{SCALING.format(data)}.npz"
    scaling = read_npz(source, ("columns", "mean", "scale"))
    columns = tuple(map(str, scaling["columns"]))
    past = config.data.seq_len
    series = read_series(input)
    order = _order(series, columns, past)
    module = forecasters(config, len(columns), data, horizon)[model].module
    phase = training.phase_name(data, horizon, model, seed)
    step, view = _best_view(workdir, phase, module)
    standardiser = Standardiser(scaling["mean"], scaling["scale"])
    x = standardiser.apply(series.values[-past:, order]).astype(np.float32)
    ahead = jax.jit(models.forecast, static_argnums=0)(module, view, x[None])[0]
    values = standardiser.invert(np.asarray(ahead, np.float64))
    dates = None if series.dates is None else future_dates(series.dates, horizon)
    path = write_series(
        output,
        values[:, np.argsort(order)],
        series.names,
        dates=dates,
        date_name=series.date_name,
    )
    span = "" if dates is None else f" from {dates[0]} to {dates[-1]}"
    print(f"{path}: {horizon} rows of {len(columns)} columns{span}, by {phase} at step {step}")


def _chosen(config: Any, workdir: Path, **choice: str | None) -> tuple[str, int, str, int]:
    """Data set, horizon, model and seed: as chosen, or the first that the run trained."""
    prefix = SCALING.format("")
    kept = [path.stem[len(prefix) :] for path in (workdir / "arrays").glob(f"{prefix}*.npz")]
    if not kept:
        raise UserError(f"{workdir} has no trained model yet: run the experiment there first")
    allowed = {
        "data": [name for name in config.data.names if name in kept] or sorted(kept),
        "horizon": list(map(str, config.data.horizons)),
        "model": list(config.model.names),
        "seed": list(map(str, training.seeds(config))),
    }
    data, horizon, model, seed = (
        one_of(f"--{name}", choice.get(name) or some[0], some) for name, some in allowed.items()
    )
    return data, int(horizon), model, int(seed)


def _order(series: Series, columns: tuple[str, ...], past: int) -> list[int]:
    """Places of the model's columns in the file; UserError if the file is not what it needs."""
    missing = [name for name in columns if name not in series.names]
    extra = [name for name in series.names if name not in columns]
    if missing or extra:
        parts = [
            f"{what} {', '.join(map(repr, some[:5]))}{', ...' if len(some) > 5 else ''}"
            for what, some in (("it lacks", missing), ("it also has", extra))
            if some
        ]
        raise UserError(
            f"{series.source} has {len(series.names)} columns; the model was trained on these "
            f"{len(columns)}: {', '.join(columns[:10])}{', ...' if len(columns) > 10 else ''}; "
            + " and ".join(parts)
        )
    if len(series.values) < past:
        raise UserError(
            f"{series.source}: {len(series.values)} rows are too few; the model looks back on the "
            f"last {past}"
        )
    return [series.names.index(name) for name in columns]


def _best_view(workdir: Path, phase: str, module: Any) -> tuple[int, PyTree]:
    """(step, view) of the best validation error of a phase, read without touching the run."""
    here = SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        models.abstract_view(module),
    )
    with Checkpointer(workdir / "phases" / phase / "best", readonly=True) as saved:
        found = saved.restore(abstract)
    if found is None:
        raise UserError(f"{workdir} has no trained model {phase} yet: run the experiment there")
    return found
