"""Embeddings of times, labels and missing conditions."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import multiple_of, positive_int


def time_sinusoid(
    t: Float[Array, " B"], width: int, *, scale: float = 1000.0, longest: float = 10_000.0
) -> Float[Array, "B width"]:
    """cos and sin of scale t longest^(-i/(width/2)), i = 0 … width/2 - 1: cosines first.

    DDPM's embedding of fractional or integer steps; times in [0, 1] are stretched by `scale`.
    """
    multiple_of("width", positive_int("width", width), "2", 2)
    half = width // 2
    frequency = jnp.exp(-math.log(longest) * jnp.arange(half, dtype=t.dtype) / half)
    angle = scale * t[:, None] * frequency[None]
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], 1)


class FourierFeatures(nn.Module):
    """cos and sin of 2π f t with frequencies f ~ N(0, scale²) drawn once and not trained."""

    width: int
    scale: float = 16.0

    @nn.compact
    def __call__(self, t: Float[Array, " B"]) -> Float[Array, "B width"]:
        half = multiple_of("width", self.width, "2", 2) // 2
        draw = nn.initializers.normal(self.scale)
        frequency = jax.lax.stop_gradient(self.param("frequency", draw, (half,)))
        angle = 2 * math.pi * t[:, None] * frequency[None]
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], 1)


class LabelEmbedding(nn.Module):
    """Rows of a table by label; label `classes` is the learned row of "no condition"."""

    classes: int
    width: int

    @nn.compact
    def __call__(self, label: Int[Array, " B"]) -> Float[Array, "B width"]:
        draw = nn.initializers.normal(0.02)
        return self.param("table", draw, (self.classes + 1, self.width))[label]


def drop_labels(
    key: Array, label: Int[Array, " B"], classes: int, probability: float
) -> Int[Array, " B"]:
    """Labels of which each is "no condition" (`classes`) with the given probability."""
    dropped = jax.random.bernoulli(key, probability, label.shape)
    return jnp.where(dropped, classes, label)
