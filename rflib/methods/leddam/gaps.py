"""Missing values: how a past with gaps is filled, and how only what was observed is counted.

A gap in a window's past is filled, and the model is not told. A gap in its future counts for
nothing: with weight w = 1 where a value was observed and 0 elsewhere, the error of a set of windows
is Σ w e / Σ w over all its windows, steps and series, and not a mean of the windows' means.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from rflib.core.errors import UserError
from rflib.data import windows


class Gapped(NamedTuple):
    """A series with gaps: values [L, N] with the gaps filled, observed [L, N] where they are not.

    Stands wherever a plain array [L, N] stands for a series without gaps.
    """

    values: Array
    observed: Array


def fill_gaps(
    values: Float[np.ndarray, "length series"], first: Float[np.ndarray, " series"]
) -> Float[np.ndarray, "length series"]:
    """NaN becomes the last value observed before it, and `first` where there is none.

    Only earlier rows are looked at: no window sees its future through a filled value.
    """
    seen = ~np.isnan(values)
    rows = np.where(seen, np.arange(len(values))[:, None], -1)
    latest = np.maximum.accumulate(rows, axis=0)
    carried = np.take_along_axis(values, np.maximum(latest, 0), axis=0)
    return np.where(latest < 0, first[None], carried)


def gapped_windows(
    series: Array | Gapped, starts: Int[Array | np.ndarray, " batch"], seq_len: int, pred_len: int
) -> tuple[Array, Array, Array | None]:
    """(x, y, w) of `windows`: w [B, S, N] is True where y was observed; None without gaps.

    Where y was not it is 0: what was put there, a NaN even, reaches no loss and no gradient.
    """
    if not isinstance(series, Gapped):
        return *windows(series, starts, seq_len, pred_len), None
    x, y = windows(series.values, starts, seq_len, pred_len)
    observed = windows(series.observed, starts, seq_len, pred_len)[1]
    return x, jnp.where(observed, y, 0), observed


def window_means(
    errors: Float[Array, "batch steps series"],
    observed: Bool[Array, "batch steps series"] | None = None,
    density: float = 1.0,
) -> Float[Array, " batch"]:
    """One number a window whose mean over a set of windows is the set's Σ w e / Σ w.

    density: `observed_share` of that set.
    """
    if observed is None:
        return jnp.mean(errors, (1, 2))
    return jnp.mean(jnp.where(observed, errors, 0), (1, 2)) / density


def observed_share(
    observed: Bool[np.ndarray, "length series"] | None,
    starts: Int[np.ndarray, " windows"],
    seq_len: int,
    pred_len: int,
) -> float:
    """Share of the targets of these windows that were observed; 1 without gaps.

    Raises:
        UserError: none of them was.
    """
    if observed is None:
        return 1.0
    rows = np.concatenate([[0], np.cumsum(observed.sum(1, dtype=np.int64))])
    first = starts.astype(np.int64) + seq_len
    count = int(np.sum(rows[first + pred_len] - rows[first]))
    if not count:
        raise UserError(f"not one value was observed in the futures of {len(starts)} windows")
    return count / (len(starts) * pred_len * observed.shape[1])
