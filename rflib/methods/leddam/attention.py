"""The dual attention: over series (channel-wise) and over delayed copies (auto-regressive).

Leddam (ICML 2024), section 3.3. Both kinds have one head with biases, scale D^(-1/2), dropout on
the output projection only, and sit in the same block: attention, residual, BatchNorm per series,
feed-forward, residual, LayerNorm.

Everything between two softmaxes is linear, so a product of two D x D kernels may be taken once
instead of once a row:  q·k_m = (x W_Q W_K^T + b_Q W_K^T)·x_m + (a term that all m share and the
softmax drops; so b_K has no effect), and Σ_m a_m v_m W_O = (Σ_m a_m x_m) W_V W_O + b_V W_O, as
Σ_m a_m = 1. `form="efficient"` uses this; `form="literal"` follows the equations as printed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import multiple_of, one_of, positive_int
from rflib.methods.leddam.ablations import TOKEN_WIDTH
from rflib.nn.linear import Linear, add_row, affine, gelu
from rflib.nn.norm import BatchNorm, LayerNorm
from rflib.nn.position import sinusoid

FORMS = ("efficient", "literal")


def token_count(width: int, period: int) -> int:
    """J + 1: the undelayed row and its J delayed copies, J = D/P - 1 if P divides D else ⌊D/P⌋."""
    positive_int("d_model", width)
    positive_int("period", period)
    return width // period if width % period == 0 else width // period + 1


def rolled_tokens(x: Float[Array, "*lead width"], period: int) -> Array:
    """[..., J + 1, D]: token j is x rolled left by j P along the last axis."""
    count = token_count(x.shape[-1], period)
    return jnp.stack([jnp.roll(x, -j * period, -1) for j in range(count)], -2)


def _attend(query: Array, x: Array, period: int, table: Array | None = None) -> tuple[Array, Array]:
    """Softmax weights [..., J + 1] of `query` on the rolled copies of x, and the weighted sum.

    table: [J + 1, D] is added to the copies.
    Where P divides D a roll permutes the D/P pieces of x: then all copies' scores are sums over
    the products of pieces, and the copies themselves are never made.
    """
    count, width = token_count(x.shape[-1], period), x.shape[-1]
    if width % period:
        tokens = rolled_tokens(x, period)
        if table is not None:
            tokens += table.reshape((1,) * (x.ndim - 1) + table.shape)
        weights = jax.nn.softmax(jnp.einsum("...d,...jd->...j", query, tokens), -1)
        return weights, jnp.einsum("...j,...jd->...d", weights, tokens)
    place = np.arange(count)
    delay = (place[None] - place[:, None]) % count  # piece b of copy j is piece b + j of x
    choice = jnp.asarray(delay.reshape(-1, 1) == place[None], x.dtype)  # [(b, c), j]
    pieces = x.reshape(-1, count, period)
    products = jnp.einsum("rbp,rcp->rbc", query.reshape(pieces.shape), pieces)
    scores = products.reshape(-1, count**2) @ choice
    if table is not None:
        scores += query.reshape(-1, width) @ table.T
    weights = jax.nn.softmax(scores, -1)
    circulant = (weights @ choice.T).reshape(products.shape)
    mixed = jnp.einsum("rbc,rcp->rbp", circulant, pieces).reshape(x.shape)
    weights = weights.reshape(*x.shape[:-1], count)
    return weights, mixed if table is None else mixed + weights @ table


class Projections(nn.Module):
    """The four D -> D maps of a one-head attention; subclasses say who attends to whom."""

    d_model: int
    form: str = "efficient"

    def setup(self) -> None:
        one_of("form", self.form, FORMS)
        self.query = Linear(self.d_model, self.d_model)
        self.key = Linear(self.d_model, self.d_model)
        self.value = Linear(self.d_model, self.d_model)
        self.output = Linear(self.d_model, self.d_model)

    def folded_query(self, x: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        """(x W_Q + b_Q) W_K^T / √D: its dot product with x_m is q·k_m/√D up to a shift."""
        scale = self.d_model**-0.5
        weight, bias = self.query.weight * scale, self.query.bias * scale
        if x.size <= self.d_model**2:  # fewer rows than columns: two thin products are cheaper
            return affine(x, weight, bias) @ self.key.weight
        return affine(x, self.key.weight.T @ weight, bias @ self.key.weight)

    def folded_output(self, mixed: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        """(mixed W_V + b_V) W_O + b_O."""
        if mixed.size <= self.d_model**2:
            return self.output(self.value(mixed))
        return affine(mixed, self.output.weight @ self.value.weight, self.output(self.value.bias))


class ChannelAttention(Projections):
    """Self-attention whose tokens are the series: [B, N, D] -> [B, N, D]. Sows the weights."""

    def __call__(self, x: Float[Array, "batch n_series width"]) -> Array:
        if self.form == "efficient":
            scores = jnp.einsum("bnd,bmd->bnm", self.folded_query(x), x)
            weights = jax.nn.softmax(scores, -1)
            result = self.folded_output(jnp.einsum("bnm,bmd->bnd", weights, x))
        else:
            scores = jnp.einsum("bnd,bmd->bnm", self.query(x), self.key(x))
            weights = jax.nn.softmax(scores * self.d_model**-0.5, -1)
            result = self.output(jnp.einsum("bnm,bmd->bnd", weights, self.value(x)))
        self.sow("intermediates", "weights", weights)
        return result


class AutoAttention(Projections):
    """Each row asks with itself and is answered by its delayed copies, weights shared by all rows.

    period: the delay P between copies, in coordinates. With D <= P there is one token, and the
        attention is the value projection. Sows the weights [..., J + 1].
    positions: add the fixed sinusoid to the copies (the authors' comparison; the model has none).
    """

    period: int = 64
    positions: bool = False

    def __call__(self, x: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        table, asking = None, x
        if self.positions:
            count = token_count(self.d_model, self.period)
            table = sinusoid(count, self.d_model).astype(x.dtype)
            asking = add_row(x, table[0])
        if self.form == "efficient":
            weights, mixed = _attend(self.folded_query(asking), x, self.period, table)
            result = self.folded_output(mixed)
        else:
            tokens = rolled_tokens(x, self.period)
            if table is not None:
                tokens += table.reshape((1,) * (x.ndim - 1) + table.shape)
            scores = jnp.einsum("...d,...jd->...j", self.query(asking), self.key(tokens))
            weights = jax.nn.softmax(scores * self.d_model**-0.5, -1)
            result = self.output(jnp.einsum("...j,...jd->...d", weights, self.value(tokens)))
        self.sow("intermediates", "weights", weights)
        return result


class Block(nn.Module):
    """R1 = norm(attention(R) + R);  LayerNorm(FFN(R1) + R1), FFN = D -> 2D, GELU, D.

    kind: "auto" or "channel" (self-attention over the second axis, whatever it counts).
    norm: "batch" keeps one mean and variance a series, over (batch, D); "layer" normalises each
        row over D, and no parameter depends on the number of series.
    positions: see `AutoAttention`.
    """

    kind: str
    n_series: int
    d_model: int
    period: int = 64
    dropout: float = 0.0
    form: str = "efficient"
    norm: str = "batch"
    positions: bool = False

    def setup(self) -> None:
        if one_of("kind", self.kind, ("auto", "channel")) == "auto":
            self.attention = AutoAttention(
                self.d_model, self.form, period=self.period, positions=self.positions
            )
        else:
            self.attention = ChannelAttention(self.d_model, self.form)
        if one_of("norm", self.norm, ("batch", "layer")) == "batch":
            self.batch_norm = BatchNorm(self.n_series, axis=1)
        else:
            self.attention_norm = LayerNorm(self.d_model)
        self.expand = Linear(self.d_model, 2 * self.d_model)
        self.contract = Linear(2 * self.d_model, self.d_model)
        self.layer_norm = LayerNorm(self.d_model)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, x: Float[Array, "batch n_series width"], train: bool) -> Array:
        x = self.drop(self.attention(x), deterministic=not train) + x
        x = self.batch_norm(x, train) if self.norm == "batch" else self.attention_norm(x)
        hidden = self.drop(gelu(self.expand(x)), deterministic=not train)
        return self.layer_norm(self.contract(hidden) + x)


class TokenEncoder(nn.Module):
    """Self-attention over the pieces of each row: what auto-regressive attention is compared with.

    The authors' supplementary comparison, as we read its text: `length` contiguous coordinates are
    a token (1: point-wise, 16: patch-wise), mapped to `width` by one linear map; one layer of
    attention over the D/length tokens of a row, with LayerNorm; all tokens, one after the other,
    are mapped back to D. Rows do not see each other.

    positions: add the fixed sinusoid to the tokens.

    Raises:
        UserError: `length` does not divide d_model.
    """

    d_model: int
    length: int
    dropout: float = 0.0
    form: str = "efficient"
    positions: bool = False
    width: int = TOKEN_WIDTH

    def setup(self) -> None:
        multiple_of("d_model", self.d_model, "tokens of length", self.length)
        count = self.d_model // self.length
        self.embed = Linear(self.length, self.width)
        self.layer = Block(
            "channel", count, self.width, dropout=self.dropout, form=self.form, norm="layer"
        )
        self.project = Linear(count * self.width, self.d_model)

    def __call__(self, x: Float[Array, "batch n_series width"], train: bool) -> Array:
        tokens = self.embed(x.reshape(-1, self.d_model // self.length, self.length))
        if self.positions:
            tokens += sinusoid(*tokens.shape[1:]).astype(tokens.dtype)[None]
        tokens = self.layer(tokens, train)
        return self.project(tokens.reshape(*x.shape[:-1], -1))
