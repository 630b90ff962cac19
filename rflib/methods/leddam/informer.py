"""Informer: the transformer with attention for few queries and an encoder that halves its tokens.

Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting",
AAAI 2021.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import positive_int
from rflib.methods.leddam.transformer import (
    Attention,
    CircularConvolution,
    MakeAttention,
    Transformer,
)
from rflib.nn.norm import BatchNorm
from rflib.nn.softmax import softmax


def sparse_count(length: int, factor: int) -> int:
    """u = factor ⌈ln L⌉ of L tokens: at least 1 and at most L."""
    return max(1, min(length, factor * math.ceil(math.log(length))))


def sampled_keys(
    queries: int, keys: int, count: int, key: Array | None = None
) -> Int[Array, "queries count"]:
    """The keys that each query is compared with: `count` draws with replacement of `keys`.

    Without a random `key` the draw is the same for the same sizes, always. All keys, once each, if
    `count` is `keys`.
    """
    if count >= keys:
        return jnp.broadcast_to(jnp.arange(keys), (queries, keys))
    if key is None:
        return jnp.asarray(np.random.default_rng(0).integers(keys, size=(queries, count)))
    return jax.random.randint(key, (queries, count), 0, keys)


def sparsity(
    scores: Float[Array, "*lead queries keys"], sample: Int[Array, "queries count"]
) -> Float[Array, "*lead queries"]:
    """Greatest minus mean score of each query over its sampled keys (Algorithm 1, step 3).

    A query whose weights are almost uniform has a small measure. (The authors' code divides the
    sum by the number of *all* keys instead of that of the sampled ones.)

    It is read off all scores: on CPU and up to thousands of tokens their product is much cheaper
    than gathering a copy of the sampled keys for each query.
    """
    queries, count = sample.shape
    times = jnp.zeros(scores.shape[-2:], scores.dtype)
    times = times.at[jnp.arange(queries)[:, None], sample].add(1)
    times = times.reshape((1,) * (scores.ndim - 2) + times.shape)
    greatest = jnp.max(jnp.where(times > 0, scores, -jnp.inf), -1)
    return greatest - jnp.sum(scores * times, -1) / count


class ProbSparseAttention(Attention):
    """Attention for the u = factor ⌈ln L⌉ queries of the greatest sparsity measure only.

    The other rows get what a uniform weight gives: mean(V) or, if causal, the sum (as in the
    authors' code, not the mean) of V up to the row. The measure compares each query with factor
    ⌈ln M⌉ sampled keys: drawn in training, from the stream "sample" or, without it, "dropout"; the
    fixed draw of `sampled_keys` otherwise. The choice of queries passes no gradient. It compares
    all queries and, also if causal, all keys; the rows themselves then see no later token.

    As in the authors' code there is no dropout on these weights.
    """

    factor: int = 5

    def mix(self, query: Array, key: Array, value: Array, train: bool) -> Array:
        chosen = self.choose(*jax.lax.stop_gradient((query, key)), train)
        self.sow("intermediates", "queries", chosen)
        # Products with one-hot rows: gathers and scatters, their gradients, are slower on CPU.
        rows = jax.nn.one_hot(chosen, query.shape[2], dtype=query.dtype)
        scores = rows @ (query * query.shape[-1] ** -0.5) @ jnp.swapaxes(key, 2, 3)
        if self.causal:
            later = jnp.arange(key.shape[2]).reshape(1, 1, 1, -1) > chosen[..., None]
            scores = jnp.where(later, -jnp.inf, scores)
            rest = jnp.cumsum(value, 2)
        else:
            rest = jnp.mean(value, 2, keepdims=True)
        mixed = softmax(scores) @ value
        left = 1 - jnp.sum(rows, 2)[..., None]
        return jnp.swapaxes(rows, 2, 3) @ mixed + left * rest

    def choose(self, query: Array, key: Array, train: bool) -> Int[Array, "batch heads u"]:
        """Positions of the queries that get attention of their own."""
        length, others = query.shape[2], key.shape[2]
        draw = None
        if train:
            draw = self.make_rng("sample" if self.has_rng("sample") else "dropout")
        sample = sampled_keys(length, others, sparse_count(others, self.factor), draw)
        measure = sparsity(query @ jnp.swapaxes(key, 2, 3), sample)
        return jax.lax.top_k(measure, sparse_count(length, self.factor))[1]


class Distilling(nn.Module):
    """Circular convolution of width 3, BatchNorm, ELU, maximum over 3 at every second token.

    L tokens become ⌈L/2⌉: token i is the maximum over 2i - 1, 2i and 2i + 1.
    """

    d_model: int

    @nn.compact
    def __call__(self, x: Float[Array, "batch tokens d_model"], train: bool) -> Array:
        x = CircularConvolution(self.d_model, self.d_model, name="convolution")(x)
        x = nn.elu(BatchNorm(self.d_model, axis=-1, name="batch_norm")(x, train))
        edges = jnp.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=-jnp.inf)
        return functools.reduce(
            jnp.maximum, (edges[:, tap : tap + x.shape[1] : 2] for tap in range(3))
        )


class Informer(Transformer):
    """Transformer with ProbSparse self-attention and, between encoder layers, distilling.

    factor: u = factor ⌈ln L⌉ queries get attention of their own. distil: halve the tokens after
    each layer of the encoder but the last. All else, marks too, as in `Transformer`; attention of
    the decoder to the encoder is full. Training needs a random key, also if nothing is dropped
    out.
    """

    factor: int = 5
    distil: bool = True

    def __post_init__(self) -> None:
        positive_int("factor", self.factor)
        super().__post_init__()

    def attention(self, causal: bool) -> MakeAttention:
        size = (self.d_model, self.n_heads, self.dropout, causal)
        return functools.partial(ProbSparseAttention, *size, factor=self.factor)

    def make_between(self) -> Sequence[nn.Module]:
        return [Distilling(self.d_model) for _ in range(self.n_layers - 1 if self.distil else 0)]
