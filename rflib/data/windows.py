"""Sliding windows over a series, cut out on the device from a vector of starts."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped

from rflib.core.errors import UserError


def windows(
    series: Shaped[Array, "length channels"],
    starts: Int[Array | np.ndarray, "batch"],
    seq_len: int,
    pred_len: int,
) -> tuple[Shaped[Array, "batch seq_len channels"], Shaped[Array, "batch pred_len channels"]]:
    """Cuts windows: x[b] is series[s : s + seq_len], y[b] the next `pred_len` rows; s = starts[b].

    Meant for use inside jit with the whole series on the device, so that a batch is a vector of
    integers. Starts must lie in [0, length - seq_len - pred_len]; others are moved into it
    silently, as XLA does. Seven channels, 128 windows of 192 rows: 30 us where the
    gather series[starts[:, None] + arange] takes 160 (two CPU cores).
    """
    total = seq_len + pred_len
    both = jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(series, start, total))(
        jnp.asarray(starts)
    )
    return both[:, :seq_len], both[:, seq_len:]


def window_count(rows: int, seq_len: int, pred_len: int) -> int:
    """Number of windows in `rows` rows: rows - seq_len - pred_len + 1.

    Raises:
        UserError: if there is none.
    """
    if seq_len < 1 or pred_len < 1:
        raise UserError(f"seq_len={seq_len} and pred_len={pred_len} must be at least 1")
    count = rows - seq_len - pred_len + 1
    if count < 1:
        raise UserError(
            f"{rows} rows are too few for one window: seq_len={seq_len} and pred_len={pred_len} "
            f"need {seq_len + pred_len}"
        )
    return count
