"""The forecasters that Leddam is compared with."""

import functools

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, multiple_of, positive_fields
from rflib.methods.leddam.decomposition import LearnableDecomposition, initial_kernel
from rflib.methods.leddam.dropout import Dropout
from rflib.methods.leddam.model import denormalise, normalise
from rflib.methods.leddam.transformer import Attention, EncoderLayer
from rflib.nn.linear import Linear
from rflib.nn.norm import LayerNorm


class DLinear(nn.Module):
    """Two linear maps from past to future, of a moving average and of what it leaves.

    Zeng et al., "Are Transformers Effective for Time Series Forecasting?" (AAAI 2023): weights
    start at 1/T, are shared by all series, and nothing is normalised. `ld_init` other than
    "mov_frozen" puts Leddam's learnable kernel in the place of the moving average (section 4.4 of
    the Leddam paper) and changes nothing else.
    """

    n_series: int
    seq_len: int
    pred_len: int
    kernel_size: int = 25
    ld_init: str = "mov_frozen"

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len")
        initial_kernel(self.ld_init, self.kernel_size)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        del train  # it behaves the same
        flat = nn.initializers.constant(1 / self.seq_len)
        split = LearnableDecomposition(self.kernel_size, self.ld_init, name="decomposition")
        trend, seasonal = split(jnp.swapaxes(x, 1, 2))
        forecast = Linear(self.seq_len, self.pred_len, flat, name="trend")(trend)
        forecast += Linear(self.seq_len, self.pred_len, flat, name="seasonal")(seasonal)
        return jnp.swapaxes(forecast, 1, 2)


class ITransformer(nn.Module):
    """Attention over whole series as tokens: Liu et al., "iTransformer" (ICLR 2024).

    Instance norm, Linear(T -> D) a series, post-norm encoder layers over the N tokens, LayerNorm,
    Linear(D -> S), de-normalised. It has no parameter that depends on N.
    """

    n_series: int
    seq_len: int
    pred_len: int
    d_model: int = 256
    d_ff: int = 256
    n_heads: int = 8
    n_layers: int = 2
    dropout: float = 0.1
    instance_norm: bool = True

    def __post_init__(self) -> None:
        names = ("n_series", "seq_len", "pred_len", "d_model", "d_ff", "n_heads", "n_layers")
        positive_fields(self, *names)
        multiple_of("d_model", self.d_model, "n_heads", self.n_heads)
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        super().__post_init__()

    def setup(self) -> None:
        self.embedding = Linear(self.seq_len, self.d_model)
        make = functools.partial(Attention, self.d_model, self.n_heads, self.dropout)
        size = (make, self.d_model, self.d_ff, self.dropout)
        self.layers = [EncoderLayer(*size) for _ in range(self.n_layers)]
        self.norm = LayerNorm(self.d_model)
        self.head = Linear(self.d_model, self.pred_len)
        self.drop = Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        window = normalise(x, self.instance_norm)
        tokens = self.drop(self.embedding(window.values), deterministic=not train)
        for layer in self.layers:
            tokens = layer(tokens, train)
        return denormalise(self.head(self.norm(tokens)), window)
