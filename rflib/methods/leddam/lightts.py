"""LightTS: small networks over two ways of cutting the window into chunks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import positive_fields
from rflib.core.errors import UserError
from rflib.nn.linear import Linear


def _identity(key: Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> Array:
    del key, out_sharding
    return jnp.eye(*shape, dtype=dtype)


class InformationExchange(nn.Module):
    """The paper's IEBlock: [..., nodes, in_features] -> [..., nodes, features].

    h = Linear(hidden -> hidden/4)(LeakyReLU(Linear(in -> hidden)(x))) for each node, then
    h + Linear(nodes -> nodes)(h) across nodes, whose weight starts as the identity, then
    Linear(hidden/4 -> features) for each node. LeakyReLU has slope 0.01.
    """

    in_features: int
    hidden: int
    features: int
    nodes: int

    def setup(self) -> None:
        self.expand = Linear(self.in_features, self.hidden)
        self.contract = Linear(self.hidden, self.hidden // 4)
        self.exchange = Linear(self.nodes, self.nodes, _identity)
        self.output = Linear(self.hidden // 4, self.features)

    def __call__(self, x: Float[Array, "*lead nodes in_features"]) -> Array:
        inner = self.contract(jax.nn.leaky_relu(self.expand(x), 0.01))
        across = jnp.swapaxes(inner, -1, -2)
        across += self.exchange(across)
        return self.output(jnp.swapaxes(across, -1, -2))


class LightTS(nn.Module):
    """[B, T, N] past -> [B, S, N] future by exchange inside chunks, across chunks and series.

    Zhang et al., "Less Is More: Fast Multivariate Time Series Forecasting with Light
    Sampling-oriented MLP Structures" (arXiv 2207.01186), in the form of the Time-Series Library.
    The window is padded at its end with zeros to M chunks of C steps and cut twice: continuous
    sampling, chunk m = x[mC : (m+1)C], and interval sampling, chunk m = x[m::M]. For each series
    each cut goes through an IEBlock(C -> d/4, M nodes) and Linear(M -> 1); the two results side by
    side go through an IEBlock(d/2 -> S) whose nodes are the N series. A highway Linear(T -> S) is
    added (on the T given steps; the padding's zeros would add nothing). Nothing is normalised or
    dropped out.

    n_series: N. seq_len, pred_len: T and S, in time steps.
    d_model: d, a multiple of 16. chunk_size: C in time steps, cut to T or S where these are less.

    Raises:
        UserError: a number out of range, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int
    d_model: int = 512
    chunk_size: int = 24

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len", "d_model", "chunk_size")
        if self.d_model % 16:
            raise UserError(f"d_model={self.d_model} must be a multiple of 16: d/16 is a width")
        super().__post_init__()

    def setup(self) -> None:
        chunk, count = self.chunks
        quarter, half = self.d_model // 4, self.d_model // 2
        self.continuous = InformationExchange(chunk, quarter, quarter, count)
        self.continuous_chunks = Linear(count, 1)
        self.interval = InformationExchange(chunk, quarter, quarter, count)
        self.interval_chunks = Linear(count, 1)
        self.series = InformationExchange(half, half, self.pred_len, self.n_series)
        self.highway = Linear(self.seq_len, self.pred_len)

    @property
    def chunks(self) -> tuple[int, int]:
        """(C, M): length and number of the chunks."""
        chunk = min(self.chunk_size, self.seq_len, self.pred_len)
        return chunk, -(-self.seq_len // chunk)

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        del train  # it behaves the same
        chunk, count = self.chunks
        values = jnp.swapaxes(x, 1, 2)
        padded = jnp.pad(values, ((0, 0), (0, 0), (0, chunk * count - self.seq_len)))
        continuous = padded.reshape(*values.shape[:2], count, chunk)
        interval = jnp.swapaxes(padded.reshape(*values.shape[:2], chunk, count), -1, -2)
        parts = (
            self.continuous_chunks(jnp.swapaxes(self.continuous(continuous), -1, -2)),
            self.interval_chunks(jnp.swapaxes(self.interval(interval), -1, -2)),
        )
        features = jnp.concatenate([part[..., 0] for part in parts], -1)
        return jnp.swapaxes(self.series(features) + self.highway(values), 1, 2)
