"""Train, valid and test parts: of a series in time, and of independent examples."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rflib.core.errors import UserError
from rflib.data.windows import window_count


class Part(NamedTuple):
    """Rows [start, stop) of a series from which a part's windows are cut."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class Parts(NamedTuple):
    """Consecutive parts in time. valid and test begin `seq_len` rows early, to look back."""

    train: Part
    valid: Part
    test: Part


def at_rows(train: int, valid: int, test: int, look_back: int) -> Parts:
    """Parts that end at rows `train` < `valid` < `test`; later rows are not used."""
    if not 0 < train < valid < test or look_back < 0:
        raise UserError(
            f"the parts must end at growing rows, not train={train}, valid={valid}, test={test}"
        )
    if look_back > train:
        raise UserError(f"look_back={look_back} is more than the {train} training rows")
    return Parts(Part(0, train), Part(train - look_back, valid), Part(valid - look_back, test))


def by_share(length: int, look_back: int, *, train: float = 0.7, test: float = 0.2) -> Parts:
    """Parts of floor(train * length) rows, the rest, and floor(test * length) rows, in time order.

    The products are floating-point ones, as in the public benchmarks.
    """
    if not (train > 0 and test > 0 and train + test < 1):
        raise UserError(f"train={train} and test={test} must be positive shares of sum below 1")
    first, last = int(length * train), int(length * test)
    return at_rows(first, length - last, length, look_back)


def starts(part: Part, seq_len: int, pred_len: int) -> Int[np.ndarray, "count"]:
    """The first rows of all windows of `part`, in order: `windows(series, starts, ...)`."""
    count = window_count(part.rows, seq_len, pred_len)
    return np.arange(part.start, part.start + count, dtype=np.int32)


def random_split(
    count: int, shares: Mapping[str, float], *, seed: int
) -> dict[str, Int[np.ndarray, "_"]]:
    """Disjoint random index sets of independent examples, each sorted, together all of them.

    Args:
        count: number of examples.
        shares: name -> share, summing to 1; cumulated shares are rounded, so sizes are within one
            of count * share.

    Raises:
        UserError: shares that are not positive or do not sum to 1, or an empty part.
    """
    values = np.asarray(list(shares.values()), float)
    if not len(values) or (values <= 0).any() or abs(values.sum() - 1) > 1e-9:
        raise UserError(f"shares={dict(shares)} must be positive and sum to 1")
    ends = np.rint(np.cumsum(values) * count).astype(int)
    order = np.random.default_rng(seed).permutation(count)
    parts = dict(zip(shares, np.split(order, ends[:-1]), strict=True))
    for name, part in parts.items():
        if not len(part):
            raise UserError(f"shares={dict(shares)} leave {name!r} empty with count={count}")
    return {name: np.sort(part) for name, part in parts.items()}
