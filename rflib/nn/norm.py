"""Batch normalisation with PyTorch's running averages, and layer normalisation."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float


class BatchNorm(nn.Module):
    """Normalises with one mean and variance per entry of `axis`, taken over all other axes.

    Training: the biased batch variance normalises; the running average takes the *unbiased* one,
    new = (1 - momentum) old + momentum batch, as PyTorch's BatchNorm does (flax's `momentum` is
    the complement, and it averages the biased variance). The running values live in the
    collection `batch_stats`; make it mutable when `train`. Statistics are float32 or wider.

    axis: the axis that keeps its own statistics, scale and bias (length `features`).
    """

    features: int
    axis: int
    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "..."], train: bool) -> Float[Array, "..."]:
        shape = (self.features,)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        kept = self.axis % x.ndim
        column = tuple(self.features if i == kept else 1 for i in range(x.ndim))
        if train:
            others = tuple(i for i in range(x.ndim) if i != kept)
            mean = jnp.mean(x.astype(wide), others)
            centred = x.astype(wide) - mean.reshape(column)
            var = jnp.mean(jnp.square(centred), others)
            if not self.is_initializing():
                count = x.size // self.features
                unbiased = var * (count / max(count - 1, 1))
                self._average(running_mean, mean)
                self._average(running_var, unbiased)
        else:
            mean, var = running_mean.value.astype(wide), running_var.value.astype(wide)
            centred = x.astype(wide) - mean.reshape(column)
        factor = (scale * jax.lax.rsqrt(var + self.epsilon)).reshape(column)
        return (centred * factor + bias.reshape(column)).astype(x.dtype)

    def _average(self, running: nn.Variable, value: Array) -> None:
        new = (1 - self.momentum) * running.value + self.momentum * jax.lax.stop_gradient(value)
        running.value = new.astype(running.value.dtype)


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 over the last axis (length `features`), then scale and bias.

    The biased variance, plus 1e-5 unless told otherwise; statistics in float32 or wider. On CPU it
    takes fewer passes over memory than `flax.linen.LayerNorm`, which spreads the product of scale
    and deviation over the whole array first.
    """

    features: int
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        scale = self.param("scale", nn.initializers.ones, (self.features,))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - jnp.mean(wide, -1, keepdims=True)
        var = jnp.mean(jnp.square(centred), -1, keepdims=True)
        row = (1,) * (x.ndim - 1) + (self.features,)
        result = centred * jax.lax.rsqrt(var + self.epsilon) * scale.reshape(row)
        return (result + bias.reshape(row)).astype(x.dtype)
