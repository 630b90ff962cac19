"""The forecasting benchmarks: files, splits, scaling and windows of the protocol; own CSV files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rflib.core.checks import choose, one_of, positive_int
from rflib.core.errors import UserError
from rflib.data import (
    Part,
    Parts,
    Remote,
    Series,
    Standardiser,
    at_rows,
    by_share,
    check_dates,
    check_series,
    find,
    fit_standardiser,
    permutation,
    read_series,
    select,
    shuffled,
    starts,
    window_count,
)
from rflib.methods.leddam.gaps import fill_gaps, observed_share
from rflib.methods.leddam.generator import FORMS, PERIODS, generate

_ETT_URL = (
    "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/"
    "1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/"
)
_CONTRASTIVE_URL = (
    "https://raw.githubusercontent.com/junwoopark92/Self-Supervised-Contrastive-Forecsating/"
    "f394705adbf5217811276f5e59576c6e7ea7586c/dataset/"
)
REMOTES = {
    "ETTh1": Remote(
        _ETT_URL + "ETTh1.csv",
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
        "CC BY-ND 4.0",
    ),
    "ETTh2": Remote(
        _ETT_URL + "ETTh2.csv",
        "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
        "CC BY-ND 4.0",
    ),
    "exchange_rate": Remote(
        _CONTRASTIVE_URL + "exchange_rate/exchange_rate.csv",
        "d55e7aa2641009814a18ba3279431b13f6d413b0eab195b9ff21988d8cf94e97",
        "none stated",
    ),
    "national_illness": Remote(
        _CONTRASTIVE_URL + "illness/national_illness.csv",
        "8594cecb98c6f2f9dc014eca11c4d5d1e38ad5ce6ed0592d4abe65b146fce395",
        "US-government data, none stated",
    ),
}
_ARCHIVE = "It is in the benchmark archive that github.com/thuml/iTransformer links to."
_HINTS = {name: f"It is at {_ETT_URL}{name}.csv (CC BY-ND 4.0)." for name in ("ETTm1", "ETTm2")}


class Layout(NamedTuple):
    """How a data set is published. season: rows of its naive period; header: None is by look."""

    rows: int
    season: int
    month: int = 0  # rows of a 30-day month where the split is by months, else 0
    header: bool | None = None


LAYOUTS = {
    "ETTh1": Layout(17420, 24, 720),
    "ETTh2": Layout(17420, 24, 720),
    "ETTm1": Layout(69680, 96, 2880),
    "ETTm2": Layout(69680, 96, 2880),
    "Weather": Layout(52696, 144),
    "Electricity": Layout(26304, 24),
    "Traffic": Layout(17544, 24),
    "Solar": Layout(52560, 144, header=False),
    "exchange_rate": Layout(7588, 7),
    "national_illness": Layout(966, 52),
}
GENERATED = "synthetic"
FARTHEST, LARGEST = 1e15, 1e150  # standardised and in physical units: squares must be finite


@dataclass(frozen=True, eq=False)
class ForecastData:
    """One multivariate series, ready for windows.

    name: the data set. origin: the file, or the generator and its seed. generated: whether it is
    the latter. columns: names of the N series. values: physical units. series: standardised with
    the training rows' statistics, float32. parts: rows of train, valid and test, the last two with
    look-back. season: rows of the naive period. dates: datetime64[s], or None.
    observed: None, or, where the file has gaps, which values it has: elsewhere `values` is NaN, and
    `series` the last value before, or the training mean if there is none.
    """

    name: str
    origin: str
    generated: bool
    columns: tuple[str, ...]
    values: Float[np.ndarray, "L N"]
    series: Float[np.ndarray, "L N"]
    dates: np.ndarray | None
    standardiser: Standardiser
    parts: Parts
    seq_len: int
    pred_len: int
    season: int
    observed: Bool[np.ndarray, "L N"] | None = None

    def starts(self, part: str) -> Int[np.ndarray, "M"]:
        """First rows of all windows of "train", "valid" or "test", in time order."""
        one_of("part", part, Parts._fields)
        return starts(getattr(self.parts, part), self.seq_len, self.pred_len)

    def density(self, part: str) -> float:
        """Share of the targets of a part's windows that were observed."""
        return observed_share(self.observed, self.starts(part), self.seq_len, self.pred_len)


