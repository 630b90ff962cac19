"""Closed forms: how many parameters Leddam has, and how much work a training step is."""

from collections.abc import Sequence

from rflib.core.checks import choose
from rflib.methods.leddam.ablations import ABLATIONS, TOKEN_LENGTHS, TOKEN_WIDTH
from rflib.methods.leddam.decomposition import decomposition_size
from rflib.methods.leddam.embedding import position_size


def parameter_count(
    n_series: int,
    seq_len: int,
    pred_len: int,
    *,
    d_model: int,
    n_layers: int,
    pe_type: str,
    kernel_size: int = 25,
    ablation: str = "full",
    kernel_constraint: str = "none",
    more_kernels: Sequence[int] = (),
    per_series: bool = True,
) -> int:
    """Trainable parameters of `Leddam` with a trainable kernel, unless `ablation` freezes it.

    (T + 1) D + |p| + (K + 1) + 2 L [(4D² + 4D) + 2N + 2D + (4D² + 3D)] + 2 (D S + S): embedding,
    position table, LD, then for each of L layers and both branches attention, BatchNorm, LayerNorm
    and feed-forward, and the two heads. Without `per_series` LayerNorm's 2D replace BatchNorm's 2N.

    An ablation leaves out its part. Attention over tokens of m coordinates has, for L blocks,
    64 (m + 1) into tokens of width w = 64, a block of this width with LayerNorm, 8w² + 11w, and
    (w D/m + 1) D back.
    """
    arm, d, w = choose("ablation", ablation, ABLATIONS), d_model, TOKEN_WIDTH
    norm = 2 * n_series if per_series else 2 * d
    block = (4 * d * d + 4 * d) + norm + 2 * d + (4 * d * d + 3 * d)
    count = (seq_len + 1) * d
    if arm.table and per_series:
        count += position_size(pe_type, n_series, d)
    if arm.main and arm.learnable:
        count += decomposition_size(kernel_size, kernel_constraint, more_kernels)
    count += n_layers * block * ((arm.intra == "auto") + arm.channel)
    if arm.intra in TOKEN_LENGTHS:
        length = TOKEN_LENGTHS[arm.intra]
        count += (length + 1) * w + (8 * w * w + 11 * w) + (d // length * w + 1) * d
    return count + (arm.main + arm.residual) * (d * pred_len + pred_len)


def training_flops(
    n_series: int,
    seq_len: int,
    pred_len: int,
    *,
    d_model: int,
    n_layers: int,
    ablation: str = "full",
) -> float:
    """Floating-point operations of one training step per window, by the method's own products.

    Counts 2 for a multiply-add and three times the forward pass; four D x D products an attention
    (queries, keys, values, output, with the delayed copies sharing theirs) and two D x 2D products
    a feed-forward; channel scores and mixtures 4 N² D. Implementations that fold products do less.
    """
    arm, d, w = choose("ablation", ablation, ABLATIONS), d_model, TOKEN_WIDTH
    row = seq_len * d + (arm.main + arm.residual) * d * pred_len
    row += n_layers * 8 * d**2 * ((arm.intra == "auto") + arm.channel)
    if arm.intra in TOKEN_LENGTHS:
        tokens = d // TOKEN_LENGTHS[arm.intra]
        row += d * w + 8 * tokens * w**2 + 2 * tokens**2 * w + tokens * w * d
    across = n_layers * 4 * n_series**2 * d if arm.channel else 0
    return 3.0 * (2 * n_series * row + across)
