"""Generated series with known trend and lag structure, and files of the public layouts."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rflib.core.checks import choose, positive_int
from rflib.core.errors import UserError
from rflib.data import write_series

PERIODS = (24, 168)  # rows: a day and a week of hourly data
LARGEST_LAG = 12  # rows
FACTORS = 3


class Synthetic(NamedTuple):
    """A generated series [L, N] and its truth: values = trend + seasonal + shared + noise.

    lags[n, j]: rows by which shared factor j reaches series n late; loadings[n, j] its weight.
    """

    values: Float[np.ndarray, "L N"]
    trend: Float[np.ndarray, "L N"]
    seasonal: Float[np.ndarray, "L N"]
    shared: Float[np.ndarray, "L N"]
    lags: Int[np.ndarray, "N J"]
    loadings: Float[np.ndarray, "N J"]


def generate(seed: int, *, rows: int = 3000, channels: int = 5) -> Synthetic:
    """Draws N = `channels` dependent series of L = `rows` rows.

        x_n(t) = tau_n(t) + sum_h A_nh sin(2 pi t / rho_h + phi_nh)
                 + sum_j W_nj z_j(t - lag_nj) + e_n(t)

    rho = (24, 168); A_n1 ~ U(.5, 1.5), A_n2 ~ U(.2, .6), phi uniform. tau is piecewise linear
    through 6 knots in [-2, 2], the inner ones at random times, plus a logistic step of height
    U(-2, 2) and width L / 40 at a random time. z are 3 unit-variance AR(1) factors (coefficient
    .95), W ~ N(0, .5^2), lag uniform on 0..12: what one series shows now another shows later. e is
    AR(1) noise (coefficient .3, standard deviation .3).
    """
    rows, channels = positive_int("rows", rows), positive_int("channels", channels)
    if seed < 0:
        raise UserError(f"seed={seed} must be at least 0")
    stream = np.random.Generator(np.random.PCG64(seed))
    trend = _trend(stream, rows, channels)
    seasonal = _seasonal(stream, rows, channels)
    factors = _autoregression(stream, rows + LARGEST_LAG, FACTORS, 0.95, 1.0)
    loadings = stream.normal(0, 0.5, (channels, FACTORS))
    lags = stream.integers(0, LARGEST_LAG + 1, (channels, FACTORS))
    times = np.arange(rows)[:, None, None] + LARGEST_LAG - lags  # [L, N, J]
    shared = np.einsum("tnj,nj->tn", factors[times, np.arange(FACTORS)], loadings)
    noise = _autoregression(stream, rows, channels, 0.3, 0.3)
    return Synthetic(trend + seasonal + shared + noise, trend, seasonal, shared, lags, loadings)


def _trend(stream: np.random.Generator, rows: int, channels: int) -> np.ndarray:
    time = np.arange(rows, dtype=float)
    trend = np.empty((rows, channels))
    for channel in range(channels):
        inner = np.sort(stream.uniform(0, rows - 1, 4))
        knots = np.concatenate([[0.0], inner, [rows - 1.0]])
        line = np.interp(time, knots, stream.uniform(-2, 2, 6))
        height, middle = stream.uniform(-2, 2), stream.uniform(0, rows)
        # Clipped where the step is over, so that exp does not overflow in long series.
        place = np.clip((time - middle) / (rows / 40), -40, 40)
        trend[:, channel] = line + height / (1 + np.exp(-place))
    return trend


def _seasonal(stream: np.random.Generator, rows: int, channels: int) -> np.ndarray:
    time = np.arange(rows)[:, None]
    total = np.zeros((rows, channels))
    for period, (low, high) in zip(PERIODS, ((0.5, 1.5), (0.2, 0.6)), strict=True):
        amplitude = stream.uniform(low, high, channels)
        phase = stream.uniform(0, 2 * np.pi, channels)
        total += amplitude * np.sin(2 * np.pi * time / period + phase)
    return total


def _autoregression(
    stream: np.random.Generator, rows: int, width: int, coefficient: float, deviation: float
) -> np.ndarray:
    """Stationary AR(1) columns [rows, width] of standard deviation `deviation`."""
    shocks = stream.normal(0, deviation, (rows, width))
    shocks[1:] *= np.sqrt(1 - coefficient**2)
    values = shocks
    for row in range(1, rows):
        values[row] += coefficient * values[row - 1]
    return values


class _FileForm(NamedTuple):
    folder: str
    file: str
    channels: int
    minutes: int
    names: tuple[str, ...] | None = None  # None: numbered, the last one OT
    start: str = "2016-07-01"


_ETT = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
FORMS = {
    "ETTh1": _FileForm("ETT-small", "ETTh1.csv", 7, 60, _ETT),
    "ETTh2": _FileForm("ETT-small", "ETTh2.csv", 7, 60, _ETT),
    "ETTm1": _FileForm("ETT-small", "ETTm1.csv", 7, 15, _ETT),
    "ETTm2": _FileForm("ETT-small", "ETTm2.csv", 7, 15, _ETT),
    "Weather": _FileForm("weather", "weather.csv", 21, 10, None, "2020-01-01"),
    "Electricity": _FileForm("electricity", "electricity.csv", 321, 60),
    "Traffic": _FileForm("traffic", "traffic.csv", 862, 60),
    "Solar": _FileForm("Solar", "solar_AL.txt", 137, 10),
    "exchange_rate": _FileForm("exchange_rate", "exchange_rate.csv", 8, 1440, None, "1990-01-01"),
    "national_illness": _FileForm("illness", "national_illness.csv", 7, 10080, None, "2002-01-01"),
}


def write_layout(
    root: str | Path,
    name: str,
    values: Float[np.ndarray, "L N"],
    *,
    folders: bool = True,
    compressed: bool = False,
) -> Path:
    """Writes `values` as the public file of data set `name` under `root` and returns its path.

    Args:
        folders: in the usual subfolder (ETT-small/, weather/, ...), else flat in `root`.
        compressed: gzip, with .gz added to the name.

    Solar is written as published: no header and no dates.
    """
    form = choose("name", name, FORMS)
    rows, channels = values.shape
    names = form.names
    if names is None:
        names = (*map(str, range(channels - 1)), "OT")
    if len(names) != channels:
        raise UserError(f"values have {channels} columns; {name} has {', '.join(names)}")
    folder = Path(root) / (form.folder if folders else "")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (form.file + (".gz" if compressed else ""))
    if name == "Solar":
        return write_series(path, values, None)
    dates = np.datetime64(form.start, "s") + np.arange(rows) * np.timedelta64(
        form.minutes * 60, "s"
    )
    return write_series(path, values, names, dates=dates)
