"""The figures of a run, readable in grey: kernel, decomposition, forecast, attention."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.forecasting import models
from experiments.forecasting.forecasters import BACKBONES, TITLES
from experiments.forecasting.training import Cell, first_kernel, learned_kernel
from rflib.data import in_order, windows
from rflib.methods.leddam.data import ForecastData
from rflib.methods.leddam.decomposition import smooth
from rflib.methods.leddam.model import normalise
from rflib.methods.leddam.naive import naive_forecasts
from rflib.nn import variables

PyTree = Any
LINES = ("-", "--", "-.", ":")
GREYS = ("0.0", "0.35", "0.55", "0.7")
SHOWN = 8  # first test windows whose forecasts are kept
DRAWN = 4  # most models in a figure of forecasts: not arms or plug-ins, if there are others


class Sample(NamedTuple):
    """Forecasts of some windows in physical units. past [B, T, N]; truth, forecasts [B, S, N].

    Gaps are filled in the past and NaN in the truth.
    """

    starts: np.ndarray
    past: np.ndarray
    truth: np.ndarray
    forecasts: Mapping[str, np.ndarray]


def draw(run: Any, cells: Sequence[Cell]) -> None:
    """Draws every figure and keeps the forecasts of the first test windows."""
    trained = [cell for cell in cells if "leddam" in cell.views]
    seen: set[str] = set()
    for cell in cells:
        found = sample(cell, np.arange(SHOWN))
        run.array(
            f"predictions-{cell.name}",
            caption=f"the first {len(found.starts)} test windows, physical units",
            starts=found.starts,
            past=found.past,
            truth=found.truth,
            columns=np.array(cell.data.columns),
            **{
                f"forecast_{name}".replace(" ", "_"): each for name, each in found.forecasts.items()
            },
        )
        if cell.data.name in seen:
            continue  # one figure a data set: its first horizon
        seen.add(cell.data.name)
        run.figure(
            f"forecast-{cell.name}",
            partial(_forecast, cell),
            "Forecasts of one test window, none chosen by its error: the middle one.",
        )
        if cell in trained:
            run.figure(f"attention-{cell.name}", partial(_attention, cell),
                       "Channel attention, mean over the test windows.")  # fmt: skip
            run.figure(f"decomposition-{cell.name}", partial(_decomposition, cell),
                       "The learned kernel on an embedding and on its raw window.")  # fmt: skip
    if trained:
        run.figure("kernel", partial(_kernel, trained), "The kernel before and after training.")


def sample(cell: Cell, places: np.ndarray, names: Sequence[str] | None = None) -> Sample:
    """Forecasts of the test windows at `places` (cut to those there are); names: None for all."""
    data = cell.data
    starts = data.starts("test")
    starts = starts[places[places < len(starts)]]
    x, y = windows(jnp.asarray(data.series), starts, data.seq_len, data.pred_len)
    naive = naive_forecasts(data.seq_len, data.season)
    ahead = {name: naive[name](x, data.pred_len) for name in ("repeat season",) if name in naive}
    apply = jax.jit(models.forecast, static_argnums=0)
    for name in cell.views if names is None else names:
        module = cell.forecasters[name].module
        marks = models.calendar(module, data.dates, data.origin)
        marks = models.marked(marks, jnp.asarray(starts), data.seq_len, data.pred_len)
        ahead[TITLES[name]] = apply(module, cell.views[name], x, marks)
    physical: Callable[[Any], np.ndarray] = lambda z: data.standardiser.invert(  # noqa: E731
        np.asarray(z, np.float64)
    )
    truth = physical(y)
    if data.observed is not None:
        seen = windows(jnp.asarray(data.observed), starts, data.seq_len, data.pred_len)[1]
        truth = np.where(seen, truth, np.nan)
    return Sample(starts, physical(x), truth, {k: physical(v) for k, v in ahead.items()})


def middle_window(data: ForecastData) -> int:
    """The test window nearest to the middle one in which the last series was observed.

    In its past, for a trend is drawn of it, and in its future; the middle one if there is none.
    """
    starts = data.starts("test")
    middle = len(starts) // 2
    if data.observed is None:
        return middle
    rows = np.concatenate([[0], np.cumsum(data.observed[:, -1])])
    between = starts + data.seq_len
    past, future = rows[between] - rows[starts], rows[between + data.pred_len] - rows[between]
    good = np.flatnonzero((past > 1) & (future > 0))
    return int(good[np.argmin(np.abs(good - middle))]) if len(good) else middle


def mean_attention(cell: Cell, batch: int = 128) -> np.ndarray:
    """[N, N]: row n is how series n spreads its attention, first layer, mean over test windows."""
    starts = cell.data.starts("test")
    module, kept = _leddam(cell)

    def total(x: jax.Array, mask: jax.Array, view: PyTree) -> jax.Array:
        sown = variables.inspect(module, view, x)
        weights = sown["channel_0"]["attention"]["weights"][0]
        return jnp.sum(jnp.where(mask.reshape(-1, 1, 1), weights, 0), 0)

    call = jax.jit(total)
    sums = [
        np.asarray(call(_past(cell, rows.indices), rows.mask, kept), np.float64)
        for rows in in_order(starts, batch, process=0, processes=1)
    ]
    return np.sum(sums, 0) / len(starts)


def _past(cell: Cell, starts: np.ndarray) -> jax.Array:
    data = cell.data
    return windows(jnp.asarray(data.series), starts, data.seq_len, data.pred_len)[0]


def _leddam(cell: Cell) -> tuple[Any, PyTree]:
    """Leddam itself, without its quantiles, and its best view."""
    return models.core(cell.forecasters["leddam"].module, cell.views["leddam"])


def new_axes(columns: int = 1, *, width: float = 7.0, height: float = 4.2) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")
    for each in np.atleast_1d(axes):
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _kernel(cells: Sequence[Cell]) -> Any:
    figure, axis = new_axes()
    module: Any = _leddam(cells[0])[0]
    before = first_kernel(module)
    offset = np.arange(len(before)) - len(before) // 2
    axis.plot(offset, before, color="0.5", linestyle=":", marker="s", markersize=3,
              label="before training")  # fmt: skip
    parts = []
    chosen = {cell.data.name: cell for cell in reversed(cells)}
    for number, cell in enumerate(reversed(list(chosen.values())[-4:])):
        kernel, bias = learned_kernel(*_leddam(cell))
        axis.plot(
            offset,
            kernel,
            color=GREYS[number],
            linestyle=LINES[number],
            marker="ov^d"[number],
            markersize=4,
            label=f"after, {_titled(cell)} (bias {bias:+.3f})",
        )
        parts.append(f"{kernel.sum():.2f} on {cell.data.name}")
    axis.set(xlabel="tap's offset along the embedding [coordinates]", ylabel="weight (no unit)")
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.set_title(f"Training takes the sum of the kernel from 1 to {', '.join(parts)}")
    axis.legend(frameon=False)
    return figure


def _decomposition(cell: Cell) -> Any:
    """The same kernel where the model uses it, and on the window that was embedded."""
    data = cell.data
    starts = data.starts("test")
    x = _past(cell, starts[middle_window(data) :][:1])
    inspect = jax.jit(variables.inspect, static_argnums=0)
    sown = inspect(*_leddam(cell), x)
    main, rest = (np.asarray(sown[name][0])[0, -1] for name in ("main", "residual"))
    kernel, bias = learned_kernel(*_leddam(cell))
    raw = np.asarray(normalise(x).values)[0, -1]
    trend = np.asarray(smooth(jnp.asarray(raw), jnp.asarray(kernel))) + bias
    figure, (left, right) = new_axes(2, width=11)
    _three(left, np.arange(len(main)), main + rest, main, rest)
    left.set(xlabel="coordinate of the learned embedding (not a time)", ylabel="value (no unit)")
    share = np.var(main) / np.var(main + rest)
    left.set_title(f"In the model: main part has {share:.0%} of the embedding's variance")
    unit, scale = time_unit(data.dates)
    _three(right, np.arange(-data.seq_len + 1, 1) * scale, raw, trend, raw - trend)
    right.set(xlabel=f"time from the last known value [{unit}]",
              ylabel="normalised value (no unit)")  # fmt: skip
    share = np.var(trend) / max(float(np.var(raw)), 1e-12)
    right.set_title(f"On the window of {data.columns[-1]}: trend has {share:.0%} of the variance")
    figure.suptitle(f"{_titled(cell)}: what the learned kernel splits off, middle test window")
    return figure


def _three(axis: Any, place: np.ndarray, whole: Any, smooth_part: Any, rest: Any) -> None:
    axis.plot(place, whole, color="0.65", linewidth=1, label="whole")
    axis.plot(place, smooth_part, color="0", linewidth=2, label="main (trend)")
    axis.plot(place, rest, color="0.3", linewidth=1, linestyle=":", label="residual (seasonal)")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.12 * (high - low))  # room for the legend
    axis.legend(frameon=False, loc="upper right", ncols=3, fontsize="small")


def _forecast(cell: Cell) -> Any:
    data = cell.data
    names = [name for name in cell.views if name in BACKBONES] or list(cell.views)
    found = sample(cell, np.array([middle_window(data)]), names[:DRAWN])
    unit, scale = time_unit(data.dates)
    past, future = data.seq_len, data.pred_len
    figure, axis = new_axes(width=9)
    axis.plot(np.arange(-past + 1, 1) * scale, found.past[0, :, -1], color="0.6", label="past")
    ahead = np.arange(1, future + 1) * scale
    axis.plot(ahead, found.truth[0, :, -1], color="0.6", linewidth=3, label="truth")
    styles = {"Leddam": ("-", "0"), "DLinear": ("--", "0.2"), "iTransformer": ("-.", "0.2")}
    errors = {}
    observed = not np.isnan(found.truth[0, :, -1]).all()
    deviation = data.standardiser.scale[-1]
    for name, each in found.forecasts.items():
        line, grey = styles.get(name, (":", "0.35"))
        error = (each - found.truth)[0, :, -1] / deviation
        errors[name] = float(np.mean(error[~np.isnan(error)] ** 2)) if observed else np.nan
        axis.plot(ahead, each[0, :, -1], color=grey, linestyle=line, linewidth=1.4,
                  label=f"{name} (MSE {errors[name]:.3f})")  # fmt: skip
    axis.axvline(0, color="0.8", linewidth=1)
    axis.set(xlabel=f"time from the last known value [{unit}]",
             ylabel=f"{data.columns[-1]} [unit of the file]")  # fmt: skip
    best = min(errors, key=lambda name: errors[name])
    window = f"{_titled(cell)}, middle test window, series {data.columns[-1]}"
    axis.set_title(f"{window}: {f'{best} is closest' if observed else 'nothing observed'}")
    axis.legend(frameon=False, ncols=2, fontsize="small")
    return figure


def _attention(cell: Cell) -> Any:
    weights = mean_attention(cell)
    names, count = cell.data.columns, len(cell.data.columns)
    figure, axis = new_axes(width=6.2, height=5)
    image = axis.imshow(weights, cmap="Greys", vmin=0, vmax=weights.max())
    figure.colorbar(image, ax=axis, label="mean attention weight (no unit), each row sums to 1")
    if count <= 30:
        axis.set_xticks(range(count), names, rotation=90 if count > 8 else 0)
        axis.set_yticks(range(count), names)
    if count <= 10:
        for (row, column), weight in np.ndenumerate(weights):
            dark = weight > 0.6 * weights.max()
            axis.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=8,
                      color="white" if dark else "black")  # fmt: skip
    axis.set(xlabel="series attended to (key)", ylabel="series that attends (query)")
    other = 1 - np.trace(weights) / count
    axis.set_title(f"{_titled(cell)}: {other:.0%} of attention\ngoes to other series "
                   f"(uniform: {1 - 1 / count:.0%})")  # fmt: skip
    return figure


def _titled(cell: Cell) -> str:
    """The cell's name; a benchmark that was not found must not pass for itself."""
    return f"{cell.name} (generated)" if cell.data.generated else cell.name


def time_unit(dates: np.ndarray | None) -> tuple[str, float]:
    """(name of a unit, rows' distance in it) for the time axis."""
    if dates is None or len(dates) < 2:
        return "rows", 1.0
    seconds = float(np.median(np.diff(dates)).astype(np.int64))
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= length / 4:
            return name, seconds / length
    return "seconds", seconds
