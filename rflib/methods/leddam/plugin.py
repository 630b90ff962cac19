"""A decomposition in front of any forecaster: the study of Leddam (ICML 2024), section 4.4."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jaxtyping import Float

from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.methods.leddam.decomposition import LearnableDecomposition, check_kernels
from rflib.nn.linear import Linear

SPLITS = ("raw", "ld", "mov")


class PlugIn(nn.Module):
    """trend = LD(X) along time;  Ŷ = backbone(X - trend) + trend W + b, W shared by all series.

    backbone: a forecaster [B, T, N] -> [B, S, N] with the fields n_series, seq_len and pred_len,
        called as `backbone(x, train)`, or `backbone(x, train, marks)` if marks are given.
    split: "ld": the learnable kernel, trained with the backbone. "mov": the same wiring around a
        frozen moving average. "raw": the backbone alone. All three draw the same initial backbone
        from the same key, so that they may be compared seed by seed.
    kernel_size, ld_init, kernel_constraint, more_kernels: see `LearnableDecomposition`; "mov" is
        the moving average whatever `ld_init` says.

    W starts at 1/T and b as U(±1/√T). `kernel_mask` says which parameters are the kernel's, for a
    learning rate of its own.

    Raises:
        UserError: an unknown choice, or a backbone without the three sizes.
    """

    backbone: nn.Module
    split: str = "ld"
    kernel_size: int = 25
    ld_init: str = "softmax_gauss"
    kernel_constraint: str = "none"
    more_kernels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        check_kernels(self.ld_init, self.kernel_size, self.kernel_constraint, self.more_kernels)
        for name in ("n_series", "seq_len", "pred_len"):
            if not hasattr(self.backbone, name):
                raise UserError(f"backbone={type(self.backbone).__name__} has no field {name}")
        super().__post_init__()

    @property
    def n_series(self) -> int:
        return self.backbone.n_series  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def seq_len(self) -> int:
        return self.backbone.seq_len  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def pred_len(self) -> int:
        return self.backbone.pred_len  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def n_marks(self) -> int:
        """Calendar features a time step that the backbone takes; 0: none."""
        return getattr(self.backbone, "n_marks", 0)

    def setup(self) -> None:
        if self.split == "raw":
            return
        self.decomposition = LearnableDecomposition(
            self.kernel_size,
            "mov_frozen" if self.split == "mov" else self.ld_init,
            constraint=self.kernel_constraint,
            more_kernels=self.more_kernels,
        )
        flat = nn.initializers.constant(1 / self.seq_len)
        self.trend = Linear(self.seq_len, self.pred_len, flat)

    def __call__(
        self,
        x: Float[Array, "batch seq_len n_series"],
        train: bool,
        marks: Float[Array, "batch steps n_marks"] | None = None,
    ) -> Float[Array, "batch pred_len n_series"]:
        more = () if marks is None else (marks,)
        if self.split == "raw":
            return self.backbone(x, train, *more)
        # Parameters decide the precision of the linear map, the input that of the forecast.
        values = jnp.swapaxes(x, 1, 2)
        trend, seasonal = self.decomposition(values)
        self.sow("intermediates", "trend_part", trend)
        self.sow("intermediates", "seasonal_part", seasonal)
        ahead = self.trend(trend.astype(self.trend.weight.dtype)).astype(x.dtype)
        return self.backbone(jnp.swapaxes(seasonal, 1, 2), train, *more) + jnp.swapaxes(ahead, 1, 2)
