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


def affine(
    x: Float[Array, "*lead inner"],
    weight: Float[Array, "outer inner"],
    bias: Float[Array, " outer"] | None = None,
) -> Float[Array, "*lead outer"]:
    """x Wᵀ + b on the last axis."""
    y = jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else add_row(y, bias)


class Linear(nn.Module):
    """x Wᵀ + b on the last axis: `weight` is [features, in_features], `bias` [features].

    Both start as U(±1/√in_features) unless `weight_init` says otherwise, and are attributes, so
    that a caller may multiply the weights of successive linear maps with each other first.

    The layout is PyTorch's, not flax's: with it the gradient of the weight comes out of one
    product as it is stored. In the other layout XLA on CPU copies the activations, transposed,
    and takes a slower product: 15 % of a Leddam training step.
    """

    in_features: int
    features: int
    weight_init: Initializer | None = None

    def setup(self) -> None:
        default = fan_in_uniform(self.in_features)
        shape = (self.features, self.in_features)
        self.weight = self.param("weight", self.weight_init or default, shape)
        self.bias = self.param("bias", default, (self.features,))

    def __call__(self, x: Float[Array, "*lead inner"]) -> Float[Array, "*lead outer"]:
        return affine(x, self.weight, self.bias)


def gelu(x: Array) -> Array:
    """x Φ(x) with the error function (no tanh approximation).

    Written with erf where `jax.nn.gelu` uses erfc, which costs two polynomials and a select.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * jnp.asarray(0.5**0.5, x.dtype)))
