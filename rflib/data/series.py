"""A multivariate series in a CSV file: reading with checks that name line and column, writing."""

import contextlib
import csv
import gzip
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.checks import nearest
from rflib.core.errors import UserError
from rflib.data.dates import looks_like_date, parse_dates
from rflib.data.files import read_bytes

DATE_NAMES = ("date", "dates", "time", "datetime", "timestamp")
_MISSING = {"", "na", "n/a", "nan", "null", "none", "nil", "-", "?", "#n/a"}


class Series(NamedTuple):
    """values [L, N] in file order of rows; names of the N columns; dates [L] or None.

    A value is NaN where it is missing, which only `read_series(..., gaps=True)` lets through.
    first_line: line of the file (from 1) that holds row 0, for messages. source: the file.
    """

    values: Float[np.ndarray, "length channels"]
    names: tuple[str, ...]
    dates: np.ndarray | None
    date_name: str
    first_line: int
    source: str

    def where(self, row: int, column: int) -> str:
        """`my.csv line 12, column 'OT'`."""
        return f"{self.source} line {self.first_line + row}, column {self.names[column]!r}"


class _Table(NamedTuple):
    """The text of a file, cut into a header and lines of equally many cells."""

    source: str
    names: list[str]
    body: list[str]
    delimiter: str
    first_line: int


def read_series(path: str | Path, *, header: bool | None = None, gaps: bool = False) -> Series:
    """Reads a CSV file (also .gz) of numeric columns and at most one date column.

    The delimiter is the comma, semicolon or tab that the first line has most of. The date column is
    the one named date, dates, time, datetime or timestamp, or a first column that has no name or
    whose first cell is a date; its cells become `dates` if they are dates (YYYY-MM-DD hh:mm:ss
    and shorter, also with slashes or without zero padding, or DD.MM.YYYY); a column of plain
    numbers in its place (a row index, epoch seconds) is left out.

    Args:
        path: the file.
        header: whether the first line holds column names. None: it does if one of its cells is
            neither a number nor a date; an error if it looks like column names that are numbers.
            Without header the names are "0", "1", ...
        gaps: a missing value (an empty cell, or a word such as NA, nan, null) becomes NaN; it is an
            error otherwise. Other cells that are no finite numbers always are.

    Raises:
        UserError: naming file, line and column, for a missing value, a cell that is no number or no
            date, a line with another number of cells, an empty line, a repeated column name, a
            file without rows or without numeric columns.
    """
    table = _table(path, header)
    date = _date_column(table)
    columns = [index for index in range(len(table.names)) if index != date]
    if not columns:
        raise UserError(f"{table.source}: there is no column of numbers")
    values = _numbers(table, columns, gaps)
    dates = None
    if date is not None:
        cells = [line.split(table.delimiter, date + 1)[date] for line in table.body]
        dates = parse_dates(cells, table.source, table.names[date], table.first_line)
    names = tuple(table.names[index] for index in columns)
    date_name = "date" if date is None else table.names[date]
    return Series(values, names, dates, date_name, table.first_line, table.source)


