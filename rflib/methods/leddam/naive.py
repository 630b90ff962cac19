"""Forecasts that need no training: the rows that every trained model has to beat."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rflib.core.checks import in_range
from rflib.data import windows
from rflib.methods.leddam.gaps import observed_share


def repeat_last(x: Float[Array, "B T N"], pred_len: int) -> Float[Array, "B S N"]:
    """The last known value of each series, S times."""
    return jnp.repeat(x[:, -1:], pred_len, axis=1)


def window_mean(x: Float[Array, "B T N"], pred_len: int) -> Float[Array, "B S N"]:
    """The mean of the window of each series, S times."""
    return jnp.repeat(jnp.mean(x, axis=1, keepdims=True), pred_len, axis=1)


def zero(x: Float[Array, "B T N"], pred_len: int) -> Float[Array, "B S N"]:
    """The training mean of each series, which is 0 on the standardised scale."""
    return jnp.zeros((x.shape[0], pred_len, x.shape[2]), x.dtype)


def repeat_season(x: Float[Array, "B T N"], pred_len: int, season: int) -> Float[Array, "B S N"]:
    """The last `season` rows over and over: y[s] = x[T - season + s mod season]."""
    in_range("season", season, 1, x.shape[1])
    return x[:, x.shape[1] - season + np.arange(pred_len) % season]


def naive_forecasts(
    seq_len: int, season: int
) -> dict[str, Callable[[Float[Array, "B T N"], int], Float[Array, "B S N"]]]:
    """name -> forecast(x, pred_len); without the season when it is longer than the window."""
    table = {"repeat last": repeat_last, "window mean": window_mean, "zero": zero}
    if 1 <= season <= seq_len:
        table["repeat season"] = partial(repeat_season, season=season)
    return table


def naive_errors(
    series: Float[Array, "L N"],
    starts: Int[Array | np.ndarray, "M"],
    *,
    seq_len: int,
    pred_len: int,
    season: int,
    batch: int = 256,
    observed: Bool[Array | np.ndarray, "L N"] | None = None,
) -> dict[str, dict[str, Float[Array, ""]]]:
    """Mean squared and absolute error of every naive forecast over all windows at `starts`.

    Returns {forecast: {"mse": ..., "mae": ...}}, true means over windows, steps and series whatever
    `batch` is; that only bounds the memory (batch * (seq_len + pred_len) * N floats).
    observed: which values count as targets; all.
    """
    forecasts = naive_forecasts(seq_len, season)
    count = starts.shape[0]
    batch = min(batch, count)
    places = jnp.arange(-(-count // batch) * batch)
    padded = jnp.asarray(starts)[jnp.minimum(places, count - 1)].reshape(-1, batch)
    counts = (places < count).reshape(-1, batch, 1, 1)
    share = 1.0
    if observed is not None:
        share = observed_share(np.asarray(observed), np.asarray(starts), seq_len, pred_len)

    def sums(arguments: tuple[Array, Array]) -> dict[str, dict[str, Array]]:
        x, y = windows(series, arguments[0], seq_len, pred_len)
        weight = arguments[1]
        if observed is not None:
            weight &= windows(jnp.asarray(observed), arguments[0], seq_len, pred_len)[1]
        result = {}
        for name, forecast in forecasts.items():
            error = jnp.where(weight, forecast(x, pred_len) - y, 0)
            result[name] = {"mse": jnp.mean(error**2), "mae": jnp.mean(jnp.abs(error))}
        return result

    means = jax.lax.map(sums, (padded, counts))
    return jax.tree.map(lambda mean: jnp.sum(mean) * (batch / count / share), means)
