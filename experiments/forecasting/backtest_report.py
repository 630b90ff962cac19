"""What a backtest writes: errors and intervals by step and series, one figure, a summary."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.forecasting.figures import time_unit
from experiments.forecasting.trained import Input, Trained
from rflib.methods.leddam import intervals
from rflib.run import files

ALL = "all"
NAIVE = "naive: "
STYLES = (("-", "0"), ("--", "0.2"), ("-.", "0.2"), (":", "0.2"))
ERRORS = ("forecast", "step", "series", "targets", "mse", "mae", "rmse_physical", "mae_physical",
          "bias_physical")  # fmt: skip
INTERVALS = ("forecast", "interval", "step", "series", "targets", "coverage", "width",
             "width_physical", "radius_physical")  # fmt: skip


class Origins(NamedTuple):
    """First rows of the windows: all, those of the calibration, those where coverage is counted.

    skipped: rows at the beginning of the file whose forecasts are not judged.
    """

    starts: np.ndarray
    calibration: slice
    evaluation: slice
    skipped: int


class Judged(NamedTuple):
    """One forecast against the truth, standardised; error [M, S, N] is NaN where there is none.

    bands: kind of interval -> (radius [S, N], or NaN where it has none; low and high [E, S, N] at
    the evaluation's origins).
    """

    name: str
    error: np.ndarray
    bands: Mapping[str, tuple[np.ndarray, intervals.Interval]]


def write(
    output: Path,
    trained: Trained,
    found: Input,
    origins: Origins,
    truth: np.ndarray,
    judged: Sequence[Judged],
    alpha: float,
) -> None:
    """errors.csv, intervals.csv and backtest.png in `output`, a summary on the screen."""
    scale = trained.standardiser.scale
    errors = [row for each in judged for row in error_rows(each, trained.columns, scale)]
    late = truth[origins.evaluation]
    bands = [row for each in judged for row in interval_rows(each, late, trained.columns, scale)]
    files.write_text(output / "errors.csv", _text(ERRORS, errors))
    files.write_text(output / "intervals.csv", _text(INTERVALS, bands))
    drawn = _figure(output / "backtest.png", trained, found, origins, late, judged, alpha)
    count, calibrated = len(origins.starts), origins.calibration.stop
    print(
        f"{count} origins; intervals of {1 - alpha:.0%} calibrated on the first {calibrated} and "
        f"counted on the last {len(late)}"
    )
    for each in judged:
        mse, mae = np.nanmean(each.error**2), np.nanmean(np.abs(each.error))
        parts = [
            f"{kind} covers {float(intervals.coverage(band, late, (0, 1, 2))):.1%}"
            for kind, (_, band) in each.bands.items()
        ]
        print(f"  {each.name}: MSE {mse:.4f}, MAE {mae:.4f} (standardised); {', '.join(parts)}")
    print(f"{output}: errors.csv, intervals.csv{', backtest.png' if drawn else ''}")


def error_rows(
    judged: Judged, columns: Sequence[str], scale: np.ndarray
) -> Iterator[tuple[Any, ...]]:
    """A row of ERRORS for each step, all steps, each series, all series; none mixes two units."""
    error = judged.error
    seen = ~np.isnan(error)
    zeros = np.where(seen, error, 0)
    sums = [seen, zeros**2, np.abs(zeros), zeros]
    by_place = [each.sum(0, dtype=np.float64) for each in sums]  # [S, N]
    for step, series, place, (count, square, absolute, plain) in _places(by_place, columns):
        if not count:
            yield (judged.name, step, series, 0, *[None] * 5)
            continue
        physical: list[float | None] = [None] * 3
        if place is not None:
            unit = float(scale[place])
            physical = [unit * (square / count) ** 0.5, unit * absolute / count,
                        unit * plain / count]  # fmt: skip
        yield judged.name, step, series, int(count), square / count, absolute / count, *physical


def interval_rows(
    judged: Judged, truth: np.ndarray, columns: Sequence[str], scale: np.ndarray
) -> Iterator[tuple[Any, ...]]:
    """A row of INTERVALS for each kind, step or all of them, and series or all of them.

    Widths are means over the origins at which coverage was counted.
    """
    seen = (~np.isnan(truth)).sum(0)
    for kind, (radius, band) in judged.bands.items():
        inside = intervals.covered(band, truth).sum(0)
        width = np.asarray(band.high - band.low, np.float64).sum(0)
        origins = np.full_like(width, len(truth))
        tables = [np.asarray(each, np.float64) for each in (seen, inside, width, origins)]
        for step, series, place, (count, held, total, number) in _places(tables, columns):
            physical: list[float | None] = [None, None]
            if place is not None:
                unit = float(scale[place])
                size = None if step == ALL else unit * float(radius[int(step) - 1, place])
                physical = [unit * total / number, size]
            share = held / count if count else None
            yield judged.name, kind, step, series, int(count), share, total / number, *physical


def _places(
    tables: Sequence[np.ndarray], columns: Sequence[str]
) -> Iterator[tuple[Any, str, int | None, list[float]]]:
    """(step from 1 or "all", series or "all", its place or None, sums of the tables [S, N] there).

    A series of that name is told from all of them: they are then "all series".
    """
    together = f"{ALL} series" if ALL in columns else ALL
    steps, count = tables[0].shape
    whole = [np.pad(table, ((0, 1), (0, 1))) for table in tables]
    for table in whole:
        table[:, -1] = table.sum(1)
        table[-1] = table.sum(0)
    for step in (*range(steps), -1):
        for place in (*range(count), -1):
            yield (
                ALL if step < 0 else step + 1,
                together if place < 0 else columns[place],
                None if place < 0 else place,
                [float(table[step, place]) for table in whole],
            )


def _text(header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """CSV; a number that is not finite or has no meaning in its row is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    finite = (
        ["" if isinstance(cell, float) and not np.isfinite(cell) else cell for cell in row]
        for row in rows
    )
    writer.writerows(finite)
    return text.getvalue()


def _figure(
    path: Path,
    trained: Trained,
    found: Input,
    origins: Origins,
    late: np.ndarray,
    judged: Sequence[Judged],
    alpha: float,
) -> bool:
    """Error and coverage against the horizon; False where Matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    unit, distance = time_unit(found.series.dates)
    ahead = np.arange(1, trained.horizon + 1) * distance
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    _draw_errors(axes[0], ahead, judged, len(origins.starts))
    _draw_coverage(axes[1], ahead, judged, late, alpha)
    for axis in axes:
        axis.set_xlabel(f"time ahead [{unit}]")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize="small")
    figure.suptitle(
        f"{Path(found.series.source).name}: rolling origin, models trained on {trained.data} for "
        f"{trained.horizon} rows"
    )
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    pyplot.close(figure)
    files.write_bytes(path, data.getvalue())
    return True


def _draw_errors(axis: Any, ahead: np.ndarray, judged: Sequence[Judged], count: int) -> None:
    mark = "o" if len(ahead) < 3 else ""
    curves = {each.name: np.nanmean(each.error**2, axis=(0, 2)) for each in judged}
    drawn = {True: 0, False: 0}
    for name, curve in curves.items():
        naive = name.startswith(NAIVE)
        line, grey = STYLES[drawn[naive] % len(STYLES)]
        drawn[naive] += 1
        width, color = (1.2, "0.6") if naive else (2.0, grey)
        axis.plot(ahead, curve, line, color=color, marker=mark, linewidth=width, label=name)
    best = min(curves, key=lambda name: float(np.nanmean(curves[name])))
    axis.set(ylabel="mean squared error, standardised (no unit)", ylim=(0, None))
    axis.set_title(f"{best} has the smallest error, mean over {count} origins")


def _draw_coverage(
    axis: Any, ahead: np.ndarray, judged: Sequence[Judged], late: np.ndarray, alpha: float
) -> None:
    mark = "o" if len(ahead) < 3 else ""
    models = [each for each in judged if not each.name.startswith(NAIVE)]
    kinds = [(each.name, *pair) for each in models for pair in each.bands.items()]
    for place, (name, kind, (_, band)) in enumerate(kinds):
        line = STYLES[place % len(STYLES)][0]
        color = ("0", "0.35", "0.6")[place // len(STYLES) % 3]
        share = 100 * intervals.coverage(band, late)
        axis.plot(ahead, share, line, color=color, marker=mark, linewidth=1.8,
                  label=f"{name}, {kind}")  # fmt: skip
    target = 100 * (1 - alpha)
    axis.axhline(target, color="0.8", linewidth=5, zorder=0, label=f"target, {target:g} %")
    axis.set_ylim(min(axis.get_ylim()[0], target - 5), 100.5)
    axis.set_ylabel("values inside their interval [%]")
    name, kind, (_, band) = kinds[0]
    share = float(intervals.coverage(band, late, (0, 1, 2)))
    axis.set_title(f"{name}, {kind}: {share:.1%} covered, {len(late)} later origins")
