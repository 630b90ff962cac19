"""Initial values that flax lacks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn.initializers import Initializer


def fan_in_uniform(fan_in: int) -> Initializer:
    """U(-1/√fan_in, 1/√fan_in) for any shape: PyTorch's default for kernels and biases alike.

    flax's own dense layers start their biases at zero and draw kernels of another variance.
    """
    bound = 1 / math.sqrt(fan_in)

    def init(key: Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init
