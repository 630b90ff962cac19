"""PatchTST: a transformer encoder over patches of each series alone."""

import functools

import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax
from jaxtyping import Float

from rflib.core.checks import in_range, multiple_of, positive_fields
from rflib.core.errors import UserError
from rflib.methods.leddam.dropout import Dropout
from rflib.methods.leddam.model import denormalise, normalise
from rflib.methods.leddam.transformer import Attention, EncoderLayer
from rflib.nn.conv import pad_time
from rflib.nn.initializers import fan_in_uniform
from rflib.nn.linear import Linear, affine
from rflib.nn.norm import BatchNorm
from rflib.nn.position import sinusoid


def patch_count(seq_len: int, patch_len: int, stride: int) -> int:
    """Patches of a window whose last value is repeated `stride` times: ⌊(T - P) / stride⌋ + 2."""
    return (seq_len - patch_len) // stride + 2


def patches(
    series: Float[Array, "*lead seq_len"], patch_len: int, stride: int
) -> Float[Array, "*lead count patch_len"]:
    """Windows of `patch_len` every `stride` steps, the last value repeated `stride` times first.

    Taken as one strided slice a position inside the patch: their number does not grow with the
    window, and the gradient with respect to the series is no scatter, which is slow on CPU.
    """
    count = patch_count(series.shape[-1], patch_len, stride)
    padded = pad_time(series[..., None], 0, stride, "replicate")[..., 0]
    reach = (count - 1) * stride + 1
    columns = [lax.slice_in_dim(padded, k, k + reach, stride, axis=-1) for k in range(patch_len)]
    return jnp.stack(columns, -1)


class PatchTST(nn.Module):
    """[B, T, N] past -> [B, S, N] future, each series forecast from itself by shared weights.

    Nie et al., "A Time Series is Worth 64 Words" (ICLR 2023), in the form of the Time-Series
    Library: instance norm, patches, Linear(patch_len -> D) without bias plus a fixed sinusoid,
    dropout, post-norm encoder layers over the patches, BatchNorm with one mean and variance a
    coordinate of D (over windows, series and patches), flattened, Linear(patches D -> S), dropout
    on the forecast, de-normalised. The flattened order is patch by patch; the library's is
    coordinate by coordinate, the same map with its columns in another order.

    n_series: N, which no parameter depends on. seq_len, pred_len: T and S, in time steps.
    patch_len, stride: in time steps, patch_len <= T + stride; they overlap if stride < patch_len.
    d_model, d_ff, n_heads, n_layers: of the encoder; n_heads divides d_model. The library's script
        for ETTh1 with S = 96 takes n_layers=1 and n_heads=2.
    dropout: rate in [0, 1) of every dropout. instance_norm: False keeps the input's units.

    Batch statistics are the collection `batch_stats`; training couples the windows of a batch.

    Raises:
        UserError: a number out of range, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int
    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    n_layers: int = 2
    patch_len: int = 16
    stride: int = 8
    dropout: float = 0.1
    instance_norm: bool = True

    def __post_init__(self) -> None:
        names = ("n_series", "seq_len", "pred_len", "d_model", "d_ff", "n_heads", "n_layers")
        positive_fields(self, *names, "patch_len", "stride")
        multiple_of("d_model", self.d_model, "n_heads", self.n_heads)
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        if self.patch_len > self.seq_len + self.stride:
            raise UserError(
                f"patch_len={self.patch_len} must be at most seq_len + stride = "
                f"{self.seq_len + self.stride}: else not one patch fits"
            )
        super().__post_init__()

    def setup(self) -> None:
        shape = (self.d_model, self.patch_len)
        self.embedding = self.param("embedding", fan_in_uniform(self.patch_len), shape)
        make = functools.partial(Attention, self.d_model, self.n_heads, self.dropout)
        size = (make, self.d_model, self.d_ff, self.dropout)
        self.layers = [EncoderLayer(*size) for _ in range(self.n_layers)]
        self.norm = BatchNorm(self.d_model, axis=-1)
        count = patch_count(self.seq_len, self.patch_len, self.stride)
        self.head = Linear(count * self.d_model, self.pred_len)
        self.drop = Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        window = normalise(x, self.instance_norm)
        series = window.values.reshape(-1, self.seq_len)
        tokens = affine(patches(series, self.patch_len, self.stride), self.embedding)
        tokens += sinusoid(*tokens.shape[1:]).astype(tokens.dtype)[None]
        tokens = self.drop(tokens, deterministic=not train)
        for layer in self.layers:
            tokens = layer(tokens, train)
        flat = self.norm(tokens, train).reshape(*window.values.shape[:2], -1)
        forecast = self.drop(self.head(flat), deterministic=not train)
        return denormalise(forecast, window)
