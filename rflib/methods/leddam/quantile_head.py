"""Quantiles around any point forecaster, in the right order by construction."""

from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.errors import UserError
from rflib.methods.leddam.intervals import check_levels
from rflib.methods.leddam.model import normalise
from rflib.nn.linear import affine

LEAST_SCALE = 0.1  # of a window, in training deviations: a flat past does not make a sure future


def gaussian_gaps(levels: tuple[float, ...]) -> np.ndarray:
    """Φ⁻¹(τ_{i+1}) - Φ⁻¹(τ_i): the Q - 1 distances of a standard normal's quantiles."""
    return np.diff([NormalDist().inv_cdf(level) for level in levels])


class QuantileHead(nn.Module):
    """[B, T, N] -> [B, S, N, Q]: a forecaster is the median, trained gaps are stacked around it.

        g = softplus(A x̃ + a) √(std² + 0.01) > 0
        q_above = median + g_1 + ... + g_i,   q_below = median - g_1 - ... - g_i

    with x̃ and std of the window of each series (`normalise`), and A, a shared by all series, so
    that the quantiles cannot cross and the forecaster stays what it is without the head. A starts
    at 0 and a at the gaps of a normal distribution with the window's deviation. Adds
    (T + 1) S (Q - 1) parameters, none of which depends on N.

    forecaster: a module with the fields n_series, seq_len, pred_len, called `(x, train)`, or
        `(x, train, marks)` if marks are given.
    levels: τ, growing in (0, 1), with 0.5 among them.

    Raises:
        UserError: levels out of order or range, or a forecaster without the three sizes.
    """

    forecaster: nn.Module
    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", check_levels(self.levels))
        for name in ("n_series", "seq_len", "pred_len"):
            if not hasattr(self.forecaster, name):
                kind = type(self.forecaster).__name__
                raise UserError(f"forecaster={kind} has no field {name}")
        super().__post_init__()

    @property
    def _size(self) -> Any:
        return self.forecaster

    @property
    def n_series(self) -> int:
        return self._size.n_series

    @property
    def seq_len(self) -> int:
        return self._size.seq_len

    @property
    def pred_len(self) -> int:
        return self._size.pred_len

    @property
    def n_marks(self) -> int:
        """Calendar features a time step that the forecaster takes; 0: none."""
        return getattr(self._size, "n_marks", 0)

    @property
    def centre(self) -> int:
        """The place of the median among the levels."""
        return self.levels.index(0.5)

    def setup(self) -> None:
        if len(self.levels) == 1:
            return
        gaps = gaussian_gaps(self.levels)
        start = np.log(np.expm1(gaps))  # softplus of it is the gap
        rows = self.pred_len * len(gaps)
        self.weight = self.param("weight", nn.initializers.zeros, (rows, self.seq_len))
        bias = np.tile(start, self.pred_len).astype(np.float32)
        self.bias = self.param("bias", lambda _: jnp.asarray(bias))

    def __call__(
        self,
        x: Float[Array, "batch seq_len n_series"],
        train: bool,
        marks: Float[Array, "batch steps n_marks"] | None = None,
    ) -> Float[Array, "batch pred_len n_series levels"]:
        median = self.forecaster(x, train, *(() if marks is None else (marks,)))
        if len(self.levels) == 1:
            return median[..., None]
        window = normalise(x)
        raw = affine(window.values.astype(self.weight.dtype), self.weight, self.bias)
        raw = raw.astype(x.dtype).reshape(*raw.shape[:2], self.pred_len, -1)
        scale = jnp.sqrt(jnp.square(window.std) + LEAST_SCALE**2)[..., None]
        gaps = jnp.swapaxes(jax.nn.softplus(raw) * scale, 1, 2)
        below, above = gaps[..., : self.centre], gaps[..., self.centre :]
        middle = median[..., None]
        lower = middle - jnp.cumsum(below[..., ::-1], -1)[..., ::-1]
        return jnp.concatenate([lower, middle, middle + jnp.cumsum(above, -1)], -1)
