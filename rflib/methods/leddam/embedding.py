"""Whole-series embedding and the tables of positions over channels.

Leddam (ICML 2024), section 3.1: series n with window x_n becomes E_n = W x_n + b + p_n, where W
and b are shared and p has one row a series.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import choose
from rflib.core.errors import UserError
from rflib.nn.linear import Linear, affine

Table = Callable[[Array, int, int], Array]  # key, n_series, d_model -> [n_series, d_model or 1]


def _normalised(table: np.ndarray) -> Array:
    """Mean 0 and standard deviation (n - 1 in the denominator) 1/10 over the whole table."""
    if table.size < 2:
        raise UserError("a 1-d position table needs at least 2 series: n_series=1")
    centred = table - table.mean()
    return jnp.asarray(centred / (10 * centred.std(ddof=1)), jnp.float32)


def sincos(n_series: int, d_model: int) -> Float[Array, "n_series d_model"]:
    """sin and cos(n 10000^(-2i/D)) in even and odd columns, normalised."""
    frequency = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = np.arange(n_series)[:, None] * frequency
    table = np.empty((n_series, d_model))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : d_model // 2]
    return _normalised(table)


def line(n_series: int, power: float) -> Float[Array, "n_series 1"]:
    """2 linspace(0, 1, N)^power - 1 as one column, normalised."""
    return _normalised(2 * np.linspace(0, 1, n_series)[:, None] ** power - 1)


def plane(n_series: int, d_model: int, power: float) -> Float[Array, "n_series d_model"]:
    """2 linspace^x ⊗ linspace^x - 1, normalised; x starts at `power` and moves by .001.

    At most 100 moves, until the table's mean is within 1e-3 of 0.
    """
    rows, columns = np.linspace(0, 1, n_series)[:, None], np.linspace(0, 1, d_model)[None]
    table = 2 * rows**power * columns**power - 1
    for _ in range(99):
        if abs(table.mean()) <= 1e-3:
            break
        power += 0.001 if table.mean() > 0 else -0.001
        table = 2 * rows**power * columns**power - 1
    return _normalised(table)


def _narrow_uniform(key: Array, n_series: int, width: int) -> Array:
    return jax.random.uniform(key, (n_series, width), minval=-0.02, maxval=0.02)


def _normal(key: Array, n_series: int, d_model: int) -> Array:
    return 0.1 * jax.random.normal(key, (n_series, 1))


TABLES: dict[str, Table] = {
    "no": _narrow_uniform,  # frozen, and not zero
    "sincos": lambda key, n, d: sincos(n, d),
    "zeros": _narrow_uniform,
    "zero": lambda key, n, d: _narrow_uniform(key, n, 1),
    "normal": _normal,
    "gauss": _normal,
    "uniform": lambda key, n, d: jax.random.uniform(key, (n, 1), maxval=0.1),
    "lin1d": lambda key, n, d: line(n, 1.0),
    "exp1d": lambda key, n, d: line(n, 0.5),
    "lin2d": lambda key, n, d: plane(n, d, 1.0),
    "exp2d": lambda key, n, d: plane(n, d, 0.5),
}
COLUMNS = ("zero", "normal", "gauss", "uniform", "lin1d", "exp1d")  # one number a series


def position_size(pe_type: str, n_series: int, d_model: int) -> int:
    """Trainable numbers in the position table of `pe_type`."""
    choose("pe_type", pe_type, TABLES)
    if pe_type == "no":
        return 0
    return n_series * (1 if pe_type in COLUMNS else d_model)


class Embedding(nn.Module):
    """E = x Wᵀ + b + p: `weight` [D, T] and `rows` = b + p [N, D] as attributes, for folding.

    table: False leaves p out; `rows` is then [1, D], and nothing depends on n_series.

    pe_type: "no" is a frozen U(±.02) table in the collection `frozen`; all others are trained:
        "sincos", "zeros" (U(±.02)), "lin2d", "exp2d", and with one number a series "zero"
        (U(±.02)), "normal" = "gauss" (N(0, .1²)), "uniform" (U(0, .1)), "lin1d", "exp1d".
    """

    n_series: int
    seq_len: int
    d_model: int
    pe_type: str
    table: bool = True

    def setup(self) -> None:
        make = choose("pe_type", self.pe_type, TABLES)
        self.linear = Linear(self.seq_len, self.d_model)
        size = (self.n_series, self.d_model)
        if not self.table:
            self.position = None
        elif self.pe_type == "no":
            self.position = self.variable(
                "frozen", "position", lambda: make(self.make_rng("params"), *size)
            ).value
        else:
            self.position = self.param("position", make, *size)

    @property
    def weight(self) -> Float[Array, "d_model seq_len"]:
        return self.linear.weight

    @property
    def rows(self) -> Float[Array, "n_series d_model"]:
        row = self.linear.bias.reshape(1, -1)
        return row if self.position is None else row + self.position.astype(row.dtype)

    def __call__(self, x: Float[Array, "batch n_series seq_len"]) -> Array:
        return affine(x, self.weight) + self.rows[None]
