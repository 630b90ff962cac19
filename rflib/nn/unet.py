"""A U-Net for images: residual blocks, self-attention, a conditioning vector; channels last.

Ho et al., "Denoising Diffusion Probabilistic Models" (NeurIPS 2020), with the options of Dhariwal
and Nichol (NeurIPS 2021) and of GLIDE. Norms and softmax are float32 whatever `dtype` is.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, multiple_of, one_of, positive_int
from rflib.core.errors import UserError
from rflib.nn.conv import Conv2d
from rflib.nn.embed import time_sinusoid

_ZEROS = nn.initializers.zeros_init()


class GroupNorm(nn.Module):
    """Group normalisation with min(groups, channels) groups, statistics in float32 or wider."""

    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B *space c"]) -> Float[Array, "B *space c"]:
        channels = x.shape[-1]
        groups = min(self.groups, channels)
        multiple_of("channels", channels, "groups", groups)
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        parts = wide.reshape(x.shape[0], -1, groups, channels // groups)
        centred = parts - jnp.mean(parts, (1, 3), keepdims=True)
        variance = jnp.mean(jnp.square(centred), (1, 3), keepdims=True)
        normed = (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        row = (1,) * (x.ndim - 1) + (channels,)
        return (normed * scale.reshape(row) + bias.reshape(row)).astype(x.dtype)


def _upsample(x: Array) -> Array:
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def _pool(x: Array) -> Array:
    b, h, w, c = x.shape
    return jnp.mean(x.reshape(b, h // 2, 2, w // 2, 2, c), (2, 4))


class ResBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))) with the embedding))); the last convolution is 0.

    cond_mode: "add" adds the embedding after the first convolution, "scale_shift" scales and
    shifts the second norm by it. resample: "none", "down" or "up" by 2 on both paths.
    """

    features: int
    groups: int = 32
    dropout: float = 0.0
    cond_mode: str = "add"
    resample: str = "none"
    impl: str = "auto"

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"], emb: Float[Array, "B e"], train: bool) -> Array:
        change = {"none": lambda x: x, "down": _pool, "up": _upsample}[self.resample]
        h = nn.silu(GroupNorm(self.groups, name="norm_in")(x))
        h = Conv2d(self.features, impl=self.impl, name="conv_in")(change(h))
        width = self.features * (2 if self.cond_mode == "scale_shift" else 1)
        shift = nn.Dense(width, dtype=x.dtype, name="emb")(nn.silu(emb))[:, None, None]
        norm = GroupNorm(self.groups, name="norm_out")
        if self.cond_mode == "scale_shift":
            scale, shift = jnp.split(shift, 2, -1)
            h = nn.silu(norm(h) * (1 + scale) + shift)
        else:
            h = nn.silu(norm(h + shift))
        h = nn.Dropout(self.dropout, deterministic=not train)(h)
        h = Conv2d(self.features, impl=self.impl, kernel_init=_ZEROS, name="conv_out")(h)
        x = change(x)
        if x.shape[-1] != self.features:
            x = Conv2d(self.features, 1, impl=self.impl, name="skip")(x)
        return x + h


class Attention(nn.Module):
    """x + self-attention over all pixels, its last map 0; q and k are scaled by c^(-1/4) each."""

    heads: int = 1
    groups: int = 32

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"]) -> Float[Array, "B h w c"]:
        b, height, width, channels = x.shape
        size = multiple_of("channels", channels, "heads", self.heads) // self.heads
        flat = GroupNorm(self.groups, name="norm")(x).reshape(b, height * width, channels)
        qkv = nn.Dense(3 * channels, dtype=x.dtype, name="qkv")(flat)
        q, k, v = (part.reshape(b, -1, self.heads, size) for part in jnp.split(qkv, 3, -1))
        scale = size**-0.25
        logits = jnp.einsum("bqhd,bkhd->bhqk", q * scale, k * scale)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        weights = jax.nn.softmax(logits.astype(wide), -1).astype(x.dtype)
        out = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, height * width, channels)
        out = nn.Dense(channels, dtype=x.dtype, kernel_init=_ZEROS, name="out")(out)
        return x + out.reshape(x.shape)


