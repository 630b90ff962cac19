"""The encoder-decoder transformer as a forecaster, and the parts that Informer shares with it.

Vaswani et al. (NeurIPS 2017), with the embeddings and the one-shot decoder of Zhou et al.,
"Informer" (AAAI 2021): last known values, then zeros where S forecasts are filled in at once.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jax.nn.initializers import Initializer
from jaxtyping import Float

from rflib.core.checks import in_range, multiple_of, positive_fields, positive_int
from rflib.core.errors import UserError
from rflib.methods.leddam.dropout import Dropout
from rflib.nn.initializers import fan_in_uniform
from rflib.nn.linear import Linear, affine, gelu
from rflib.nn.norm import LayerNorm
from rflib.nn.softmax import softmax


def sinusoid(length: int, d_model: int) -> Float[np.ndarray, "length d_model"]:
    """sin and cos(t 10000^(-2i/D)) in even and odd columns, for t = 0, 1, ..."""
    angle = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : d_model // 2]
    return table


def decoder_input(
    x: Float[Array, "batch seq_len n_series"], label_len: int, pred_len: int
) -> Float[Array, "batch tokens n_series"]:
    """The last `label_len` known values, followed by `pred_len` zeros."""
    zeros = jnp.zeros((x.shape[0], pred_len, x.shape[2]), x.dtype)
    return jnp.concatenate([x[:, x.shape[1] - label_len :], zeros], 1)


class CircularConvolution(nn.Module):
    """y_t = W [x_{t-1}, x_t, x_{t+1}] + b along axis 1, whose two ends meet.

    `weight` is [features, 3 in_features], the taps in that order; PyTorch's default initial values
    unless `weight_init` says otherwise. One product instead of a convolution, whose gradient
    inside a scan is 80 times slower on CPU.
    """

    in_features: int
    features: int
    weight_init: Initializer | None = None
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "batch time inner"]) -> Float[Array, "batch time outer"]:
        default, shape = fan_in_uniform(3 * self.in_features), (self.features, 3 * self.in_features)
        weight = self.param("weight", self.weight_init or default, shape)
        bias = self.param("bias", default, (self.features,)) if self.use_bias else None
        taps = jnp.concatenate([jnp.roll(x, 1, 1), x, jnp.roll(x, -1, 1)], -1)
        return affine(taps.astype(weight.dtype), weight, bias)


class SequenceEmbedding(nn.Module):
    """Each time step as a token: values by circular convolution + position (+ calendar), dropout.

    The convolution has no bias and starts normal with variance 2/(3 N); positions are the
    fixed sinusoid; n_marks calendar features go through a linear map without bias (none if 0).
    """

    n_series: int
    d_model: int
    n_marks: int
    dropout: float

    def setup(self) -> None:
        init = nn.initializers.normal(math.sqrt(2 / (3 * self.n_series)))
        self.values = CircularConvolution(self.n_series, self.d_model, init, use_bias=False)
        if self.n_marks:
            shape = (self.d_model, self.n_marks)
            self.calendar = self.param("calendar", fan_in_uniform(self.n_marks), shape)
        self.drop = Dropout(self.dropout)

    def __call__(
        self,
        x: Float[Array, "batch tokens n_series"],
        marks: Float[Array, "batch tokens n_marks"] | None,
        train: bool,
    ) -> Float[Array, "batch tokens d_model"]:
        tokens = self.values(x)
        tokens += jnp.asarray(sinusoid(x.shape[1], self.d_model), tokens.dtype)[None]
        if marks is not None:
            tokens += affine(marks.astype(tokens.dtype), self.calendar)
        return self.drop(tokens, deterministic=not train)


class Attention(nn.Module):
    """Multi-head attention of `tokens` to `others`; causal: token t sees others up to t only.

    softmax(Q Kᵀ / √(D/heads)) V, with dropout on the weights, between four D -> D maps.
    """

    d_model: int
    n_heads: int
    dropout: float
    causal: bool = False

    def setup(self) -> None:
        self.query = Linear(self.d_model, self.d_model)
        self.key = Linear(self.d_model, self.d_model)
        self.value = Linear(self.d_model, self.d_model)
        self.output = Linear(self.d_model, self.d_model)
        self.drop = Dropout(self.dropout)

    def __call__(
        self,
        tokens: Float[Array, "batch tokens d_model"],
        others: Float[Array, "batch others d_model"],
        train: bool,
    ) -> Float[Array, "batch tokens d_model"]:
        def heads(x: Array) -> Array:
            return jnp.swapaxes(x.reshape(*x.shape[:2], self.n_heads, -1), 1, 2)

        query, key, value = self.query(tokens), self.key(others), self.value(others)
        mixed = self.mix(heads(query), heads(key), heads(value), train)
        return self.output(jnp.swapaxes(mixed, 1, 2).reshape(tokens.shape))

    def mix(self, query: Array, key: Array, value: Array, train: bool) -> Array:
        """[B, heads, L, E] queries, [B, heads, M, E] keys and values -> [B, heads, L, E]."""
        scores = (query * query.shape[-1] ** -0.5) @ jnp.swapaxes(key, 2, 3)
        if self.causal:
            visible = np.tri(query.shape[2], key.shape[2], dtype=bool)[None, None]
            scores = jnp.where(visible, scores, -jnp.inf)
        weights = softmax(scores)
        self.sow("intermediates", "weights", weights)
        return self.drop(weights, deterministic=not train) @ value


class FeedForward(nn.Module):
    """D -> d_ff, GELU, d_ff -> D, with dropout after both maps."""

    d_model: int
    d_ff: int
    dropout: float

    def setup(self) -> None:
        self.expand = Linear(self.d_model, self.d_ff)
        self.contract = Linear(self.d_ff, self.d_model)
        self.drop = Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch tokens d_model"], train: bool) -> Array:
        hidden = self.drop(gelu(self.expand(x)), deterministic=not train)
        return self.drop(self.contract(hidden), deterministic=not train)


MakeAttention = Callable[[], Attention]


class EncoderLayer(nn.Module):
    """Post-norm: x = LN(x + attention(x)), then LN(x + feed-forward(x))."""

    make_attention: MakeAttention
    d_model: int
    d_ff: int
    dropout: float

    def setup(self) -> None:
        self.attention = self.make_attention()
        self.feed_forward = FeedForward(self.d_model, self.d_ff, self.dropout)
        self.attention_norm = LayerNorm(self.d_model)
        self.output_norm = LayerNorm(self.d_model)
        self.drop = Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch tokens d_model"], train: bool) -> Array:
        mixed = self.attention(x, x, train)
        x = self.attention_norm(x + self.drop(mixed, deterministic=not train))
        return self.output_norm(x + self.feed_forward(x, train))


class DecoderLayer(nn.Module):
    """Post-norm: causal self-attention, full attention to the encoder's tokens, feed-forward."""

    make_attention: MakeAttention
    d_model: int
    n_heads: int
    d_ff: int
    dropout: float

    def setup(self) -> None:
        self.attention = self.make_attention()
        self.cross = Attention(self.d_model, self.n_heads, self.dropout)
        self.feed_forward = FeedForward(self.d_model, self.d_ff, self.dropout)
        self.attention_norm = LayerNorm(self.d_model)
        self.cross_norm = LayerNorm(self.d_model)
        self.output_norm = LayerNorm(self.d_model)
        self.drop = Dropout(self.dropout)

    def __call__(
        self,
        x: Float[Array, "batch tokens d_model"],
        encoded: Float[Array, "batch encoded d_model"],
        train: bool,
    ) -> Float[Array, "batch tokens d_model"]:
        mixed = self.attention(x, x, train)
        x = self.attention_norm(x + self.drop(mixed, deterministic=not train))
        mixed = self.cross(x, encoded, train)
        x = self.cross_norm(x + self.drop(mixed, deterministic=not train))
        return self.output_norm(x + self.feed_forward(x, train))


