"""Data of the experiments: forest fires, any CSV by columns, nets of a sphere, a teacher."""

import csv
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.data import find, read_bytes

ALGERIAN = "Algerian_forest_fires_dataset_UPDATE.csv"
COLUMNS = ("day", "month", "year", "Temperature", "RH", "Ws", "Rain", "FFMC", "DMC", "DC", "ISI",
           "BUI", "FWI", "Classes")  # fmt: skip
SETS = ("digits-3-8", "digits-parity", "breast_cancer", "diabetes")
STATISTICS = ("train", "all")


class Labelled(NamedTuple):
    """Raw rows x [N, d], labels y [N] (±1, or real), names of the d columns; rows that were mended.

    origin: the file, the package, or the generator.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...]
    origin: str
    repairs: int = 0


class Split(NamedTuple):
    """Standardised rows, unit vectors if asked for, in two parts; order: the rows of either."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    order: np.ndarray


def algerian(
    path: str | Path = "",
    *,
    region: bool = False,
    required: bool = True,
    notice: Callable[[str], None] = print,
) -> Labelled:
    """The Algerian forest fires of 2012 (UCI, CC BY 4.0): 244 days of two regions, 138 with fire.

    d = 11: day of the year, then temperature (°C), relative humidity (%), wind speed (km/h), rain
    (mm) and six indices of the fire-weather system. y = +1 for fire, −1 for none. One row of the
    public file, 14/7/2012 of the second region, has two cells merged ("14.6 9") and the rest moved
    up: it is mended, and counted in `repairs`.

    Args:
        path: the file or its directory; "" looks in $RFLIB_DATA/jacobian_ntk.
        region: the region (0, 1) instead of the day.
        required: otherwise, without the file, rows of the same shape are generated.
        notice: receives a line if they are.

    Raises:
        UserError: no file, or a row that is none, with its line.
    """
    place = find(
        "jacobian_ntk",
        [ALGERIAN],
        path=path,
        hint="It is the UCI set 'Algerian Forest Fires'.",
        instead=None if required else "generated data",
        notice=notice,
    )
    if place is None:
        return generated(244, 11)
    rows, labels, repairs, where = [], [], 0, -1
    text = read_bytes(place).decode("utf-8-sig")
    for number, cells in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in cells]
        if "Region Dataset" in cells[0] if cells else False:
            where += 1
        elif any(cells) and cells[0] != COLUMNS[0]:
            whole, mended = _mended(cells, f"{place} line {number}")
            repairs += mended
            day = where if region else datetime.date(*map(int, whole[2::-1])).timetuple().tm_yday
            rows.append([day, *map(float, whole[3:13])])
            labels.append(1.0 if whole[13] == "fire" else -1.0)
    first = "region" if region else "day of year"
    names = (first, *COLUMNS[3:13])
    return Labelled("algerian", np.array(rows), np.array(labels), names, str(place), repairs)


def _mended(cells: list[str], source: str) -> tuple[list[str], bool]:
    """The 14 cells of a row; two numbers in one cell are parted if another cell is empty."""
    mended = any(" " in cell for cell in cells[:13])
    if mended:
        parted = [part for cell in cells[:13] for part in cell.split()]
        cells = [*parted, *cells[13:]]
    try:
        if len(cells) != len(COLUMNS) or cells[13] not in ("fire", "not fire"):
            raise ValueError
        for cell in cells[:13]:
            float(cell)
        datetime.date(*map(int, cells[2::-1]))
    except ValueError as error:
        raise UserError(f"{source}: not a row of {', '.join(COLUMNS)}: {cells}") from error
    return cells, mended


