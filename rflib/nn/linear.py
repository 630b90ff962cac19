"""The affine map with PyTorch's default initial values."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer
from jaxtyping import Float

from rflib.nn.initializers import fan_in_uniform


def add_row(x: Float[Array, "*lead width"], row: Float[Array, " width"]) -> Array:
    """x + row with the broadcast written out (rank promotion may be forbidden)."""
    return x + row.reshape((1,) * (x.ndim - 1) + row.shape)


class Linear(nn.Module):
    """x W + b on the last axis; `kernel` is [in_features, features], `bias` [features].

    Both start as U(±1/√in_features) unless `kernel_init` says otherwise. They are attributes, so
    that a caller may multiply kernels of successive linear maps with each other first.
    """

    in_features: int
    features: int
    kernel_init: Initializer | None = None

    def setup(self) -> None:
        default = fan_in_uniform(self.in_features)
        shape = (self.in_features, self.features)
        self.kernel = self.param("kernel", self.kernel_init or default, shape)
        self.bias = self.param("bias", default, (self.features,))

    def __call__(self, x: Float[Array, "*lead inner"]) -> Float[Array, "*lead outer"]:
        return add_row(x @ self.kernel, self.bias)


def gelu(x: Array) -> Array:
    """x Φ(x) with the error function (no tanh approximation).

    Written with erf where `jax.nn.gelu` uses erfc, which costs two polynomials and a select.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * jnp.asarray(0.5**0.5, x.dtype)))
