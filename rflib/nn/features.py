"""A small image classifier whose features measure generated images (`fid_feat` and the like)."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import positive_int
from rflib.nn.conv import Conv2d
from rflib.nn.unet import GroupNorm

CHANNELS = (16, 32, 64, 64)


class Classified(NamedTuple):
    """logits: [B, classes]. features: [B, 128], mean and maximum of the last map.

    maps: of the last three convolutions, for perceptual distances.
    """

    logits: Array
    features: Array
    maps: tuple[Array, ...]


class Feat2d(nn.Module):
    """Four 3 x 3 convolutions of 16, 32, 64, 64 channels, group norm, SiLU, pooling, one dense map.

    Images in [-1, 1], channels last. Strides are 1, 2, 2, 2; 1, 2, 2, 1 up to 8 pixels, so that the
    last map is at least 2 x 2 and its mean and maximum differ.
    """

    classes: int
    groups: int = 8
    impl: str = "auto"

    def __post_init__(self) -> None:
        positive_int("classes", self.classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"]) -> Classified:
        small = min(x.shape[1:3]) <= 8
        strides = (1, 2, 2, 1 if small else 2)
        maps = []
        for layer, (channels, stride) in enumerate(zip(CHANNELS, strides, strict=True)):
            x = Conv2d(channels, stride=stride, impl=self.impl, name=f"conv_{layer}")(x)
            x = nn.silu(GroupNorm(self.groups, name=f"norm_{layer}")(x))
            maps.append(x)
        pooled = jnp.concatenate([jnp.mean(x, (1, 2)), jnp.max(x, (1, 2))], -1)
        logits = nn.Dense(self.classes, name="out")(pooled)
        return Classified(logits, pooled, tuple(maps[1:]))
