"""Convolutions as shifted slices and one matrix product: over time, and of images.

On CPU the gradient of `lax.conv_general_dilated` inside `lax.scan` is 80-100 times slower than
outside; slices and a product have the same speed in both places, and batch under `vmap` over
kernels. Time is the last axis but one, channels are the last; no dilation.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer
from jaxtyping import Float

from rflib.core.checks import choose, one_of, positive_int
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


def conv2d(
    x: Float[Array, "B height width channels"],
    kernel: Float[Array, "rows columns channels features"],
    bias: Float[Array, " features"] | None = None,
    *,
    stride: int = 1,
    impl: str = "auto",
) -> Float[Array, "B h w features"]:
    """A cross-correlation with zeros around such that stride 1 keeps the size; odd kernels.

    impl: "lax", the library's convolution; "matmul", shifted slices and one product, which on CPU
    keeps its speed where the gradient is taken inside `lax.scan` (80-100 times faster there);
    "auto" is "lax", up to 2.5 times faster elsewhere. Same parameters, same result.

    Raises:
        UserError: an unknown `impl`, or an even kernel.
    """
    one_of("impl", impl, ("auto", "lax", "matmul"))
    rows, columns, _, features = kernel.shape
    if rows % 2 == 0 or columns % 2 == 0:
        raise UserError(f"a kernel of {rows} x {columns} taps: odd sizes are needed")
    pad = ((rows // 2, rows // 2), (columns // 2, columns // 2))
    if impl == "matmul":
        height, width = (-(-n // stride) for n in x.shape[1:3])
        padded = jnp.pad(x, ((0, 0), *pad, (0, 0)))
        # Padding of odd kernels: output i reads rows stride i … stride i + taps - 1.
        slices = [
            padded[:, i : i + stride * (height - 1) + 1 : stride, j:][
                :, :, : stride * (width - 1) + 1 : stride
            ]
            for i in range(rows)
            for j in range(columns)
        ]
        patches = jnp.concatenate(slices, -1)
        y = jax.lax.dot_general(patches, kernel.reshape(-1, features), (((3,), (0,)), ((), ())))
    else:
        y = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    return y if bias is None else add_row(y, bias)


class Conv2d(nn.Module):
    """`conv2d` with a kernel [taps, taps, in, features] ~ N(0, 1/fan-in) and a bias of zeros.

    kernel_init: draws the kernel otherwise, e.g. zeros for the last layer of a residual branch.
    """

    features: int
    taps: int = 3
    stride: int = 1
    impl: str = "auto"
    kernel_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "B height width channels"]) -> Array:
        init = self.kernel_init or nn.initializers.lecun_normal()
        shape = (self.taps, self.taps, x.shape[-1], self.features)
        kernel = self.param("kernel", init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        return conv2d(x, kernel, bias, stride=self.stride, impl=self.impl)
