"""The verb `backtest`: a rolling origin over a CSV file; errors, and intervals that are checked.

Every `stride` rows the trained models forecast the rows that follow. Errors are over all these
origins. Intervals are calibrated on the earlier half and their coverage is counted on origins whose
futures begin after the last calibration future has ended, as it would be in use.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.forecasting import models
from experiments.forecasting.backtest_report import NAIVE, Judged, Origins, write
from experiments.forecasting.forecasters import TITLES
from experiments.forecasting.trained import Input, Trained, load_trained, read_input, rows_seen
from rflib.core.checks import in_range, positive_int
from rflib.core.errors import NotFinite, UserError
from rflib.data import in_order, windows
from rflib.methods.leddam import intervals
from rflib.methods.leddam.data import naive_season
from rflib.methods.leddam.naive import naive_forecasts
from rflib.methods.leddam.quantile_head import QuantileHead

PyTree = Any
BATCH = 256
MOST_BYTES = 4 << 30  # of forecasts and truth of one model


def backtest(
    config: Any,
    workdir: Path,
    *,
    input: Path,
    output: Path,
    alpha: str | None,
    stride: str | None,
    skip: str | None,
    model: str | None,
    **choice: str | None,
) -> None:
    """Judges a run's trained models, or one of them, and the naive forecasts on a CSV file.

    config: the run's. alpha: share of values that intervals may miss. stride: rows between origins.
    skip: first rows that are not judged; None: those known to be training and validation rows.
    choice: data, horizon and seed; None stands for the run's first. Writes errors.csv,
    intervals.csv and backtest.png into the directory `output`.
    """
    level = in_range("--alpha", _number("alpha", alpha), 0, 1, open_low=True, open_high=True)
    step = positive_int("--stride", _number("stride", stride))
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file; a directory is expected")
    names = config.model.names if model is None else (model,)
    first = load_trained(config, workdir, model=names[0], **choice)
    found = read_input(config, first, input)
    rows = _skipped(first, found, skip)
    size = (config.data.seq_len, first.horizon)
    origins = _origins(found, rows, step, level, *size)
    truth = _truth(first, found, origins.starts, *size)
    judged = []
    for name in names:
        trained = first if name == first.model else load_trained(config, workdir, model=name,
                                                                 **choice)  # fmt: skip
        ahead = _trained_forecasts(trained, found, origins.starts, level)
        judged.append(judge(TITLES[name], ahead, truth, origins, level))
    season = naive_season(found.series.dates)
    for name, call in naive_forecasts(config.data.seq_len, season).items():
        ahead = _naive_forecasts(call, found.standardised, origins.starts, *size)
        judged.append(judge(f"{NAIVE}{name}", ahead, truth, origins, level))
    write(output, first, found, origins, truth, judged, level)


def judge(
    name: str,
    ahead: Mapping[str, np.ndarray],
    truth: np.ndarray,
    origins: Origins,
    alpha: float,
) -> Judged:
    """Errors of a forecast and its intervals.

    ahead: "point", and with quantiles "low" and "high", each [M, S, N] standardised.
    truth [M, S, N]: NaN where nothing was observed.
    """
    early, late = origins.calibration, origins.evaluation
    point = ahead["point"]
    if not np.isfinite(point).all():  # NaN would pass for nothing observed
        raise NotFinite(f"{name}: {np.sum(~np.isfinite(point))} forecasts are not finite")
    scores = intervals.absolute_scores(point[early], truth[early])
    radius = intervals.conformal_radius(scores, alpha)
    bands = {"split conformal": (radius, intervals.split_conformal(point[late], radius))}
    if "low" in ahead:
        low, high = ahead["low"], ahead["high"]
        scores = intervals.quantile_scores(low[early], high[early], truth[early], scaled=True)
        radius = intervals.conformal_radius(scores, alpha)
        moved = intervals.conformal_quantiles(low[late], high[late], radius, scaled=True)
        bare = intervals.Interval(low[late], high[late])
        none = np.full_like(radius, np.nan)
        bands |= {"conformal quantiles": (none, moved), "quantiles": (none, bare)}
    return Judged(name, point - truth, bands)


def _number(name: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise UserError(f"--{name}={text!r} is not a number") from None


def _skipped(trained: Trained, found: Input, skip: str | None) -> int:
    """Rows that are not judged; says what it knows of the training's rows in the file."""
    seen = rows_seen(trained, found.values)
    if skip is None:
        if seen:
            print(
                f"{found.series.source}: the first {seen} rows are those that {trained.data} was "
                "trained and chosen on; they are not judged (--skip 0 judges them)"
            )
        return seen
    rows = positive_int("--skip", _number("skip", skip), zero=True)
    if rows < seen:
        print(f"{found.series.source}: rows {rows} to {seen} are among those that the model was "
              "trained and chosen on: their errors are too small")  # fmt: skip
    return rows


