"""Per-channel standardisation with the statistics of the training rows."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class Standardiser(NamedTuple):
    """z = (x - mean) / scale on the last axis, of NumPy or JAX arrays; a plain pytree."""

    mean: Float[np.ndarray, "channels"]
    scale: Float[np.ndarray, "channels"]

    def apply(self, values: Any) -> Any:
        """Physical units -> standardised."""
        mean, scale = self._aligned(values)
        return (values - mean) / scale

    def invert(self, values: Any) -> Any:
        """Standardised -> physical units."""
        mean, scale = self._aligned(values)
        return values * scale + mean

    def _aligned(self, values: Any) -> tuple[Any, Any]:
        shape = (1,) * (values.ndim - 1) + self.mean.shape
        return self.mean.reshape(shape), self.scale.reshape(shape)


def fit_standardiser(rows: Float[np.ndarray, "rows channels"]) -> Standardiser:
    """Mean and population standard deviation (ddof 0) of each channel, in float64.

    NaN is left out; a channel must have a number.
    A constant channel gets its value as mean and scale 1: it becomes 0. (Its computed deviation
    is rounding noise, by which it must not be divided.)
    """
    values = np.asarray(rows, np.float64)
    missing = np.isnan(values)
    first = values[missing.argmin(axis=0), np.arange(values.shape[1])]
    constant = (missing | (values == first[None])).all(axis=0)
    # Sums without NaN are left to the plain functions: their rounding is part of the protocol.
    average, deviation = (np.nanmean, np.nanstd) if missing.any() else (np.mean, np.std)
    mean = np.where(constant, first, average(values, axis=0))
    return Standardiser(mean, np.where(constant, 1.0, deviation(values, axis=0)))
