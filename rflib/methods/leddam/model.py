"""Leddam: embed each series, split the embedding by LD, dual attention on the residual, two heads.

Yu et al., "Revitalizing Multivariate Time Series Forecasting: Learnable Decomposition with
Inter-Series Dependencies and Intra-Series Variations Modeling", ICML 2024, section 3.

    X̃ = (X - mean) / std of each window and series           (instance norm, no affine)
    E = X̃ W_e + b_e + p;   main, residual = LD(E)
    r = auto blocks(residual) + channel blocks(residual)      (parallel, then summed)
    Ŷ = std (main W_m + b_m + r W_r + b_r) + mean
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import choose, in_range, multiple_of, one_of, positive_fields
from rflib.methods.leddam.ablations import ABLATIONS, TOKEN_LENGTHS, Arm
from rflib.methods.leddam.attention import FORMS, Block, TokenEncoder
from rflib.methods.leddam.decomposition import LearnableDecomposition, check_kernels
from rflib.methods.leddam.embedding import TABLES, Embedding
from rflib.nn.linear import Linear, affine


class Window(NamedTuple):
    """Windows with the series in front of time, and what undoes their normalisation."""

    values: Float[Array, "batch n_series seq_len"]
    mean: Float[Array, "batch n_series 1"]
    std: Float[Array, "batch n_series 1"]


def normalise(x: Float[Array, "batch seq_len n_series"], on: bool = True) -> Window:
    """Mean 0 and variance v/(v + 1e-5) over the window of each series; unchanged if not `on`.

    The statistics are constants to gradients: for the data it is the same as differentiating
    through them, as long as only parameters are trained.
    """
    values = jnp.swapaxes(x, 1, 2)
    if not on:
        shape = (*values.shape[:2], 1)
        return Window(values, jnp.zeros(shape, x.dtype), jnp.ones(shape, x.dtype))
    mean = jax.lax.stop_gradient(jnp.mean(values, -1, keepdims=True))
    var = jnp.mean(jnp.square(values - mean), -1, keepdims=True)
    std = jax.lax.stop_gradient(jnp.sqrt(var + 1e-5))
    return Window((values - mean) / std, mean, std)


def denormalise(forecast: Float[Array, "batch n_series pred_len"], window: Window) -> Array:
    """[B, S, N] in the units of the input."""
    return jnp.swapaxes(forecast * window.std + window.mean, 1, 2)


def _through(blocks: Sequence[Any], x: Array, train: bool) -> Array:
    for block in blocks:
        x = block(x, train)
    return x


class Leddam(nn.Module):
    """[B, T, N] past -> [B, S, N] future, both standardised by series.

    n_series: N; the position table has a row and BatchNorm an entry a series.
    seq_len, pred_len: T and S, in time steps. d_model: D. kernel_size: K, odd.
    n_layers: blocks of either branch.
    period: delay P of the auto-regressive tokens, in coordinates of the embedding.
    dropout: on attention outputs and after GELU, in [0, 1).
    pe_type, ld_init: see `Embedding` and `LearnableDecomposition`.
    decompose_on: "embedding" (along D, the authors' model) or "series": the window is split along
        time, and both parts are embedded alike, each with bias and position.
    form: "efficient" folds successive linear maps into one; "literal" evaluates the equations one
        by one. Same function, same parameters.
    remat: recompute the blocks in the backward pass (less memory, a third more work).
    ablation: what is taken out or replaced, and with it its parameters:
        "full": nothing. "no_auto", "no_channel": that branch over the residual.
        "no_res": the residual, its branches and its head. "no_ld": the decomposition and the main
        head; the whole embedding is residual. "mov": the kernel is a frozen moving average
        whatever `ld_init` says. "attn_point", "attn_patch": one `TokenEncoder` over single
        coordinates or 16 contiguous ones in the place of all auto-regressive blocks.
        "no_revin": the instance norm. "no_pe": the position table over series.
    positions: add a fixed sinusoid to the tokens of the intra-series branch, auto-regressive,
        point- or patch-wise. (The model has none: their delay is to tell them apart.)

    Beyond the paper:

    kernel_constraint, more_kernels: see `LearnableDecomposition`.
    per_series: False leaves out the position table and normalises rows over D instead of series
        over the batch. No parameter depends on N then: what is trained on some series forecasts
        any number of others.

    Raises:
        UserError: an unknown choice or a number out of range, when the module is made.
    """

    n_series: int
    seq_len: int
    pred_len: int
    d_model: int = 256
    kernel_size: int = 25
    period: int = 64
    n_layers: int = 1
    dropout: float = 0.0
    pe_type: str = "sincos"
    ld_init: str = "softmax_gauss"
    decompose_on: str = "embedding"
    instance_norm: bool = True
    form: str = "efficient"
    remat: bool = False
    ablation: str = "full"
    positions: bool = False
    kernel_constraint: str = "none"
    more_kernels: tuple[int, ...] = ()
    per_series: bool = True

    def __post_init__(self) -> None:
        positive_fields(self, "n_series", "seq_len", "pred_len", "d_model", "period", "n_layers")
        in_range("dropout", self.dropout, 0, 1, open_high=True)
        choose("pe_type", self.pe_type, TABLES)
        check_kernels(self.ld_init, self.kernel_size, self.kernel_constraint, self.more_kernels)
        one_of("decompose_on", self.decompose_on, ("embedding", "series"))
        one_of("form", self.form, FORMS)
        one_of("ablation", self.ablation, ABLATIONS)
        if self.arm.intra in TOKEN_LENGTHS:
            multiple_of("d_model", self.d_model, "token length", TOKEN_LENGTHS[self.arm.intra])
        super().__post_init__()

    @property
    def arm(self) -> Arm:
        """The parts that `ablation` leaves."""
        return ABLATIONS[self.ablation]

    @property
    def split_init(self) -> str:
        """The `ld_init` of the decomposition: "mov_frozen" if the ablation freezes it."""
        return self.ld_init if self.arm.learnable else "mov_frozen"

    def setup(self) -> None:
        arm = self.arm
        table = arm.table and self.per_series
        size = (self.n_series, self.seq_len, self.d_model)
        self.embedding = Embedding(*size, self.pe_type, table)
        flat = nn.initializers.constant(1 / self.d_model)
        if arm.main:
            self.decomposition = LearnableDecomposition(
                self.kernel_size,
                self.split_init,
                "auto" if self.form == "efficient" else "convolution",
                self.kernel_constraint,
                self.more_kernels,
            )
            self.main_head = Linear(self.d_model, self.pred_len, weight_init=flat)
        self.auto = self._intra(arm.intra)
        self.channel = self._blocks("channel") if arm.channel else []
        if arm.residual:
            self.residual_head = Linear(self.d_model, self.pred_len, weight_init=flat)

    def _blocks(self, kind: str) -> list[nn.Module]:
        block = nn.remat(Block, static_argnums=(2,)) if self.remat else Block
        size = (self.n_series, self.d_model, self.period, self.dropout, self.form)
        norm = "batch" if self.per_series else "layer"
        return [block(kind, *size, norm, self.positions) for _ in range(self.n_layers)]

    def _intra(self, kind: str) -> list[nn.Module]:
        if kind not in TOKEN_LENGTHS:
            return self._blocks("auto") if kind == "auto" else []
        encoder = nn.remat(TokenEncoder, static_argnums=(2,)) if self.remat else TokenEncoder
        size = (self.d_model, TOKEN_LENGTHS[kind], self.dropout, self.form)
        return [encoder(*size, self.positions)]

    def __call__(self, x: Float[Array, "batch seq_len n_series"], train: bool) -> Array:
        window = normalise(x, self.instance_norm and self.arm.instance_norm)
        # Parameters decide the precision of everything between the two normalisations.
        values = window.values.astype(self.embedding.weight.dtype)
        heads = []
        if not self.arm.main or self.form == "literal" or self.is_initializing():
            main, residual = self.split(values)
            if self.arm.main:
                heads.append(self.main_head(main))
        else:
            forecast, residual = self._folded(values)
            heads.append(forecast)
        branches = [_through(b, residual, train) for b in (self.auto, self.channel) if b]
        if branches:
            heads.append(self.residual_head(functools.reduce(jnp.add, branches)))
        if self.is_mutable_collection("intermediates"):
            main, residual = self.split(values)
            self.sow("intermediates", "main", main)
            self.sow("intermediates", "residual", residual)
        return denormalise(functools.reduce(jnp.add, heads), window)

    def split(self, values: Float[Array, "batch n_series seq_len"]) -> tuple[Array, Array]:
        """(main, residual), both [B, N, D], from normalised windows; equation by equation."""
        if not self.arm.main:
            embedded = self.embedding(values)
            return jnp.zeros_like(embedded), embedded
        if self.decompose_on == "embedding":
            return self.decomposition(self.embedding(values))
        trend, seasonal = self.decomposition(values)
        return self.embedding(trend), self.embedding(seasonal)

    def _folded(self, values: Float[Array, "batch n_series seq_len"]) -> tuple[Array, Array]:
        """(main W_m + b_m, residual) through one product each.

        Embedding, LD and head are affine in the window: LD is applied to the T + N rows of the
        embedding's weights instead of to all B N rows, and the main path is one T x S map.
        """
        weight, rows = self.embedding.weight, self.embedding.rows
        bias = self.decomposition.bias.astype(weight.dtype)
        if self.decompose_on == "embedding":
            columns = jnp.concatenate([weight, rows.T], 1)
            smoothed = self.decomposition.linear(columns.T).T
            main_weight = smoothed[:, : self.seq_len]
            main_rows = smoothed[:, self.seq_len :].T + bias
            residual_rows = rows - main_rows
        else:
            # x -> LD(x) as a matrix, by its action on the unit rows.
            smoothing = self.decomposition.linear(jnp.eye(self.seq_len, dtype=weight.dtype))
            main_weight = weight @ smoothing.T
            shift = bias * jnp.sum(weight, 1)[None]
            main_rows, residual_rows = rows + shift, rows - shift
        head, offset = self.main_head.weight @ main_weight, self.main_head(main_rows)
        forecast = affine(values, head) + offset[None]
        return forecast, affine(values, weight - main_weight) + residual_rows[None]