class Transformer(nn.Module):
    """[B, T, N] past -> [B, S, N] future, one token a time step; nothing is normalised.

    n_marks: calendar features a time step; 0 is a model without. Otherwise every call but the
        first needs `marks` [B, T + S, n_marks] of past and future time steps.
    label_len: known values that the decoder starts from; T if that is shorter.
    n_layers, n_decoder_layers: layers. dropout: after the embedding, on attention weights, after
        attention, after both maps of the feed-forward, in [0, 1).

    A LayerNorm follows the last layer of encoder and decoder, a linear map D -> N the decoder.

    Raises:
        UserError: a number out of range, when the module is made; marks of another shape.
    """

    n_series: int
    seq_len: int
    pred_len: int
    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    n_layers: int = 2
    n_decoder_layers: int = 1
    dropout: float = 0.1
    label_len: int = 48
    n_marks: int = 0

    def __post_init__(self) -> None:
        names = ("n_series", "seq_len", "pred_len", "d_model", "d_ff", "n_heads", "n_layers")
        positive_fields(self, *names, "n_decoder_layers", "label_len")
        positive_int("n_marks", self.n_marks, zero=True)
        multiple_of("d_model", self.d_model, "n_heads", self.n_heads)
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        super().__post_init__()

    def setup(self) -> None:
        embedding = (self.n_series, self.d_model, self.n_marks, self.dropout)
        self.encoder_embedding = SequenceEmbedding(*embedding)
        self.decoder_embedding = SequenceEmbedding(*embedding)
        see_all, see_past = self.attention(causal=False), self.attention(causal=True)
        encoder = (see_all, self.d_model, self.d_ff, self.dropout)
        decoder = (see_past, self.d_model, self.n_heads, self.d_ff, self.dropout)
        self.encoder = [EncoderLayer(*encoder) for _ in range(self.n_layers)]
        self.between = self.make_between()
        self.decoder = [DecoderLayer(*decoder) for _ in range(self.n_decoder_layers)]
        self.encoder_norm = LayerNorm(self.d_model)
        self.decoder_norm = LayerNorm(self.d_model)
        self.head = Linear(self.d_model, self.n_series)

    def attention(self, causal: bool) -> MakeAttention:
        """What makes the self-attention of encoder (not causal) and decoder (causal)."""
        return functools.partial(Attention, self.d_model, self.n_heads, self.dropout, causal)

    def make_between(self) -> Sequence[nn.Module]:
        """Modules f(tokens, train) after the encoder's layers 1, 2, ...; none here."""
        return []

    def __call__(
        self,
        x: Float[Array, "batch seq_len n_series"],
        train: bool,
        marks: Float[Array, "batch steps n_marks"] | None = None,
    ) -> Float[Array, "batch pred_len n_series"]:
        self._check(x, marks)
        known = min(self.label_len, x.shape[1])
        past = None if marks is None else marks[:, : x.shape[1]]
        future = None if marks is None else marks[:, x.shape[1] - known :]
        tokens = self.encoder_embedding(x, past, train)
        for number, layer in enumerate(self.encoder):
            tokens = layer(tokens, train)
            if number < len(self.between):
                tokens = self.between[number](tokens, train)
        encoded = self.encoder_norm(tokens)
        tokens = decoder_input(x, known, self.pred_len)
        tokens = self.decoder_embedding(tokens, future, train)
        for layer in self.decoder:
            tokens = layer(tokens, encoded, train)
        forecast = self.head(self.decoder_norm(tokens[:, known:]))
        return forecast.astype(x.dtype)

    def _check(self, x: Array, marks: Array | None) -> None:
        if marks is None and self.n_marks and not self.is_initializing():
            raise UserError(f"n_marks={self.n_marks}, but no marks are given")
        expected = (x.shape[0], x.shape[1] + self.pred_len, self.n_marks)
        if marks is not None and marks.shape != expected:
            raise UserError(f"marks {marks.shape} must be [B, T + S, n_marks] = {expected}")