def read_table(
    path: str | Path, label: str = "", *, features: Sequence[str] = (), positive: str = ""
) -> Labelled:
    """Any CSV with a header: numbers in the columns `features`, a label in the column `label`.

    Args:
        path: the file, plain or gzip. Separator comma, semicolon or tab, by the header.
        label: the column of labels; the last one if empty.
        features: names of the d columns; all but the label if empty.
        positive: cells of the label equal to it are +1 and all others −1; without, the labels are
            numbers.

    Raises:
        UserError: no text, no such column (with the nearest ones), one that is there twice or is
            input and label at once, a cell that is no finite number (with line and column), fewer
            than two rows, all labels alike, or all inputs.
    """
    header, body = _cells(path)
    label = label or header[-1]
    features = tuple(features) or tuple(name for name in header if name != label)
    places = [_place(path, header, name) for name in (*features, label)]
    _check_columns(path, features, label)
    x, y = [], []
    for number, row in enumerate(body, 2):
        if not any(row):
            continue
        if len(row) != len(header):
            raise UserError(
                f"{path} line {number}: {len(row)} cells, {len(header)} are in the header"
            )
        *cells, target = (row[place] for place in places)
        x.append(
            [_number(path, number, name, cell) for name, cell in zip(features, cells, strict=True)]
        )
        if positive:
            y.append(1.0 if target == positive else -1.0)
        else:
            hint = ": if labels are words, say which one is positive"
            y.append(_number(path, number, label, target, hint))
    if len(x) < 2:
        raise UserError(f"{path}: two rows or more are needed, there are {len(x)}")
    if len(set(y)) < 2:
        what = f"only one class, positive={positive!r}," if positive else f"only the label {y[0]:g}"
        raise UserError(f"{path}: {what} in column {label!r}")
    if not np.ptp(x, axis=0).any():
        raise UserError(f"{path}: all rows are alike in {', '.join(features)}")
    return Labelled(Path(path).stem, np.array(x), np.array(y), features, str(path))


def _cells(path: str | Path) -> tuple[list[str], list[list[str]]]:
    """The header, and the lines below it, cells stripped."""
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
        if not lines or not lines[0].strip():
            raise UserError(f"{path}: the first line must be a header, it is empty")
        separator = max(",;\t", key=lines[0].count)
        header, *body = (
            [cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)
        )
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: no CSV text in UTF-8 ({error})") from error
    return header, body


def _check_columns(path: str | Path, features: tuple[str, ...], label: str) -> None:
    if not features:
        raise UserError(f"{path}: there is no column of inputs beside the labels {label!r}")
    checks.distinct("columns", features)
    if label in features:
        raise UserError(f"{path}: column {label!r} is the label, and among the inputs {features}")


def _place(path: str | Path, header: list[str], name: str) -> int:
    if name not in header:
        near = checks.nearest(name, header) or header
        raise UserError(f"{path}: no column {name!r}; there is {', '.join(near)}")
    if header.count(name) > 1:
        raise UserError(f"{path}: the header has column {name!r} twice")
    return header.index(name)


def _number(path: str | Path, line: int, column: str, cell: str, hint: str = "") -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UserError(
            f"{path} line {line}, column {column!r}: {cell!r} is no finite number{hint}"
        )
    return value


def shipped(name: str) -> Labelled:
    """A set that scikit-learn ships: its handwritten digits, breast cancers, or diabetes.

    "digits-3-8" (3 is −1, 8 is +1) and "digits-parity" (even is +1), d = 64; "breast_cancer",
    d = 30; "diabetes", d = 10, real labels, standardised.

    Raises:
        UserError: an unknown name, or scikit-learn is not installed.
    """
    checks.one_of("name", name, SETS)
    try:
        from sklearn import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"{name} needs scikit-learn: pip install scikit-learn") from error
    kind, *digits = name.split("-")
    found = getattr(datasets, f"load_{kind}")()
    x, y = np.asarray(found.data, float), np.asarray(found.target, float)
    if digits == ["3", "8"]:
        keep = np.isin(y, (3, 8))
        x, y = x[keep], np.where(y[keep] == 8, 1.0, -1.0)
    elif digits:
        y = np.where(y % 2 == 0, 1.0, -1.0)
    elif kind == "breast_cancer":
        y = 2 * y - 1
    else:
        y = (y - y.mean()) / y.std()
    columns = tuple(str(each) for each in getattr(found, "feature_names", range(x.shape[1])))
    return Labelled(name, x, y, columns, f"scikit-learn {kind}")


