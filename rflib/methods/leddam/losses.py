"""Errors of a forecast, one number a window: losses when averaged, test metrics when collected.

All on the standardised scale, as the forecasting literature reports them. The mean of these over
windows is the mean over windows, steps and series, whatever the batch size.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def mse(
    forecast: Float[Array, "batch pred_len n_series"],
    target: Float[Array, "batch pred_len n_series"],
) -> Float[Array, " batch"]:
    """Mean over steps and series of the squared error."""
    return jnp.mean(jnp.square(forecast - target), (1, 2))


def mae(
    forecast: Float[Array, "batch pred_len n_series"],
    target: Float[Array, "batch pred_len n_series"],
) -> Float[Array, " batch"]:
    """Mean over steps and series of the absolute error."""
    return jnp.mean(jnp.abs(forecast - target), (1, 2))


LOSSES: dict[str, Callable[[Array, Array], Array]] = {"mse": mse, "mae": mae}
