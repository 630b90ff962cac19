"""Differences between two arms of the same data and seeds: mean, interval, what it decides."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rflib.core.checks import in_range
from rflib.core.errors import UserError


class Paired(NamedTuple):
    """Mean of the differences of `count` pairs and its two-sided t interval, same unit."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def paired(differences: Sequence[float], level: float = 0.95) -> Paired:
    """The mean of paired differences with its Student interval, n - 1 degrees of freedom.

    Exact for independent normal differences; with one pair the interval is the whole line.

    Raises:
      UserError: no differences, one that is not finite, or a level outside (0, 1).
    """
    from scipy import stats  # comes with jax

    in_range("level", level, 0, 1, open_low=True, open_high=True)
    values = np.asarray(differences, np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise UserError(f"differences={list(differences)!r} must be finite and at least one")
    mean = float(values.mean())
    if len(values) == 1:
        return Paired(mean, -np.inf, np.inf, 1)
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return Paired(mean, mean - float(half), mean + float(half), len(values))


def decide(effects: Sequence[Paired], *, margin: float = 0.0) -> tuple[str, str]:
    """(verdict, reason) for the claim that every effect is positive.

    refuted: some interval lies below `margin`, the smallest effect worth the name (0: below zero,
    so the opposite is shown). holds: else, if every interval lies above 0. undecided: all else.
    """
    if any(effect.high < margin for effect in effects):
        return "refuted", ""
    if all(effect.low > 0 for effect in effects):
        return "holds", ""
    return "undecided", f"an interval of {effects[0].count} pairs includes both"
