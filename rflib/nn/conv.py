"""One-dimensional convolution over time as shifted slices and one matrix product.

On CPU the gradient of `lax.conv_general_dilated` inside `lax.scan` is 80-100 times slower than
outside; slices and a product have the same speed in both places, and batch under `vmap` over
kernels. Time is the last axis but one, channels are the last. Stride 1, no dilation.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer
from jaxtyping import Float

from rflib.core.checks import choose, positive_int
from rflib.core.errors import UserError
from rflib.nn.initializers import fan_in_uniform
from rflib.nn.linear import add_row

# PyTorch's names for what NumPy's `pad` calls otherwise.
PADDINGS = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}


def pad_time(
    x: Float[Array, "*lead length channels"], before: int, after: int, padding: str = "zeros"
) -> Float[Array, "*lead longer channels"]:
    """`before` and `after` more time steps: "zeros", "replicate" (the end values), "circular".

    Raises:
        UserError: an unknown padding, a negative width, or nothing to repeat in an empty array.
    """
    mode = choose("padding", padding, PADDINGS)
    widths = (positive_int("before", before, zero=True), positive_int("after", after, zero=True))
    if x.shape[-2] == 0 and padding != "zeros":
        raise UserError(f"padding={padding!r} needs at least one time step, got shape {x.shape}")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [widths, (0, 0)], mode=mode)


def conv1d(
    x: Float[Array, "*lead length channels"],
    weight: Float[Array, "features taps channels"],
    bias: Float[Array, " features"] | None = None,
) -> Float[Array, "*lead shorter features"]:
    """y[t, f] = b[f] + Σ_k Σ_c w[f, k, c] x[t + k, c], for t = 0 … length - taps.

    A cross-correlation (no flip) without padding: the result is taps - 1 steps shorter.

    Raises:
        UserError: fewer time steps than taps.
    """
    taps = weight.shape[1]
    steps = x.shape[-2] - taps + 1
    if steps < 1:
        raise UserError(f"{x.shape[-2]} time steps are too few for a kernel of {taps} taps")
    slices = [jax.lax.slice_in_dim(x, k, k + steps, axis=-2) for k in range(taps)]
    columns = jnp.concatenate(slices, -1)
    flat = weight.reshape(weight.shape[0], -1)
    y = jax.lax.dot_general(columns, flat, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else add_row(y, bias)


class Conv1d(nn.Module):
    """`conv1d` after `pad_time` by `pad` steps on each side.

    `weight` is [features, taps, in_features] and `bias` [features]; both start as
    U(±1/√(in_features taps)), PyTorch's default, unless `weight_init` draws the weight.
    """

    in_features: int
    features: int
    taps: int
    pad: int = 0
    padding: str = "zeros"
    use_bias: bool = True
    weight_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*lead length channels"]) -> Array:
        default = fan_in_uniform(self.in_features * self.taps)
        shape = (self.features, self.taps, self.in_features)
        weight = self.param("weight", self.weight_init or default, shape)
        bias = self.param("bias", default, (self.features,)) if self.use_bias else None
        return conv1d(pad_time(x, self.pad, self.pad, self.padding), weight, bias)
