"""The verb `predict`: a CSV file in, a forecast of its next rows in physical units out."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.forecasting import models
from experiments.forecasting.trained import Input, load_trained, read_input
from rflib.core.errors import UserError
from rflib.data import future_dates, write_series
from rflib.methods.leddam.quantile_head import QuantileHead


def predict(config: Any, workdir: Path, *, input: Path, output: Path, **choice: str | None) -> None:
    """Forecasts what follows the last row of a CSV file with one of a run's trained models.

    config: the run's. choice: data, horizon, model and seed; None stands for the run's first. A
    model with quantiles writes them too, into columns such as `OT q0.9`.
    """
    if input.exists() and output.exists() and output.samefile(input):
        raise UserError(f"--output {output} is the input, which would be lost; take another name")
    trained = load_trained(config, workdir, **choice)
    found = read_input(config, trained, input)
    _say_what_is_old(found, config.data.seq_len)
    series, horizon, module = found.series, trained.horizon, trained.module
    past = config.data.seq_len
    dates = around = None
    if series.dates is not None:
        dates = future_dates(series.dates, horizon)
        around = np.concatenate([series.dates[-past:], dates])[None]
    inputs = found.standardised[None, -past:], models.calendar(module, around, series.source)
    ahead = jax.jit(models.forecast, static_argnums=0)(module, trained.view, *inputs)[0]
    back = np.argsort(found.order)

    def physical(standardised: jax.Array) -> np.ndarray:
        return trained.standardiser.invert(np.asarray(standardised, np.float64))[:, back]

    names, values = list(series.names), [physical(ahead)]
    if isinstance(module, QuantileHead):
        quantiles: Any = jax.jit(models.quantiles, static_argnums=0)(module, trained.view, *inputs)
        for place, level in enumerate(module.levels):
            names += [f"{name} q{level:g}" for name in series.names]
            values.append(physical(quantiles[0, ..., place]))
    path = write_series(
        output, np.concatenate(values, 1), names, dates=dates, date_name=series.date_name
    )
    span = "" if dates is None else f" from {dates[0]} to {dates[-1]}"
    print(
        f"{path}: {horizon} rows of {len(names)} columns{span}, by {trained.phase} at step "
        f"{trained.step}"
    )


def _say_what_is_old(found: Input, past: int) -> None:
    """Names the series of which nothing was observed in the whole past: one value stands for it."""
    silent = np.isnan(found.values[-past:]).all(0)
    names = [found.names[place] for place in np.flatnonzero(silent)]
    if names:
        print(
            f"{found.series.source}: the last {past} values of {', '.join(map(repr, names))} are "
            "all missing; in their place stands the last value before them, or the mean of the "
            "training rows"
        )
