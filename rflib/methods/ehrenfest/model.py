"""Networks of the reversed process: they see x and t, never x_0, and return heads a coordinate."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import positive_int
from rflib.methods.ehrenfest.process import Process
from rflib.nn.unet import UNet

_ZEROS = nn.initializers.zeros_init()
FREQUENCIES = 8


def time_features(t: Float[Array, " B"], process: Process) -> Float[Array, "B features"]:
    """sin and cos(2π f t) for f = 1, 2, 4, …, 128 and log(1 - w²): [B, 17]."""
    angle = 2 * math.pi * t[:, None] * (2.0 ** jnp.arange(FREQUENCIES))[None].astype(t.dtype)
    level = jnp.log(process.sig2(t))[:, None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle), level], 1)


class Mlp(nn.Module):
    """[B, *n] and t [B] -> [B, *n, heads]: dense layers with SiLU on (x/√S, time features).

    The last layer also sees the input and starts at 0: ratios start at 1, scores at 0.
    """

    process: Process
    heads: int
    width: int = 256
    layers: int = 3

    def __post_init__(self) -> None:
        for name in ("heads", "width", "layers"):
            positive_int(name, getattr(self, name))
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "B *n"], t: Float[Array, " B"]) -> Array:
        flat = x.reshape(x.shape[0], -1)
        given = jnp.concatenate(
            [flat / math.sqrt(self.process.size), time_features(t, self.process)], 1
        )
        h = given
        for layer in range(self.layers):
            h = nn.silu(nn.Dense(self.width, name=f"hidden_{layer}")(h))
        last = nn.Dense(flat.shape[1] * self.heads, kernel_init=_ZEROS, name="out")
        return last(jnp.concatenate([h, given], 1)).reshape(*x.shape, self.heads)


class ResidualMlp(nn.Module):
    """[B, *n] and t [B] -> [B, *n, heads]: residual blocks on the flattened x, for small images.

    h <- h + Dense_0(silu(Dense(silu(LayerNorm(h) + Dense(e))))) with e = silu(Dense(time
    features)); Dense_0 and the last layer start at 0. x enters as it is: for √S <= 8 it has unit
    order, as long as the lattice is filled ("small" embedding).
    """

    process: Process
    heads: int
    width: int = 512
    blocks: int = 4
    embedding: int = 128

    def __post_init__(self) -> None:
        for name in ("heads", "width", "blocks", "embedding"):
            positive_int(name, getattr(self, name))
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "B *n"], t: Float[Array, " B"]) -> Array:
        flat = x.reshape(x.shape[0], -1)
        features = time_features(t, self.process)
        e = nn.silu(nn.Dense(self.embedding, name="time")(features))
        h = nn.Dense(self.width, name="in")(flat)
        for block in range(self.blocks):
            inner = nn.LayerNorm(name=f"norm_{block}")(h)
            inner = nn.silu(inner + nn.Dense(self.width, name=f"time_{block}")(e))
            inner = nn.silu(nn.Dense(self.width, name=f"hidden_{block}")(inner))
            h = h + nn.Dense(self.width, kernel_init=_ZEROS, name=f"back_{block}")(inner)
        h = nn.silu(nn.LayerNorm(name="norm")(h))
        last = nn.Dense(flat.shape[1] * self.heads, kernel_init=_ZEROS, name="out")
        return last(h).reshape(*x.shape, self.heads)


class UNetHeads(nn.Module):
    """Images [B, h, w, c] and t [B] -> [B, h, w, c, heads] by a U-Net with c heads channels.

    unet: its options but `out`. scale: what x is divided by to have unit order, 1 for data in
    [-1, 1] ("wide" embedding).
    """

    heads: int
    unet: Mapping[str, Any]
    scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B h w c"], t: Float[Array, " B"], train: bool = False
    ) -> Float[Array, "B h w c heads"]:
        net = UNet(out=x.shape[-1] * self.heads, **dict(self.unet), name="unet")
        return net(x / self.scale, t, None, train).reshape(*x.shape, self.heads)
