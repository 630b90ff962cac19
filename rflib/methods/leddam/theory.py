"""Closed forms: how many parameters Leddam has, and how much work a training step is."""

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
) -> int:
    """Trainable parameters of `Leddam` with a trainable kernel.

    (T + 1) D + |p| + (K + 1) + 2 L [(4D² + 4D) + 2N + 2D + (4D² + 3D)] + 2 (D S + S): embedding,
    position table, LD, then for each of L layers and both branches attention, BatchNorm, LayerNorm
    and feed-forward, and the two heads.
    """
    d = d_model
    block = (4 * d * d + 4 * d) + 2 * n_series + 2 * d + (4 * d * d + 3 * d)
    embedding = (seq_len + 1) * d + position_size(pe_type, n_series, d)
    return embedding + kernel_size + 1 + 2 * n_layers * block + 2 * (d * pred_len + pred_len)


def training_flops(
    n_series: int, seq_len: int, pred_len: int, *, d_model: int, n_layers: int
) -> float:
    """Floating-point operations of one training step per window, by the method's own products.

    Counts 2 for a multiply-add and three times the forward pass; four D x D products an attention
    (queries, keys, values, output, with the delayed copies sharing theirs) and two D x 2D products
    a feed-forward; channel scores and mixtures 4 N² D. Implementations that fold products do less.
    """
    row = seq_len * d_model + 2 * d_model * pred_len
    row += 2 * n_layers * (4 * d_model**2 + 4 * d_model**2)
    return 3.0 * (2 * n_series * row + n_layers * 4 * n_series**2 * d_model)
