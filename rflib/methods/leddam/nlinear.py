"""NLinear: one linear map of what the window does beyond its last value."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import positive_fields
from rflib.nn.linear import Linear


class NLinear(nn.Module):
    """Ŷ = W (x - x_T) + b + x_T, with W [S, T] and b [S] shared by all series.

    Zeng et al., "Are Transformers Effective for Time Series Forecasting?" (AAAI 2023), section 4:
    subtracting the window's last value and adding it to the forecast follows a shift of level
    between training and test rows. W and b start as U(±1/√T).

    n_series: N, which no parameter depends on. seq_len, pred_len: T and S, in time steps.

    Raises:
        UserError: a size below 1, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        del train  # it behaves the same
        last = x[:, -1:]
        forecast = Linear(self.seq_len, self.pred_len, name="linear")(jnp.swapaxes(x - last, 1, 2))
        return jnp.swapaxes(forecast, 1, 2) + last
