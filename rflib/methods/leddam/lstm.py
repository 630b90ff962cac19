"""Long short-term memory as a forecaster: the last hidden state, then one linear map."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import in_range, positive_fields
from rflib.methods.leddam.dropout import Dropout
from rflib.nn.initializers import fan_in_uniform
from rflib.nn.linear import Linear, affine


class LSTMLayer(nn.Module):
    """Hochreiter and Schmidhuber's memory (1997) with forget gates (Gers et al., 2000).

        i, f, g, o = W_x x_t + b_x + W_h h_{t-1} + b_h      (in this order in the rows)
        c_t = σ(f) c_{t-1} + σ(i) tanh(g),   h_t = σ(o) tanh(c_t),   h_0 = c_0 = 0

    Parameters as in PyTorch: weights [4 hidden, in_features] and [4 hidden, hidden], two biases
    [4 hidden], all U(±1/√hidden).
    """

    in_features: int
    hidden: int

    @nn.compact
    def __call__(self, x: Float[Array, "batch time width"]) -> Float[Array, "batch time hidden"]:
        rows, init = 4 * self.hidden, fan_in_uniform(self.hidden)
        input_weight = self.param("input_weight", init, (rows, self.in_features))
        hidden_weight = self.param("hidden_weight", init, (rows, self.hidden))
        bias = self.param("input_bias", init, (rows,)) + self.param("hidden_bias", init, (rows,))
        # One product for all steps: only what needs h_{t-1} stays in the recurrence.
        inputs = affine(jnp.swapaxes(x, 0, 1), input_weight, bias)

        def step(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = state
            gates = row + h @ hidden_weight.T
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[0], self.hidden), inputs.dtype)
        _, states = jax.lax.scan(step, (zeros, zeros), inputs)
        return jnp.swapaxes(states, 0, 1)


class LSTM(nn.Module):
    """LSTM layers over all series at once; last hidden state -> Linear -> [S, N].

    Nothing is normalised, and the parameters depend on N.

    hidden: width of every layer's state. n_layers: layers, each over the states of the one before.
    dropout: on those states between layers, in [0, 1); with one layer it does nothing.

    Raises:
        UserError: a number out of range, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int
    hidden: int = 128
    n_layers: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len", "hidden", "n_layers")
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        super().__post_init__()

    def setup(self) -> None:
        widths = [self.n_series] + [self.hidden] * (self.n_layers - 1)
        self.layers = [LSTMLayer(width, self.hidden) for width in widths]
        self.head = Linear(self.hidden, self.pred_len * self.n_series)
        self.drop = Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        # Parameters decide the precision, the input that of the result.
        states = self.layers[0](x.astype(self.head.weight.dtype))
        for layer in self.layers[1:]:
            states = layer(self.drop(states, deterministic=not train))
        forecast = self.head(states[:, -1])
        return forecast.reshape(-1, self.pred_len, self.n_series).astype(x.dtype)