class UNet(nn.Module):
    """Images [B, h, w, c], times [B] and a condition [B, d] or None -> [B, h, w, out].

    base: channels of the first level; mult: their multiples by level, each half as large as the
    one before. blocks: residual blocks a level. attn_levels: levels with self-attention, 0 the
    finest. head_dim: channels of a head, 0 for one head. cond_mode: see `ResBlock`.
    cond_merge: "sum" adds a dense map of the condition to the embedding of the time, "concat"
    puts the condition next to it. resample: "conv" (strided; nearest neighbour and a convolution)
    or "resblock". time_scale: what a time is multiplied by before its sinusoid. impl: of the
    convolutions, see `conv2d`. remat: recompute blocks in the backward pass.

    Starts as the zero function.

    Raises:
        UserError: a choice or a number out of range; images that cannot be halved often enough.
    """

    out: int
    base: int = 128
    mult: tuple[int, ...] = (1, 2, 2, 2)
    blocks: int = 2
    attn_levels: tuple[int, ...] = (1,)
    head_dim: int = 0
    dropout: float = 0.0
    groups: int = 32
    emb_dim: int = 0
    cond_mode: str = "add"
    cond_merge: str = "sum"
    resample: str = "conv"
    time_scale: float = 1000.0
    impl: str = "auto"
    remat: bool = False
    dtype: Any = None

    def __post_init__(self) -> None:
        for name in ("out", "base", "blocks", "groups"):
            positive_int(name, getattr(self, name))
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        one_of("cond_mode", self.cond_mode, ("add", "scale_shift"))
        one_of("cond_merge", self.cond_merge, ("sum", "concat"))
        one_of("resample", self.resample, ("conv", "resblock"))
        for level in self.attn_levels:
            one_of("attn_levels", level, range(len(self.mult)))
        super().__post_init__()

    def _embedding(self, t: Array, cond: Array | None) -> Array:
        width = self.emb_dim or 4 * self.base
        sinusoid = time_sinusoid(t, self.base, scale=self.time_scale)
        emb = nn.Dense(width, name="time_0")(sinusoid)
        emb = nn.Dense(width, name="time_1")(nn.silu(emb))
        if cond is None:
            return emb
        if self.cond_merge == "sum":
            return emb + nn.Dense(width, name="cond")(cond)
        return jnp.concatenate([emb, cond.astype(emb.dtype)], -1)

    def _block(self, features: int, name: str, resample: str = "none") -> Any:
        kind = nn.remat(ResBlock, static_argnums=(3,)) if self.remat else ResBlock
        return kind(
            features, self.groups, self.dropout, self.cond_mode, resample, self.impl, name=name
        )

    def _attention(self, x: Array, name: str) -> Array:
        heads = x.shape[-1] // self.head_dim if self.head_dim else 1
        return Attention(max(heads, 1), self.groups, name=name)(x)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B h w c"],
        t: Float[Array, " B"],
        cond: Float[Array, "B d"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B h w out"]:
        last = len(self.mult) - 1
        for side in x.shape[1:3]:
            if side % 2**last:
                raise UserError(f"images of {x.shape[1:3]} cannot be halved {last} times")
        emb = self._embedding(t, cond)
        if self.dtype is not None:
            x, emb = x.astype(self.dtype), emb.astype(self.dtype)
        h = Conv2d(self.base, impl=self.impl, name="in")(x)
        skips = [h]
        for level, mult in enumerate(self.mult):
            for block in range(self.blocks):
                h = self._block(self.base * mult, f"down_{level}_{block}")(h, emb, train)
                if level in self.attn_levels:
                    h = self._attention(h, f"down_{level}_{block}_attention")
                skips.append(h)
            if level < last:
                h = self._down(h, emb, train, level)
                skips.append(h)
        h = self._block(h.shape[-1], "middle_0")(h, emb, train)
        h = self._attention(h, "middle_attention")
        h = self._block(h.shape[-1], "middle_1")(h, emb, train)
        for level in reversed(range(len(self.mult))):
            for block in range(self.blocks + 1):
                h = jnp.concatenate([h, skips.pop()], -1)
                h = self._block(self.base * self.mult[level], f"up_{level}_{block}")(h, emb, train)
                if level in self.attn_levels:
                    h = self._attention(h, f"up_{level}_{block}_attention")
            if level > 0:
                h = self._up(h, emb, train, level)
        h = nn.silu(GroupNorm(self.groups, name="norm")(h))
        y = Conv2d(self.out, impl=self.impl, kernel_init=_ZEROS, name="out_conv")(h)
        return y.astype(jnp.promote_types(y.dtype, jnp.float32))

    def _down(self, h: Array, emb: Array, train: bool, level: int) -> Array:
        if self.resample == "resblock":
            return self._block(h.shape[-1], f"down_{level}", "down")(h, emb, train)
        return Conv2d(h.shape[-1], stride=2, impl=self.impl, name=f"down_{level}")(h)

    def _up(self, h: Array, emb: Array, train: bool, level: int) -> Array:
        if self.resample == "resblock":
            return self._block(h.shape[-1], f"up_{level}", "up")(h, emb, train)
        return Conv2d(h.shape[-1], impl=self.impl, name=f"up_{level}")(_upsample(h))
