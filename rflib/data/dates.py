"""Date columns of CSV files, and the dates that follow them."""

import re
import warnings
from collections.abc import Sequence

import numpy as np

from rflib.core.errors import UserError

_TIME = r"(?:[T ]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.\d*)?)?)?(?:Z|\+00:?00)?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})" + _TIME)
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})" + _TIME)  # dots only: never month first


def looks_like_date(cell: str) -> bool:
    """Whether `cell` is written like a date that `parse_dates` reads."""
    cell = cell.strip().strip('"')
    return bool(_YEAR_FIRST.fullmatch(cell) or _DAY_FIRST.fullmatch(cell))


def parse_dates(cells: Sequence[str], source: str, name: str, first_line: int) -> np.ndarray | None:
    """datetime64[s] of each cell; None if the first is a plain number (an index, epoch seconds).

    Raises:
        UserError: naming line, column and cell of the first that is no date.
    """
    first = cells[0].strip()
    if re.fullmatch(r"[-+]?\d+(\.\d*)?", first):
        return None
    if _YEAR_FIRST.fullmatch(first):
        try:  # ISO dates in C; anything that needs interpretation goes below
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                dates = np.array(cells, dtype="datetime64[s]")
            if not np.isnat(dates).any():
                return dates
        except (ValueError, UserWarning, DeprecationWarning):
            pass
    return np.array(
        [_one(cell, source, name, first_line + row) for row, cell in enumerate(cells)],
        dtype="datetime64[s]",
    )


def _one(cell: str, source: str, name: str, line: int) -> str:
    text = cell.strip()
    match = _YEAR_FIRST.fullmatch(text)
    if match:
        year, _, month, day, *clock = match.groups()
    else:
        match = _DAY_FIRST.fullmatch(text)
        if not match:
            raise _not_a_date(source, line, name, cell)
        day, month, year, *clock = match.groups()
    hour, minute, second = ((part or "0").zfill(2) for part in clock)
    stamp = f"{year}-{month.zfill(2)}-{day.zfill(2)}T{hour}:{minute}:{second}"
    try:
        np.datetime64(stamp)
    except ValueError as error:
        raise _not_a_date(source, line, name, cell) from error
    return stamp


def _not_a_date(source: str, line: int, name: str, cell: str) -> UserError:
    return UserError(
        f"{source} line {line}, column {name!r}: {cell!r} is not a date; write YYYY-MM-DD hh:mm:ss"
    )


def future_dates(dates: np.ndarray, count: int) -> np.ndarray:
    """The `count` dates [count] after `dates`, at their most usual distance.

    Dates that lie whole months apart (the same day and time of each month) go on so.

    Raises:
        UserError: fewer than two dates, or dates that do not grow.
    """
    if len(dates) < 2:
        raise UserError(f"{len(dates)} dates do not tell their distance; 2 are needed")
    steps, occurrences = np.unique(np.diff(dates), return_counts=True)
    step = steps[np.argmax(occurrences)]
    if step <= np.timedelta64(0, "s"):
        raise UserError(f"the dates do not grow: {dates[0]}, {dates[1]}, ...")
    months = dates.astype("datetime64[M]")
    within = dates - months
    apart = np.diff(months)
    if (within == within[0]).all() and (apart == apart[0]).all():
        return months[-1] + apart[0] * np.arange(1, count + 1) + within[0]
    return dates[-1] + step * np.arange(1, count + 1)
