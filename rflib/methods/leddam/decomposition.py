"""The learnable decomposition (LD): one trainable smoothing kernel splits trend from the rest.

Leddam (ICML 2024), section 3.2. With kernel w (K taps, K odd), bias c and edge replication,

    main[d] = c + Σ_i w_i x[clip(d + i - K//2)],    residual = x - main,

the same w and c for every channel. Everything here works on the last axis.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array, lax
from jaxtyping import Float

from rflib.core.checks import choose, one_of, positive_int
from rflib.core.errors import UserError

# Past this length a product with an L x L matrix costs more than the K taps of a convolution.
LONGEST_MATRIX = 1024


def gaussian(kernel_size: int) -> np.ndarray:
    """g_i = exp(-((i - K//2) / 2σ)²) with σ = 1: the raw bell, [K] float64."""
    return np.exp(-(((np.arange(kernel_size) - kernel_size // 2) / 2.0) ** 2))


def _softmax_gauss(kernel_size: int) -> np.ndarray:
    # Softmax of values in (0, 1] is almost flat: the centre is only e times the edge.
    weight = np.exp(gaussian(kernel_size))
    return weight / weight.sum()


def _gauss(kernel_size: int) -> np.ndarray:
    weight = gaussian(kernel_size)
    return weight / weight.sum()


def _uniform(kernel_size: int) -> np.ndarray:
    return np.full(kernel_size, 1 / kernel_size)


KERNELS: dict[str, Callable[[int], np.ndarray]] = {
    "softmax_gauss": _softmax_gauss,
    "gauss": _gauss,
    "uniform": _uniform,
    "mov_frozen": _uniform,
}


def initial_kernel(name: str, kernel_size: int) -> Float[Array, " taps"]:
    """The kernel before training, float32 [K], of sum 1.

    name: "softmax_gauss" (the authors': softmax over the taps of the bell), "gauss" (the bell over
        its sum), "uniform" (the moving average, trained), "mov_frozen" (the same, never trained).

    Raises:
        UserError: an unknown name, or a kernel size that is not odd.
    """
    make = choose("ld_init", name, KERNELS)
    if positive_int("kernel_size", kernel_size) % 2 == 0:
        raise UserError(f"kernel_size={kernel_size} must be odd: the kernel is centred")
    return jnp.asarray(make(kernel_size), jnp.float32)


def band_matrix(kernel: Float[Array, " taps"], length: int) -> Float[Array, "length length"]:
    """A with x @ A = the replicate-padded correlation of x with `kernel`, for rows of `length`.

    The taps that reach over an edge are summed into the border row of A. Built without scatter:
    a row (w, 0, ..., 0) of K + L entries repeated L times and cut again one entry shorter moves
    each repetition one to the right, and the transpose of that is a sum over rows.
    """
    taps = kernel.shape[0]
    centre = taps // 2
    if length == 1:
        return jnp.sum(kernel).reshape(1, 1)
    row = jnp.pad(kernel, (0, length))
    skewed = jnp.broadcast_to(row.reshape(1, -1), (length, taps + length)).reshape(-1)[:-length]
    band = skewed.reshape(length, taps + length - 1)
    first = jnp.sum(band[:, : centre + 1], 1, keepdims=True)
    last = jnp.sum(band[:, centre + length - 1 :], 1, keepdims=True)
    return jnp.concatenate([first, band[:, centre + 1 : centre + length - 1], last], 1).T


def correlate(x: Float[Array, "*lead length"], kernel: Float[Array, " taps"]) -> Array:
    """The replicate-padded cross-correlation of the last axis as one convolution over all rows."""
    length, centre = x.shape[-1], kernel.shape[0] // 2
    rows = jnp.pad(x.reshape(-1, 1, length), ((0, 0), (0, 0), (centre, centre)), mode="edge")
    smooth = lax.conv_general_dilated(
        rows, kernel.reshape(1, 1, -1), (1,), "VALID", precision=lax.Precision.HIGHEST
    )
    return smooth.reshape(x.shape)


def smooth(
    x: Float[Array, "*lead length"], kernel: Float[Array, " taps"], form: str = "auto"
) -> Float[Array, "*lead length"]:
    """Σ_i w_i x[clip(d + i - K//2)] along the last axis.

    form: "matrix" (a product with `band_matrix`: fastest for short rows, and its gradient is no
        convolution), "convolution", or "auto", which takes the matrix up to 1024 entries.
    """
    if one_of("form", form, ("auto", "matrix", "convolution")) == "auto":
        form = "matrix" if x.shape[-1] <= LONGEST_MATRIX else "convolution"
    if form == "matrix":
        return x @ band_matrix(kernel, x.shape[-1])
    return correlate(x, kernel)


class LearnableDecomposition(nn.Module):
    """x -> (main, residual) along the last axis with one kernel and bias for all rows.

    K + 1 parameters, trained without constraint (the sum of the kernel may drift from 1); with
    `ld_init="mov_frozen"` they are the moving average in the collection `frozen`.
    """

    kernel_size: int = 25
    ld_init: str = "softmax_gauss"
    form: str = "auto"

    def setup(self) -> None:
        kernel = initial_kernel(self.ld_init, self.kernel_size)
        if self.ld_init == "mov_frozen":
            self.kernel = self.variable("frozen", "kernel", lambda: kernel).value
            self.bias = self.variable("frozen", "bias", lambda: jnp.zeros(())).value
        else:
            self.kernel = self.param("kernel", lambda _: kernel)
            self.bias = self.param("bias", nn.initializers.zeros, ())

    def __call__(self, x: Float[Array, "*lead length"]) -> tuple[Array, Array]:
        main = self.linear(x) + self.bias.astype(x.dtype)
        return main, x - main

    def linear(self, x: Float[Array, "*lead length"]) -> Float[Array, "*lead length"]:
        """`main` without the bias: a linear map of x, which lets callers fold it into weights."""
        return smooth(x, self.kernel.astype(x.dtype), self.form)
