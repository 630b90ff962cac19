"""Checks of arguments whose errors say the name, the value and what is allowed."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rflib.core.errors import UserError

T = TypeVar("T")


def nearest(word: str, options: Iterable[str], limit: int = 3) -> list[str]:
    """The options most like `word`, best first; empty when nothing is close."""
    return difflib.get_close_matches(word, list(options), n=limit, cutoff=0.5)


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """Returns `value` if it is among `allowed`, else a UserError listing them."""
    allowed = list(allowed)
    if value in allowed:
        return value
    near = nearest(str(value), map(str, allowed), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}{hint}")


def choose(name: str, value: str, table: Mapping[str, T]) -> T:
    """Looks `value` up in an explicit table of choices; an unknown one names the known."""
    return table[one_of(name, value, table)]


def in_range(
    name: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Returns `value` if low <= value <= high (strict at an open end), else a UserError."""
    above = low is None or (value > low if open_low else value >= low)
    below = high is None or (value < high if open_high else value <= high)
    if above and below:  # NaN fails both comparisons
        return value
    left = "(-inf" if low is None else f"{'(' if open_low else '['}{low}"
    right = "inf)" if high is None else f"{high}{')' if open_high else ']'}"
    raise UserError(f"{name}={value!r} must lie in {left}, {right}")


def positive_int(name: str, value: Any, *, zero: bool = False) -> int:
    """Returns `value` as an int if it is a whole number >= 1 (>= 0 with `zero`)."""
    least = 0 if zero else 1
    integral = isinstance(value, float) and value.is_integer()
    whole = not isinstance(value, bool) and (integral or hasattr(value, "__index__"))
    if not whole or value < least:
        raise UserError(f"{name}={value!r} must be a whole number of at least {least}")
    return int(value)


def positive_fields(owner: Any, *names: str) -> None:
    """Raises a UserError unless each of these attributes of `owner` is a whole number >= 1."""
    for name in names:
        positive_int(name, getattr(owner, name))


def distinct(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """Returns `values` if there is at least one and none is there twice, else a UserError."""
    found = tuple(values)
    if not found or len(set(found)) < len(found):
        raise UserError(f"{name}={found!r} must hold at least one value, each of them once")
    return found


def multiple_of(name: str, value: int, factor_name: str, factor: int) -> int:
    """Returns `value` if `factor` divides it, else a UserError naming both and the neighbours."""
    if value % factor == 0:
        return value
    low = value // factor * factor
    raise UserError(
        f"{name}={value} must be a multiple of {factor_name}={factor}: "
        f"take {f'{low} or ' if low else ''}{low + factor}"
    )
