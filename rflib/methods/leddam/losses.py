"""Errors of a forecast, one number a window: losses when averaged, test metrics when collected.

All on the standardised scale, as the forecasting literature reports them. The mean of these over
windows is the mean over windows, steps and series, whatever the batch size.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from rflib.methods.leddam.gaps import window_means


def mse(
    forecast: Float[Array, "batch pred_len n_series"],
    target: Float[Array, "batch pred_len n_series"],
    observed: Bool[Array, "batch pred_len n_series"] | None = None,
    density: float = 1.0,
) -> Float[Array, " batch"]:
    """Mean over steps and series of the squared error.

    observed, density: what counts, and which share of all targets that is; see `window_means`.
    """
    return window_means(jnp.square(forecast - target), observed, density)


def mae(
    forecast: Float[Array, "batch pred_len n_series"],
    target: Float[Array, "batch pred_len n_series"],
    observed: Bool[Array, "batch pred_len n_series"] | None = None,
    density: float = 1.0,
) -> Float[Array, " batch"]:
    """Mean over steps and series of the absolute error; `observed` and `density` as in `mse`."""
    return window_means(jnp.abs(forecast - target), observed, density)


LOSSES: dict[str, Callable[..., Array]] = {"mse": mse, "mae": mae}
