"""Eigen-features of the kernel regressor: how accurate, how useful, how robust each of them is.

Source: Kim and Yang (ICML 2024), after Tsilivis and Kempe (2022). With s K s = V diag(w) Vᵀ the
regressor is the sum of the features F⁽ⁱ⁾(x) = K(x, X) s v_i w_i⁻¹ v_iᵀ s Y.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.dynamics import Modes, Values
from rflib.methods.jacobian_ntk.kernels import as_inputs, pairs
from rflib.methods.jacobian_ntk.network import Columns, Mlp, Rows
from rflib.methods.jacobian_ntk.products import product


class Features(NamedTuple):
    """Kept features, largest eigenvalue first.

    values: w_i [r]. coefficients: α [N, 1+d, r] with F⁽ⁱ⁾(x) = K(x, X) α_i. r: effective rank.
    """

    values: np.ndarray
    coefficients: np.ndarray


class Measures(NamedTuple):
    """Of each feature [r]: share of right signs, mean of y f / rms(f), both also at the worst."""

    accuracy: np.ndarray
    usefulness: np.ndarray
    robust_accuracy: np.ndarray
    robust_usefulness: np.ndarray


def eigen_features(modes: Modes, targets: Values, *, tol: float = 1e-10) -> Features:
    """The features with w_i > tol · w_max; with modes of λ = 0, those of the plain NTK.

    targets: Y [N, 1+d] of one output.
    """
    if targets.ndim != 2:
        raise UserError(f"targets {targets.shape}: features are those of one output, [N, 1+d]")
    keep = np.flatnonzero(modes.values > tol * modes.values.max())[::-1]
    w, v = modes.values[keep], modes.vectors[:, keep]
    weights = v.T @ (modes.root * targets.ravel()[modes.observed]) / w
    full = np.zeros((len(modes.observed), len(keep)))
    full[modes.observed] = modes.root[:, None] * v * weights
    return Features(w, full.reshape(*targets.shape, len(keep)))


def evaluate(features: Features, cross: Float[np.ndarray, "Q P"]) -> Float[np.ndarray, "M D r"]:
    """F⁽ⁱ⁾ = (f⁽ⁱ⁾, ∂f⁽ⁱ⁾/∂x) at M points from K(x, X) [M (1+d), N (1+d)]."""
    _, side, count = features.coefficients.shape
    return (cross @ features.coefficients.reshape(-1, count)).reshape(-1, side, count)


def first_order_margins(
    outputs: Float[np.ndarray, "M D r"], y: Float[np.ndarray, "M"], eps: float
) -> Float[np.ndarray, "M r"]:
    """min over |δ| <= eps of y f(x + δ) to first order: y f − eps |∂f/∂x|."""
    checks.in_range("eps", eps, 0)
    return y[:, None] * outputs[:, 0] - eps * np.linalg.norm(outputs[:, 1:], axis=1)


@functools.partial(jax.jit, static_argnums=(0, 6))
def _attack(
    net: Mlp, train: Array, weights: Array, test: Array, y: Array, eps: Array, steps: int
) -> Array:
    def one(v: Array) -> Array:
        def values(points: Array) -> Array:
            return product(pairs(net, points, train)[1], points, train, v)

        def step(state: tuple[Array, Array, Array], _: Any) -> tuple[Any, None]:
            delta, now, worst = state
            slope = y[:, None] * now[:, 1:]
            size = jnp.linalg.norm(slope, axis=1, keepdims=True)
            delta = delta - eps / 4 * slope / jnp.where(size > 0, size, 1.0)
            length = jnp.linalg.norm(delta, axis=1, keepdims=True)
            delta = delta * jnp.minimum(1.0, eps / jnp.where(length > 0, length, 1.0))
            now = values(test + delta)
            return (delta, now, jnp.minimum(worst, y * now[:, 0])), None

        start = values(test)
        state = (jnp.zeros_like(test), start, y * start[:, 0])
        return jax.lax.scan(step, state, None, steps)[0][2]

    return jax.lax.map(one, weights)


def attack_margins(
    net: Mlp,
    train: Rows,
    coefficients: Float[np.ndarray, "N D r"],
    test: Columns,
    y: Float[np.ndarray, "M"],
    eps: float,
    *,
    steps: int = 10,
) -> Float[np.ndarray, "M r"]:
    """min of y f⁽ⁱ⁾(x + δ) over projected gradient descent, `steps` steps of eps/4 in |δ| <= eps.

    The exact feature is attacked, each at its own perturbed points, which are not put back on the
    sphere; the least value met counts. Costs r · M · (steps + 1) rows of the kernel, in float64.

    Args:
        net: the network whose JNTK this is. train: X [N, d]. coefficients: of the features to be
            attacked, as in `Features`; those of λ = 0 serve as well. test: x [M, d]. y: ±1.
    """
    checks.in_range("eps", eps, 0)
    checks.positive_int("steps", steps)
    with jax.enable_x64(True):
        test, train = as_inputs(
            net, np.asarray(test, np.float64), np.asarray(train, np.float64), derivatives=True
        )
        weights = jnp.asarray(np.moveaxis(coefficients, 2, 0))
        found = _attack(net, train, weights, test, jnp.asarray(y, float), jnp.asarray(eps), steps)
        return np.asarray(found).T


def measure(
    outputs: Float[np.ndarray, "M D r"],
    y: Float[np.ndarray, "M"],
    worst: Float[np.ndarray, "M r"],
) -> Measures:
    """Accuracy and usefulness of features, clean and at the margins of an attack.

    outputs: from `evaluate`. y: ±1. worst: from `first_order_margins` or `attack_margins`. A
    feature whose f is 0 everywhere has usefulness 0.
    """
    margins = y[:, None] * outputs[:, 0]
    scale = np.sqrt(np.mean(outputs[:, 0] ** 2, axis=0))
    scale = np.where(scale > 0, scale, np.inf)
    return Measures(
        np.mean(margins > 0, axis=0),
        np.mean(margins, axis=0) / scale,
        np.mean(worst > 0, axis=0),
        np.mean(worst, axis=0) / scale,
    )


def telling(accuracy: Float[np.ndarray, "r"], rows: int) -> np.ndarray:
    """Which features are no noise: accuracy further than 2 standard errors, 1/√rows, from 1/2."""
    return np.abs(accuracy - 0.5) > 1 / np.sqrt(rows)


class Correlation(NamedTuple):
    """Spearman's ρ, its percentile bootstrap interval of 95 %, and the number of features.

    value is NaN with fewer than three features, or if one side is constant.
    """

    value: float
    low: float
    high: float
    count: int


def spearman(
    one: Float[np.ndarray, "r"],
    other: Float[np.ndarray, "r"],
    *,
    keep: np.ndarray | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Correlation:
    """Rank correlation of two measures over features, resampled over features.

    keep: bool [r], from `telling`; all if None.
    """
    if keep is not None:
        one, other = one[keep], other[keep]
    count = len(one)
    value = _ranks_agree(one, other)
    if not np.isfinite(value):
        return Correlation(float("nan"), float("nan"), float("nan"), count)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        drawn = rng.integers(count, size=count)
        found.append(_ranks_agree(one[drawn], other[drawn]))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return Correlation(value, float(low), float(high), count)


def _ranks_agree(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import rankdata

    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
