"""Means over games with bootstrap intervals, and the verdicts that they give."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rflib.core.errors import UserError


class Interval(NamedTuple):
    """The mean over `count` games and its 95 % interval, by resampling games."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def over_games(values: Sequence[float], resamples: int) -> Interval:
    """Percentile bootstrap of the mean, games drawn with replacement, always the same draws.

    Raises:
        UserError: no values, or one that is not finite.
    """
    found = np.asarray(values, np.float64)
    if not len(found) or not np.isfinite(found).all():
        raise UserError(f"values={list(values)!r} must be finite and at least one")
    rng = np.random.default_rng(0)
    means = found[rng.integers(0, len(found), (resamples, len(found)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(found.mean()), float(low), float(high), len(found))


FEWEST = 10  # games below which a bootstrap interval says too little


def above(effects: Sequence[Interval], threshold: float = 0.0) -> tuple[str, str]:
    """(verdict, reason) for the claim that every mean is above `threshold`."""
    fewest = min(effect.count for effect in effects)
    if fewest < FEWEST:
        return "undecided", f"{fewest} games are too few"
    if any(effect.high < threshold for effect in effects):
        return "refuted", ""
    if all(effect.low > threshold for effect in effects):
        return "holds", ""
    return "undecided", f"an interval over {fewest} games includes both"