def filenames(name: str) -> tuple[str, ...]:
    """The paths below a root at which a data set's file is looked for: flat, then in its folder."""
    choose("name", name, LAYOUTS)
    form = FORMS[name]
    stem = form.file.rsplit(".", 1)[0]
    files = [form.file, f"{form.file}.gz"]
    if not form.file.endswith(".csv"):
        files += [f"{stem}.csv", f"{stem}.csv.gz"]
    return (*files, *(f"{form.folder}/{file}" for file in files))


def is_own_file(path: str | Path) -> bool:
    """Whether `path` is a file that is none of the benchmarks', by its name."""
    known = {Path(file).name for name in LAYOUTS for file in filenames(name)}
    return bool(path) and Path(path).expanduser().is_file() and Path(path).name not in known


def split(name: str, length: int, seq_len: int) -> Parts:
    """The benchmark's parts of a series of `length` rows.

    ETT: 12, 4 and 4 months of 30 days, later rows unused. Solar: floor(.7 L), floor(.1 L) and the
    last floor(.2 L) rows. All others, own files too: floor(.7 L), the rest, floor(.2 L).
    """
    month = LAYOUTS[name].month if name in LAYOUTS else 0
    if month:
        if length < 20 * month:
            raise UserError(f"{name} has {length} rows; its 20 months take {20 * month}")
        return at_rows(12 * month, 16 * month, 20 * month, seq_len)
    parts = by_share(length, seq_len)
    if name == "Solar":
        valid = Part(parts.valid.start, parts.train.stop + int(length * 0.1))
        return parts._replace(valid=valid)
    return parts


def load(
    name: str,
    *,
    path: str | Path = "",
    seq_len: int = 96,
    pred_len: int = 96,
    target: str = "",
    rows: int = 3000,
    channels: int = 5,
    seed: int = 0,
    gaps: bool = False,
    required: bool = False,
    notice: Callable[[str], None] = print,
) -> ForecastData:
    """A benchmark, a CSV file of one's own, or generated series.

    Args:
        name: one of `LAYOUTS`, or "synthetic".
        path: a directory that holds the benchmark's file; or that file; or any other CSV file,
            which is then read as own data, whatever `name` says, and split 70/10/20.
        seq_len, pred_len: rows of a window's past and future.
        target: column that is moved to the end; "" is OT if there is one, else none.
        rows, channels, seed: of the generator, used for "synthetic" and, with a notice, for a
            benchmark that is not found, unless `required`.
        gaps: missing values are gaps, filled where they are a past and not counted where they are
            a future; an error otherwise.

    Raises:
        UserError: nothing found (with the ways to get it), a malformed file (line and column), a
            series too short for one window in each part (with the rows needed), a part without one
            observed target.
    """
    positive_int("seq_len", seq_len)
    positive_int("pred_len", pred_len)
    if is_own_file(path):
        return _own(Path(path).expanduser(), seq_len, pred_len, target, gaps)
    one_of("name", name, (*LAYOUTS, GENERATED))
    if name == GENERATED:
        if path and not Path(path).expanduser().exists():  # a mistyped file of one's own
            raise UserError(f"path={str(path)!r} does not exist")
        return _generated(name, rows, channels, seed, seq_len, pred_len)
    found = find(
        "leddam",
        filenames(name),
        path=path,
        remotes=[REMOTES[name]] if name in REMOTES else [],
        hint="" if name in REMOTES else _HINTS.get(name, _ARCHIVE),
        instead=None if required else f"generated data (seed {seed})",
        notice=notice,
    )
    if found is None:
        return _generated(name, rows, channels, seed, seq_len, pred_len)
    series = read_series(found, header=LAYOUTS[name].header, gaps=gaps)
    published = (LAYOUTS[name].rows, FORMS[name].channels)
    if series.values.shape != published:
        notice(f"{found}: {series.values.shape} rows and columns; {name} as published: {published}")
    return _prepare(name, series, seq_len, pred_len, target, LAYOUTS[name].season)


def _own(path: Path, seq_len: int, pred_len: int, target: str, gaps: bool) -> ForecastData:
    series = read_series(path, gaps=gaps)
    check_dates(series)
    check_series(series, least=least_rows(seq_len, pred_len))
    parts = split("", len(series.values), seq_len)
    check_series(series, rows=(parts.train.start, parts.train.stop))
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    if name in (*LAYOUTS, GENERATED):  # own data are compared with nothing published
        name = f"own-{name}"
    # "" and not the file's stem: own data are split 70/10/20 whatever they are called.
    data = _prepare("", series, seq_len, pred_len, target, naive_season(series.dates))
    return replace(data, name=name)