def _origins(
    found: Input, skipped: int, stride: int, alpha: float, past: int, future: int
) -> Origins:
    """The windows, cut into an earlier half and what begins after its end."""
    length, series = found.values.shape
    starts = np.arange(max(0, skipped - past), length - past - future + 1, stride, dtype=np.int32)
    half = len(starts) // 2
    first = int(np.searchsorted(starts, starts[half - 1] + future)) if half else 0
    least = intervals.least_scores(alpha)
    if half < least or first >= len(starts):
        judged = max(0, length - skipped)
        raise UserError(
            f"{found.series.source}: {len(starts)} origins are too few: alpha={alpha:g} takes "
            f"{least} for calibration, and as many later ones for coverage, {future} rows apart. "
            f"With stride {stride} that is {past} rows of past and about "
            f"{2 * least * stride + 2 * future} to be judged; the file has {length}, of which "
            f"{judged} are judged: take a longer file, a smaller --stride or a larger --alpha"
        )
    need = 16 * len(starts) * future * series
    if need > MOST_BYTES:
        raise UserError(
            f"{len(starts)} origins of {future} rows and {series} series take {need / 2**30:.0f} "
            f"GiB: take --stride {-(-stride * need // MOST_BYTES)}"
        )
    return Origins(starts, slice(0, half), slice(first, len(starts)), skipped)


def _truth(
    trained: Trained, found: Input, starts: np.ndarray, past: int, future: int
) -> np.ndarray:
    """[M, S, N] standardised, NaN where nothing was observed."""
    z = trained.standardiser.apply(found.values)
    view = np.lib.stride_tricks.sliding_window_view(z, future, axis=0)
    return np.swapaxes(view[starts + past], 1, 2)


def _trained_forecasts(
    trained: Trained, found: Input, starts: np.ndarray, alpha: float
) -> dict[str, np.ndarray]:
    """ "point", and of a model with quantiles "low" and "high": the pair nearest to 1 - alpha."""
    module: Any = trained.module
    size = (module.seq_len, module.pred_len)
    series = found.standardised
    marks = models.calendar(module, found.series.dates, found.series.source)
    if not isinstance(module, QuantileHead) or len(module.levels) < 3:
        points = lambda *x: {"point": models.forecast(module, trained.view, *x)}  # noqa: E731
        return _over_origins(points, series, starts, *size, marks)
    levels = np.asarray(module.levels)
    low = int(np.argmin(np.abs(levels[: module.centre] - alpha / 2)))
    high = module.centre + 1 + int(np.argmin(np.abs(levels[module.centre + 1 :] - 1 + alpha / 2)))

    def parts(x: jax.Array, around: jax.Array | None) -> dict[str, jax.Array]:
        every: Any = models.quantiles(module, trained.view, x, around)
        return {
            "point": every[..., module.centre],
            "low": every[..., low],
            "high": every[..., high],
        }

    return _over_origins(parts, series, starts, *size, marks)


def _naive_forecasts(
    call: Callable[[jax.Array, int], jax.Array],
    series: np.ndarray,
    starts: np.ndarray,
    past: int,
    future: int,
) -> dict[str, np.ndarray]:
    return _over_origins(lambda x, _: {"point": call(x, future)}, series, starts, past, future)


def _over_origins(
    call: Callable[..., dict[str, jax.Array]],
    series: np.ndarray,
    starts: np.ndarray,
    past: int,
    future: int,
    marks: jax.Array | None = None,
) -> dict[str, np.ndarray]:
    """What `call` makes of the pasts at `starts`, batch by batch in one compiled program.

    marks: of the rows of `series`; `call` gets those of each window as its second argument.
    """
    whole = jnp.asarray(series)

    @jax.jit
    def compiled(first: jax.Array) -> dict[str, jax.Array]:
        around = models.marked(marks, first, past, future)
        return call(windows(whole, first, past, future)[0], around)

    batch = min(BATCH, len(starts))
    parts = [
        {name: np.asarray(each)[rows.mask] for name, each in compiled(rows.indices).items()}
        for rows in in_order(starts, batch, process=0, processes=1)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
