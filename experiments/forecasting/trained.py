"""The trained models of a finished run, and the files that its verbs are given."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import SingleDeviceSharding
from jaxtyping import Float

from experiments.forecasting import models, training
from experiments.forecasting.forecasters import forecasters
from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.data import Series, Standardiser, check_dates, read_npz, read_series, select
from rflib.methods.leddam.data import ForecastData, standardised
from rflib.run.seeds import seeds
from rflib.train.checkpoint import Checkpointer

PyTree = Any
SCALING = "scaling-{}"
REMEMBERED = 8  # rows by which a file is known to hold the rows of the training


class Trained(NamedTuple):
    """One trained model. view: its best, at `step`. columns, standardiser: of its data.

    last: the last rows [R, N] on which it was trained or chosen, in physical units.
    """

    data: str
    horizon: int
    model: str
    seed: int
    module: nn.Module
    view: PyTree
    step: int
    columns: tuple[str, ...]
    standardiser: Standardiser
    last: np.ndarray | None

    @property
    def phase(self) -> str:
        """The phase of the run that trained it."""
        return training.phase_name(self.data, self.horizon, self.model, self.seed)


class Input(NamedTuple):
    """A file as a model takes it, columns in the model's order.

    order: their places in the file. values [L, N]: physical units, NaN where missing.
    standardised [L, N]: float32, gaps filled.
    """

    series: Series
    order: list[int]
    values: Float[np.ndarray, "length series"]
    standardised: Float[np.ndarray, "length series"]

    @property
    def names(self) -> list[str]:
        """The columns in the model's order."""
        return [self.series.names[place] for place in self.order]


def keep_scaling(run: Any, data: ForecastData) -> None:
    """Keeps in the run what its verbs have to know of its data: columns, scaling, last rows."""
    end = data.parts.valid.stop
    run.array(
        SCALING.format(data.name),
        caption="columns, and mean and standard deviation of their training rows in physical "
        "units; the last rows of the validation part",
        columns=np.array(data.columns),
        mean=data.standardiser.mean,
        scale=data.standardiser.scale,
        last=data.values[end - REMEMBERED : end],
    )


def choices(
    config: Any,
    workdir: Path,
    *,
    data: str | None = None,
    horizon: str | None = None,
    model: str | None = None,
    seed: str | None = None,
) -> tuple[str, int, str, int]:
    """Data set, horizon, model and seed: as chosen by flags, or the first that the run trained."""
    prefix = SCALING.format("")
    kept = [path.stem[len(prefix) :] for path in (workdir / "arrays").glob(f"{prefix}*.npz")]
    if not kept:
        raise UserError(f"{workdir} has no trained model yet: run the experiment there first")

    def pick(name: str, chosen: str | None, allowed: list[str]) -> str:
        return one_of(f"--{name}", chosen or allowed[0], allowed)

    return (
        pick("data", data, [name for name in config.data.names if name in kept] or sorted(kept)),
        int(pick("horizon", horizon, list(map(str, config.data.horizons)))),
        pick("model", model, list(config.model.names)),
        int(pick("seed", seed, list(map(str, seeds(config))))),
    )


def load_trained(config: Any, workdir: Path, **flags: str | None) -> Trained:
    """One of a run's trained models. config: the run's. flags: see `choices`."""
    data, horizon, model, seed = choices(config, workdir, **flags)
    kept = read_npz(workdir / "arrays" / f"{SCALING.format(data)}.npz")
    columns = tuple(map(str, kept["columns"]))
    module = forecasters(config, len(columns), data, horizon)[model].module
    step, view = _best_view(workdir, training.phase_name(data, horizon, model, seed), module)
    standardiser = Standardiser(kept["mean"], kept["scale"])
    return Trained(
        data, horizon, model, seed, module, view, step, columns, standardiser, kept.get("last")
    )


def read_input(config: Any, trained: Trained, path: Path) -> Input:
    """A CSV file with the columns of the training data; UserError if it has others or too few rows.

    Missing values are gaps if the run took them as such, else an error.
    """
    series = read_series(path, gaps=config.data.gaps == "mask")
    order = _order(series, trained.columns, config.data.seq_len)
    check_dates(series)
    chosen = select(series, trained.columns)
    return Input(series, order, chosen.values, standardised(chosen, trained.standardiser))


def rows_seen(trained: Trained, values: Float[np.ndarray, "length series"]) -> int:
    """The rows of `values` up to the end of the model's validation part; 0 if that is not there."""
    last = trained.last
    if last is None or len(values) < len(last):
        return 0
    place = np.lib.stride_tricks.sliding_window_view(values, len(last), axis=0)
    same = (place == last.T) | (np.isnan(place) & np.isnan(last.T))
    found = np.flatnonzero(same.all((1, 2)))
    return int(found[-1]) + len(last) if len(found) else 0


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
