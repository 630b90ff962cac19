"""SCINet: a binary tree of blocks in which the even and the odd steps of a series interact."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, positive_fields
from rflib.core.errors import UserError
from rflib.methods.leddam.model import denormalise, normalise
from rflib.nn.conv import conv1d, pad_time
from rflib.nn.initializers import fan_in_uniform
from rflib.nn.linear import affine
from rflib.nn.position import timing_signal


def interleave(
    even: Float[Array, "batch evens n_series"], odd: Float[Array, "batch odds n_series"]
) -> Float[Array, "batch length n_series"]:
    """even[0], odd[0], even[1], …; `even` may be one step longer."""
    (batch, evens, channels), odds = even.shape, odd.shape[1]
    odd = jnp.pad(odd, ((0, 0), (0, evens - odds), (0, 0)))
    both = jnp.stack([even, odd], 2).reshape(batch, 2 * evens, channels)
    return both[:, : evens + odds]


class Level(nn.Module):
    """The SCI blocks of one level of the tree: `nodes` sequences in, 2 `nodes` half as long out.

    For each node with even steps e and odd steps o (the last step repeated if their number is
    odd, and dropped from o again afterwards):

        e' = e exp(φ(o)),   o' = o exp(ψ(e)),   e'' = e' + ρ(o'),   o'' = o' - η(e')

    φ, ψ, ρ, η: the ends repeated K - 1 steps, convolution of K taps, LeakyReLU(0.01), dropout,
    convolution of K taps, tanh; N -> N channels. The parameters are stacked as [nodes, 4, …] in
    that order: the lengths within a level differ by one at most, and nodes of one length are
    evaluated in one product, which compiles and runs far faster than a block at a time.
    """

    nodes: int
    channels: int
    taps: int
    dropout: float

    def setup(self) -> None:
        init = fan_in_uniform(self.channels * self.taps)
        bias = (self.nodes, 4, self.channels)
        weight = (*bias, self.taps, self.channels)
        self.first_weight = self.param("first_weight", init, weight)
        self.first_bias = self.param("first_bias", init, bias)
        self.second_weight = self.param("second_weight", init, weight)
        self.second_bias = self.param("second_bias", init, bias)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, parts: Sequence[Array], train: bool) -> list[Array]:
        """parts: [B, length, N] each. Returns (e'', o'') of part 0, of part 1, …"""
        halves: dict[int, Array] = {}
        for length in sorted({part.shape[1] for part in parts}):
            alike = [i for i, part in enumerate(parts) if part.shape[1] == length]
            pairs = self._interact(jnp.stack([parts[i] for i in alike]), alike, train)
            for pair, i in zip(pairs, alike, strict=True):
                halves[2 * i], halves[2 * i + 1] = pair[0], pair[1, :, : length // 2]
        return [halves[i] for i in range(2 * self.nodes)]

    def _interact(
        self, x: Float[Array, "alike batch length n_series"], alike: list[int], train: bool
    ) -> Float[Array, "alike 2 batch half n_series"]:
        x = pad_time(x, 0, x.shape[2] % 2, "replicate")
        pair = jnp.stack([x[:, :, 0::2], x[:, :, 1::2]], 1)
        pair *= jnp.exp(self._convolve(pair[:, ::-1], alike, slice(0, 2), train))
        change = self._convolve(pair[:, ::-1], alike, slice(2, 4), train)
        return jnp.stack([pair[:, 0] + change[:, 0], pair[:, 1] - change[:, 1]], 1)

    def _convolve(
        self,
        x: Float[Array, "alike 2 batch half n_series"],
        alike: list[int],
        which: slice,
        train: bool,
    ) -> Float[Array, "alike 2 batch half n_series"]:
        def take(stacked: Array) -> Array:
            chosen = stacked if len(alike) == self.nodes else stacked[np.asarray(alike)]
            return chosen[:, which]

        convolve = jax.vmap(jax.vmap(conv1d))
        x = pad_time(x, self.taps - 1, self.taps - 1, "replicate")
        x = convolve(x, take(self.first_weight), take(self.first_bias))
        x = self.drop(jax.nn.leaky_relu(x, 0.01), deterministic=not train)
        return jnp.tanh(convolve(x, take(self.second_weight), take(self.second_bias)))


class SCINet(nn.Module):
    """[B, T, N] past -> [B, S, N] future.

    Liu et al., "SCINet: Time Series Modeling and Forecasting with Sample Convolution and
    Interaction" (NeurIPS 2022), one stack, in the form of the Time-Series Library: instance norm,
    plus a fixed sinusoid over time with a frequency a series; the tree of `Level`s, its leaves
    interleaved back into T steps; plus the tree's input; a linear map over time without bias;
    de-normalised. The library maps T -> T + S and keeps the last S: the T rows that reach no
    output are left out here. It also never hands its dropout rate on, hence the default of 0.

    n_series: N. seq_len, pred_len: T and S, in time steps; T >= 2^(n_levels - 1).
    kernel_size: K taps of each convolution. n_levels: depth of the tree, 2^n_levels - 1 blocks.
    dropout: rate in [0, 1). instance_norm: False keeps the input's units.

    Raises:
        UserError: a number out of range, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int
    kernel_size: int = 5
    n_levels: int = 4
    dropout: float = 0.0
    instance_norm: bool = True

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len", "kernel_size", "n_levels")
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        if self.seq_len < 2 ** (self.n_levels - 1):
            raise UserError(
                f"seq_len={self.seq_len} must be at least 2^(n_levels - 1) = "
                f"{2 ** (self.n_levels - 1)}: else a block of the tree has no step to work on"
            )
        super().__post_init__()

    def setup(self) -> None:
        size = (self.n_series, self.kernel_size, self.dropout)
        self.levels = [Level(2**i, *size) for i in range(self.n_levels)]
        shape = (self.pred_len, self.seq_len)
        self.projection = self.param("projection", fan_in_uniform(self.seq_len), shape)

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        window = normalise(x, self.instance_norm)
        series = jnp.swapaxes(window.values, 1, 2)
        series += timing_signal(self.seq_len, self.n_series).astype(series.dtype)[None]
        parts = [series]
        for level in self.levels:
            parts = level(parts, train)
        while len(parts) > 1:
            parts = [interleave(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
        mixed = jnp.swapaxes(parts[0] + series, 1, 2)
        return denormalise(affine(mixed, self.projection), window)
