"""Fixed tables of positions, added to the tokens of a sequence."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float


def sinusoid(length: int, width: int) -> Float[Array, "length width"]:
    """sin and cos(t 10000^(-2i/width)) in columns 2i and 2i + 1, for t = 0 … length - 1.

    Vaswani et al., "Attention Is All You Need" (NeurIPS 2017), section 3.5; float32.
    """
    angle = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    table = np.empty((length, width), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : width // 2]
    return jnp.asarray(table)


def timing_signal(length: int, width: int) -> Float[Array, "length width"]:
    """sin(t f_i) in the first half of the columns, cos(t f_i) in the second; float32.

    f_i = 10000^(-i/(n - 1)) for i = 0 … n - 1, n = ceil(width / 2): all scales from 1 to 1/10000,
    both ends included (tensor2tensor's layout). An odd width goes without the last cosine.
    """
    scales = (width + 1) // 2
    frequency = 10000.0 ** (-np.arange(scales) / max(scales - 1, 1))
    angle = np.arange(length)[:, None] * frequency
    table = np.concatenate([np.sin(angle), np.cos(angle)], 1)[:, :width]
    return jnp.asarray(table, jnp.float32)