def _text(path: str | Path) -> str:
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # units such as W/m² written by old spreadsheets
    if "\0" in text[:1000]:
        raise UserError(f"{path}: not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _table(path: str | Path, header: bool | None) -> _Table:
    source, lines = str(path), _text(path).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{source}: the file is empty")
    if "" in lines:
        raise UserError(f"{source} line {lines.index('') + 1}: an empty line")
    delimiter = max(",;\t", key=lines[0].count)
    first = [cell.strip() for cell in _fields(lines[:1], delimiter, source)[0]]
    if header is None:
        header = not all(_is_number(cell) or looks_like_date(cell) for cell in first)
        if not header and _names_in_numbers(first, lines[1:2], delimiter):
            shown = ", ".join(first[:4]) + (", ..." if len(first) > 4 else "")
            raise UserError(
                f"{source} line 1: {shown} may be the columns' names or their first values. If "
                "they are names, let one of them begin with a letter; if they are values, put a "
                "line with names above them"
            )
    body = lines[1:] if header else lines
    if not body:
        raise UserError(f"{source}: a header and no rows")
    if any('"' in line for line in body):
        rows = _fields(body, delimiter, source)
        body = [delimiter.join(cell.replace(delimiter, " ") for cell in row) for row in rows]
    table = _Table(
        source,
        first if header else [str(index) for index in range(len(first))],
        body,
        delimiter,
        2 if header else 1,
    )
    _check_shape(table)
    return table


def _names_in_numbers(first: list[str], second: list[str], delimiter: str) -> bool:
    """Whether a first line of numbers looks like names, as a table without names is written.

    Several different whole numbers are names if they count up from 0 or 1, three of them at least,
    or if no cell of the next line is a whole number.
    """
    if len(first) < 2 or len(set(first)) < len(first) or not all(map(str.isdecimal, first)):
        return False
    numbers = list(map(int, first))
    counting = numbers[0] in (0, 1) and all(b - a == 1 for a, b in itertools.pairwise(numbers))
    below = [cell.strip() for line in second for cell in line.split(delimiter)]
    whole = any(cell.lstrip("-+").isdecimal() for cell in below)
    unlike = any(map(_is_number, below)) and not whole
    return (counting and len(first) > 2) or unlike


def _fields(lines: list[str], delimiter: str, source: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:  # a cell of more than 131072 characters: no table of numbers
        raise UserError(f"{source}: cannot be read as CSV ({error})") from error


def _check_shape(table: _Table) -> None:
    for name in table.names:
        if table.names.count(name) > 1:
            raise UserError(f"{table.source}: two columns are named {name!r}")
    cells = len(table.names)
    for row, line in enumerate(table.body):
        if line.count(table.delimiter) != cells - 1:
            raise UserError(
                f"{table.source} line {table.first_line + row}: "
                f"{line.count(table.delimiter) + 1} cells where the first line has {cells}"
            )


def _date_column(table: _Table) -> int | None:
    for index, name in enumerate(table.names):
        if name.lower() in DATE_NAMES:
            return index
    first = table.body[0].split(table.delimiter, 1)[0].strip()
    dated = looks_like_date(first) and not _is_number(first)
    return 0 if dated or table.names[0] == "" else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(table: _Table, columns: list[int], gaps: bool) -> np.ndarray:
    """The cells of `columns` [L, N] in float64, parsed in C; slow with gaps or an error only."""
    try:
        values = np.loadtxt(
            table.body, delimiter=table.delimiter, usecols=columns, ndmin=2, comments=None
        )
    except ValueError:
        values = None
    if values is not None and np.isfinite(values).all():
        return values
    rows = [[cells[column].strip() for column in columns] for cells in _cells(table)]
    bad = [
        (row, columns[place], cell)
        for row, cells in enumerate(rows)
        for place, cell in enumerate(cells)
        if not _is_finite(cell) and not (gaps and cell.lower() in _MISSING)
    ]
    if bad or not gaps:
        raise UserError(_complaint(table, bad))
    return np.array([[float(c) if _is_finite(c) else np.nan for c in cells] for cells in rows])


def _cells(table: _Table) -> Iterator[list[str]]:
    return (line.split(table.delimiter) for line in table.body)


def _is_finite(cell: str) -> bool:
    return _is_number(cell) and bool(np.isfinite(float(cell))) and "_" not in cell


def _complaint(table: _Table, bad: list[tuple[int, int, str]]) -> str:
    """Names the first cell (row, column, text) that is no finite number, and counts the others."""
    if not bad:
        return f"{table.source}: the numbers cannot be read"
    row, column, cell = bad[0]
    same = sum(other == column for _, other, _ in bad)
    place = f"{table.source} line {table.first_line + row}, column {table.names[column]!r}"
    rows = len(table.body)
    if cell.lower() in _MISSING:
        text = f"{place}: missing value ({cell!r})"
        advice = "fill or remove them, or read them as gaps"
    else:
        text = f"{place}: {cell!r} is not a finite number"
        advice = "mend or remove them"
        if re.fullmatch(r"[-+]?\d+,\d+", cell):
            advice = "write decimal points, not commas"
        elif same == rows and column == 0:
            advice = "remove the column, or, if it holds dates, write them as YYYY-MM-DD hh:mm:ss"
        elif same == rows:
            advice = "remove the column, or, if it holds dates, name it 'date'"
    return f"{text}; {same} of the column's {rows} cells and {len(bad)} in all are so: {advice}"


def check_series(series: Series, *, rows: tuple[int, int] | None = None, least: int = 1) -> None:
    """Refuses a series that is too short, or has a column without variation.

    Args:
        rows: the rows [first, last) in which every column must vary (the training rows); all.
        least: number of rows that are needed.

    Raises:
        UserError: naming the column, its value and the lines; or the number of rows.
    """
    length = len(series.values)
    if length < least:
        raise UserError(f"{series.source}: {length} rows are too few, {least} are needed")
    first, last = rows or (0, length)
    part = series.values[first:last]
    missing = np.isnan(part)
    if missing.all(axis=0).any():
        column = int(missing.all(axis=0).argmax())
        raise UserError(
            f"{series.where(first, column)}: no value up to line {series.first_line + last - 1}; "
            "remove the column"
        )
    value = part[missing.argmin(axis=0), np.arange(part.shape[1])]  # the first one observed
    constant = np.flatnonzero((missing | (part == value[None])).all(axis=0))
    if len(constant):
        column = int(constant[0])
        more = f" (and {len(constant) - 1} more columns)" if len(constant) > 1 else ""
        raise UserError(
            f"{series.where(first, column)}: the column is constant, {value[column]:g} up to "
            f"line {series.first_line + last - 1}{more}; a series without variation cannot be "
            "standardised: remove it"
        )


def check_dates(series: Series) -> None:
    """Refuses rows that are not in the order of their dates; repeated dates are let through.

    One step back in a hundred is, too: clocks are put back in autumn.

    Raises:
        UserError: naming the first line whose date is before that of the line above.
    """
    if series.dates is None:
        return
    back = np.diff(series.dates) < np.timedelta64(0, "s")
    count = int(back.sum())
    if count <= len(back) / 100:
        return
    row = int(back.argmax()) + 1
    every = "newest first" if count == len(back) else f"{count} of {len(back)} steps go back"
    raise UserError(
        f"{series.source} line {series.first_line + row}, column {series.date_name!r}: "
        f"{series.dates[row]} comes after {series.dates[row - 1]} ({every}): sort the rows by date"
    )


def select(series: Series, names: Sequence[str]) -> Series:
    """`series` with its columns in the order of `names`; further columns are dropped.

    Raises:
        UserError: a name that is not there, with the nearest ones.
    """
    for name in names:
        if name not in series.names:
            near = nearest(name, series.names) or series.names[:10]
            raise UserError(f"{series.source}: no column {name!r}; there is {', '.join(near)}")
    order = [series.names.index(name) for name in names]
    return series._replace(values=series.values[:, order], names=tuple(names))


def write_series(
    path: str | Path,
    values: Float[np.ndarray, "length channels"],
    names: Sequence[str] | None,
    *,
    dates: np.ndarray | None = None,
    date_name: str = "date",
) -> Path:
    """Writes a CSV file (gzip if the name ends in .gz) that `read_series` reads back exactly.

    `names` None writes no header. The same arguments give the same bytes, and the file is
    complete or not there.
    """
    path = Path(path).expanduser()
    if path.is_dir():  # "" is "."
        raise UserError(f"{path}: cannot be written (it is a directory)")
    text = io.StringIO()
    if names is not None:
        header = ([date_name] if dates is not None else []) + list(names)
        csv.writer(text, lineterminator="\n").writerow(header)
    # float's repr is the shortest text that reads back to the same number; float32 has its own.
    kind = str if values.dtype == np.float32 else repr
    rows = list(values) if values.dtype == np.float32 else values.tolist()
    lines = [",".join(map(kind, row)) for row in rows]
    if dates is not None:
        stamps = np.datetime_as_string(dates.astype("datetime64[s]"))
        lines = [
            f"{stamp.replace('T', ' ')},{line}"
            for stamp, line in zip(stamps.tolist(), lines, strict=True)
        ]
    text.write("\n".join(lines) + "\n")
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=6, mtime=0)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: not to be replaced
            path.write_bytes(content)
        else:
            temporary.write_bytes(content)
            os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path
