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

    A channel that is constant up to rounding gets scale 1, so that it becomes 0 and stays finite.
    """
    values = np.asarray(rows, np.float64)
    mean = values.mean(axis=0)
    scale = values.std(axis=0)
    rounding = 10 * np.finfo(np.float64).eps * np.maximum(np.abs(mean), np.abs(values).max(axis=0))
    return Standardiser(mean, np.where(scale <= rounding, 1.0, scale))