def generated(n: int, d: int, *, seed: int = 0) -> Labelled:
    """Rows with correlated columns, and the sign of a smooth function of them as label."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) * 0.7 ** np.arange(d)[:, None]
    x = rng.normal(size=(n, d)) @ mixing
    unit = unit_rows(standardised(x, x))
    score = unit @ rng.normal(size=d) + np.sin(3 * unit[:, 0])
    y = np.where(score > np.median(score), 1.0, -1.0)
    return Labelled("generated", x, y, tuple(map(str, range(d))), f"generator, seed {seed}")


def standardised(x: Float[np.ndarray, "N d"], by: Float[np.ndarray, "M d"]) -> np.ndarray:
    """(x − mean) / (population standard deviation) of the rows `by`; constant columns become 0."""
    scale = by.std(0)
    shifted = x - by.mean(0)
    return np.where(scale > 0, shifted / np.where(scale > 0, scale, 1), 0.0)


def unit_rows(x: Float[np.ndarray, "N d"]) -> np.ndarray:
    """Every row divided by its Euclidean norm; a row of zeros stays."""
    size = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(size > 0, size, 1)


def split(
    raw: Labelled, n_train: int, *, seed: int = 0, statistics: str = "train", unit: bool = True
) -> Split:
    """The first n_train rows of a random order for training and the others for testing.

    Args:
        raw: the rows. n_train: 1 to N.
        seed: of `numpy.random.default_rng(seed).permutation(N)`.
        statistics: standardise by the "train" rows, or by "all".
        unit: scale rows to unit norm, as the theory has them.
    """
    n = len(raw.x)
    checks.in_range("n_train", checks.positive_int("n_train", n_train), 1, n)
    checks.one_of("statistics", statistics, STATISTICS)
    order = np.random.default_rng(seed).permutation(n)
    rows = standardised(raw.x, raw.x[order[:n_train]] if statistics == "train" else raw.x)
    rows = unit_rows(rows) if unit else rows
    train, test = order[:n_train], order[n_train:]
    return Split(rows[train], raw.y[train], rows[test], raw.y[test], order)


def sphere_net(n: int, d: int = 4, *, seed: int = 0, candidates: int = 20_000) -> np.ndarray:
    """n unit vectors of R^d far from each other [n, d]: farthest-point sampling.

    Out of `candidates` normalised Gaussian vectors of `numpy.random.default_rng(seed)`, from the
    first on, each next is the one farthest from all taken. The first n of a larger net are the net.
    """
    checks.in_range(
        "n", checks.positive_int("n", n), 1, checks.positive_int("candidates", candidates)
    )
    points = unit_rows(np.random.default_rng(seed).normal(size=(candidates, d)))
    taken = [0]
    distance = np.linalg.norm(points - points[0], axis=1)
    while len(taken) < n:
        taken.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(points - points[taken[-1]], axis=1))
    return points[taken]


def teacher(x: Float[np.ndarray, "N d"]) -> tuple[np.ndarray, np.ndarray]:
    """y = sin(3 x₁) + x₂ x₃ [N] and its Jacobian [N, d], in ambient coordinates; d >= 3."""
    if x.shape[1] < 3:
        raise UserError(f"the teacher needs d >= 3, not {x.shape[1]}")
    jacobian = np.zeros_like(x)
    jacobian[:, 0] = 3 * np.cos(3 * x[:, 0])
    jacobian[:, 1], jacobian[:, 2] = x[:, 2], x[:, 1]
    return np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2], jacobian