def _generated(
    name: str, rows: int, channels: int, seed: int, seq_len: int, pred_len: int
) -> ForecastData:
    values = generate(seed, rows=rows, channels=channels).values
    names = (*map(str, range(channels - 1)), "OT")
    origin = f"generated data (seed {seed})"
    series = Series(values, names, None, "date", 0, origin)
    data = _prepare("", series, seq_len, pred_len, "", PERIODS[0])
    return replace(data, name=name, generated=True)


def _prepare(
    name: str, series: Series, seq_len: int, pred_len: int, target: str, season: int
) -> ForecastData:
    length = len(series.values)
    parts = split(name, length, seq_len)
    for part, rows in zip(Parts._fields, parts, strict=True):
        try:
            window_count(rows.rows, seq_len, pred_len)
        except UserError as error:
            need = f"; the series needs {least_rows(seq_len, pred_len)} rows"
            fixed = name in LAYOUTS and LAYOUTS[name].month
            raise UserError(
                f"{series.source}: no window in the {part} part of the {length} rows: {error}"
                f"{'' if fixed else need}"
            ) from error
    target = target or ("OT" if "OT" in series.names else series.names[-1])
    ordered = [column for column in series.names if column != target] + [target]
    series = select(series, ordered)
    standardiser = fit_standardiser(series.values[parts.train.start : parts.train.stop])
    missing = np.isnan(series.values)
    data = ForecastData(
        name=name,
        origin=series.source,
        generated=False,
        columns=series.names,
        values=series.values,
        series=standardised(series, standardiser),
        dates=series.dates,
        standardiser=standardiser,
        parts=parts,
        seq_len=seq_len,
        pred_len=pred_len,
        season=season,
        observed=~missing if missing.any() else None,
    )
    for part in Parts._fields:
        try:
            data.density(part)
        except UserError as error:
            raise UserError(f"{series.source}: the {part} part: {error}") from error
    return data


def standardised(series: Series, standardiser: Standardiser) -> Float[np.ndarray, "L N"]:
    """The series as models take it: float32, gaps filled.

    Raises:
        UserError: naming the first value whose square, here or standardised, is no number.
    """
    found = standardiser.apply(fill_gaps(series.values, standardiser.mean))
    far = (np.abs(found) > FARTHEST) | (np.abs(series.values) > LARGEST)
    if far.any():
        row, column = map(int, np.argwhere(far)[0])
        raise UserError(
            f"{series.where(row, column)}: {series.values[row, column]:g} is too large, or too far "
            "from the training rows, to compute with: mend it"
        )
    return found.astype(np.float32)


def least_rows(seq_len: int, pred_len: int) -> int:
    """The rows from which a 70/10/20 split has a window in every part."""
    rows = 5 * pred_len  # the test part alone needs pred_len rows of its own
    while True:
        train, test = int(rows * 0.7), int(rows * 0.2)
        if train >= seq_len + pred_len and min(test, rows - train - test) >= pred_len:
            return rows
        rows += 1


def naive_season(dates: np.ndarray | None) -> int:
    """Rows of a day for data finer than daily, of a week for daily, of a year for coarser data."""
    if dates is None or len(dates) < 2:
        return 24
    seconds = int(np.median(np.diff(dates)).astype(np.int64))
    day = 86400
    if 0 < seconds < day:
        return day // seconds
    return 7 if seconds < 7 * day else max(1, round(365.25 * day / seconds))


def train_batches(
    data: ForecastData, batch: int, *, seed: int, drop_last: bool = True
) -> Callable[[int], Int[np.ndarray, "rows"]]:
    """step -> window starts of this process's rows of a shuffled training batch."""
    first = data.starts("train")
    order = shuffled(len(first), batch, seed=seed, drop_last=drop_last)
    return lambda step: first[order(step)]


def valid_starts(
    data: ForecastData, batch: int, *, drop_last: bool = False, seed: int = 0, epoch: int = 0
) -> Int[np.ndarray, "M"]:
    """Window starts of the validation part.

    drop_last=True is the official loader: shuffled anew each epoch, and the incomplete last batch
    is dropped, so that the validation score is slightly random. The test part has no such option.
    """
    every = data.starts("valid")
    if not drop_last:
        return every
    if batch > len(every):
        raise UserError(f"batch={batch} with drop_last leaves none of {len(every)} windows")
    kept = permutation(len(every), seed=seed, epoch=epoch)[: len(every) // batch * batch]
    return every[kept]
