"""The learnable decomposition (LD): one trainable smoothing kernel splits trend from the rest.

Leddam (ICML 2024), section 3.2. With kernel w (K taps, K odd), bias c and edge replication,

    main[d] = c + Σ_i w_i x[clip(d + i - K//2)],    residual = x - main,

the same w and c for every channel. Everything here works on the last axis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array, lax
from jaxtyping import Float

from rflib.core import trees
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


CONSTRAINTS = ("none", "simplex", "symmetric")
_LEAST = 1e-30  # a tap below it (far out in a wide bell) starts here: its logarithm is finite


def check_kernels(
    ld_init: str, kernel_size: int, constraint: str = "none", more_kernels: Sequence[int] = ()
) -> None:
    """Raises a UserError unless these describe a decomposition."""
    one_of("kernel_constraint", constraint, CONSTRAINTS)
    for size in (kernel_size, *more_kernels):
        initial_kernel(ld_init, size)


def decomposition_size(
    kernel_size: int, constraint: str = "none", more_kernels: Sequence[int] = ()
) -> int:
    """Trainable numbers of a decomposition that is not frozen: taps, bias, gate."""
    sizes = (kernel_size, *more_kernels)
    taps = sum(size // 2 + 1 if constraint == "symmetric" else size for size in sizes)
    return taps + 1 + (len(sizes) if more_kernels else 0)


def _mixture(kernels: Sequence[Array], shares: Float[Array, " kernels"]) -> Array:
    """Σ_k share_k kernel_k, centred on each other, as long as the longest."""
    longest = max(kernel.shape[0] for kernel in kernels)
    padded = [jnp.pad(kernel, (longest - kernel.shape[0]) // 2) for kernel in kernels]
    return jnp.sum(shares[:, None] * jnp.stack(padded), 0)


class LearnableDecomposition(nn.Module):
    """x -> (main, residual) along the last axis with one kernel and bias for all rows.

    K + 1 parameters, trained without constraint (the sum of the kernel may drift from 1); with
    `ld_init="mov_frozen"` they are the moving average in the collection `frozen`. The kernel that
    is applied and the bias are the attributes `kernel` and `bias` of the bound module.

    Beyond the paper:

    constraint: "simplex" trains the logits of a softmax over the taps: none is negative and they
        sum to 1 always. "symmetric" trains K//2 + 1 logits, mirrored: also w_i = w_{K-1-i}, and a
        linear trend passes unchanged. The initial kernel is that of "none".
    more_kernels: sizes of further kernels, each with its own taps, mixed by a trained softmax gate
        that starts equal. The mixture is one kernel as long as the longest: the bank changes how
        it is described and trained, and not which maps there are.
    """

    kernel_size: int = 25
    ld_init: str = "softmax_gauss"
    form: str = "auto"
    constraint: str = "none"
    more_kernels: tuple[int, ...] = ()

    def setup(self) -> None:
        check_kernels(self.ld_init, self.kernel_size, self.constraint, self.more_kernels)
        sizes = (self.kernel_size, *self.more_kernels)
        first = [initial_kernel(self.ld_init, size) for size in sizes]
        if self.ld_init == "mov_frozen":
            kernel = _mixture(first, jnp.full(len(sizes), 1 / len(sizes)))
            self.kernel = self.variable("frozen", "kernel", lambda: kernel).value
            self.bias = self.variable("frozen", "bias", lambda: jnp.zeros(())).value
            return
        kernels = [self._taps(f"_{i}" if i else "", start) for i, start in enumerate(first)]
        if self.more_kernels:
            gate = self.param("gate", nn.initializers.zeros, (len(sizes),))
            self.kernel = _mixture(kernels, jax.nn.softmax(gate))
        else:
            self.kernel = kernels[0]
        self.bias = self.param("bias", nn.initializers.zeros, ())

    def _taps(self, suffix: str, start: Float[Array, " taps"]) -> Float[Array, " taps"]:
        if self.constraint == "none":
            return self.param(f"kernel{suffix}", lambda _: start)
        logits = jnp.log(jnp.maximum(start, _LEAST))
        if self.constraint == "symmetric":
            half = self.param(f"logits{suffix}", lambda _: logits[: start.shape[0] // 2 + 1])
            return jax.nn.softmax(jnp.concatenate([half, half[:-1][::-1]]))
        return jax.nn.softmax(self.param(f"logits{suffix}", lambda _: logits))

    def __call__(self, x: Float[Array, "*lead length"]) -> tuple[Array, Array]:
        main = self.linear(x) + self.bias.astype(x.dtype)
        return main, x - main

    def linear(self, x: Float[Array, "*lead length"]) -> Float[Array, "*lead length"]:
        """`main` without the bias: a linear map of x, which lets callers fold it into weights."""
        return smooth(x, self.kernel.astype(x.dtype), self.form)


def kernel_mask(params: Any) -> Any:
    """True at every parameter of a learnable decomposition, False elsewhere: a tree like `params`.

    For a learning rate of its own: optax.chain(optax.adam(lr),
    optax.masked(optax.scale(multiplier), kernel_mask)). All modules here call it `decomposition`.
    """

    def inside(path: Any, leaf: Any) -> bool:
        del leaf
        return "decomposition" in trees.path_name(path).split("/")

    return jax.tree_util.tree_map_with_path(inside, params)
