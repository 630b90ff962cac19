"""Robust training of a wide network: its loss, its solution in time, and where it ends.

Source: Kim and Yang (ICML 2024). The loss is
R = (1/N) Σ_i [ (f(x_i) − y_i)² / 2 + (λ/2) |∂f/∂x (x_i)|² ]; with F = (f, ∂f/∂x) at all training
points, K = κ² Θ(X, X), Λ = (1, λ, …, λ) repeated and Y = (y₁, 0, …, 0, y₂, …), gradient flow is
dF/dt = −(1/N) K Λ (F − Y). With s = √Λ and s K s = V diag(w) Vᵀ it is solved by
F(x, t) = F₀(x) − K(x, X) s V [(1 − exp(−w t/N)) / w] Vᵀ s (F₀(X) − Y);
gradient descent of step η has (1 − η w/N)^k for exp(−w t/N).

With a K of full rank the end of it is K(x, X) K⁻¹ Y: λ cancels. The limit interpolates y and has
the wanted Jacobians, zero if none are given, at every training point, whatever λ is. λ acts through
the rates, through rank deficiency, and through a ridge ρ, the weight of |θ − θ₀|²/2 in the loss.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.network import Mlp, Params, Rows, all_values, values
from rflib.methods.jacobian_ntk.spectra import effective_rank

REDUCTIONS = ("mean", "sum")
Values = Float[np.ndarray, "N D *C"]  # F or Y; a last axis holds several outputs


def function_loss(
    f: Float[Array | np.ndarray, "N D *C"],
    targets: Float[Array | np.ndarray, "N D *C"],
    *,
    lam: float,
    reduction: str = "mean",
) -> Array:
    """R of the values F [N, 1+d] or [N, 1+d, C]; Σ_i instead of the mean with reduction="sum"."""
    checks.one_of("reduction", reduction, REDUCTIONS)
    square = (jnp.asarray(f) - jnp.asarray(targets)) ** 2
    total = (jnp.sum(square[:, 0]) + lam * jnp.sum(square[:, 1:])) / 2
    return total / len(f) if reduction == "mean" else total


def robust_loss(
    net: Mlp,
    params: Params,
    x: Rows,
    targets: Float[Array | np.ndarray, "N 1+d *C"],
    *,
    lam: float,
    reduction: str = "mean",
) -> Array:
    """R(θ) of the network on the rows x; differentiable in `params`, through ∂f/∂x as well.

    Args:
        net, params: the network; with targets [N, 1+d, C], C outputs.
        targets: Y from `make_targets`: the labels, and the wanted Jacobians (0 by default).
        lam: λ >= 0; at 0 the Jacobian is not computed. A loss with λ |∂f/∂x|², without the half,
            has 2 λ here.
        reduction: "mean" or "sum" over examples.
    """
    several = targets.ndim == 3
    if several:
        return function_loss(all_values(net, params, x), targets, lam=lam, reduction=reduction)
    return function_loss(values(net, params, x), targets, lam=lam, reduction=reduction)


def make_targets(
    y: Float[np.ndarray, "N *C"], d: int, jacobians: Float[np.ndarray, "N d *C"] | None = None
) -> Values:
    """Y [N, 1+d(, C)] in float64: labels [N] or [N, C], and the wanted ∂f/∂x, 0 if None."""
    y = np.asarray(y, np.float64)
    full = np.zeros((len(y), 1 + d, *y.shape[1:]))
    full[:, 0] = y
    if jacobians is not None:
        if np.shape(jacobians) != full[:, 1:].shape:
            raise UserError(
                f"jacobians has shape {np.shape(jacobians)}; {full[:, 1:].shape} is needed"
            )
        full[:, 1:] = jacobians
    return full


class Modes(NamedTuple):
    """s K s = V diag(w) Vᵀ over the observed rows: all that training in the limit needs.

    values: w [P], ascending. vectors: V [P, P]. root: s [P]. observed: bool [N (1+d)], which rows
    of K these are: all, or with λ = 0 those of f only. n: N. count: N for the mean loss, 1 for the
    sum. ridge: ρ.
    """

    values: np.ndarray
    vectors: np.ndarray
    root: np.ndarray
    observed: np.ndarray
    n: int
    count: int
    ridge: float

    @property
    def rates(self) -> np.ndarray:
        """w/N + ρ [P]: mode i decays like exp(−rate t)."""
        return np.maximum(self.values, 0) / self.count + self.ridge

    @property
    def stable_step(self) -> float:
        """Gradient descent converges for steps η below 2 / (the largest rate)."""
        return 2 / float(self.rates.max())

    def rank(self, tol: float = 1e-10) -> int:
        """Effective rank: eigenvalues above tol · λ_max."""
        return effective_rank(self.values, tol)


def decompose(
    gram: Float[np.ndarray, "P P"],
    n: int,
    *,
    lam: float,
    ridge: float = 0.0,
    reduction: str = "mean",
) -> Modes:
    """The modes of robust training from the Gram matrix of F at the n training points.

    Args:
        gram: K [N (1+d), N (1+d)] with κ², from `kernels.gram`, or that of a finite network, which
            gives the network linearised at its start. With kind="jnngp" and ridge σ²/N the result
            is Gaussian-process regression on values with noise σ² and Jacobians with noise σ²/λ.
        n: number of training points; N (1+d) must be a multiple. A kernel [N, N] of values alone
            goes with lam=0.
        lam: λ >= 0. At 0 only the rows of f remain: training without the penalty.
        ridge: ρ >= 0. reduction: "mean" or "sum".

    Raises:
        UserError: an argument out of range, or a matrix of another size.
    """
    import scipy.linalg

    checks.in_range("lam", lam, 0, np.inf, open_high=True)
    checks.in_range("ridge", ridge, 0, np.inf, open_high=True)
    checks.one_of("reduction", reduction, REDUCTIONS)
    size = len(gram)
    if size % checks.positive_int("n", n) or gram.shape != (size, size):
        raise UserError(f"gram {gram.shape} is no matrix of n={n} blocks")
    weights = np.full((n, size // n), lam, float)
    weights[:, 0] = 1
    observed = weights.ravel() > 0
    root = np.sqrt(weights.ravel()[observed])
    kernel = np.asarray(gram, np.float64)
    if not observed.all():
        kernel = kernel[np.ix_(observed, observed)]
    kernel = root[:, None] * kernel * root
    w, v = scipy.linalg.eigh(kernel)
    return Modes(w, v, root, observed, n, n if reduction == "mean" else 1, ridge)


def _gains(
    modes: Modes, time: float, step: float | None, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """(what is left of a mode, (1 − left)/(w + N ρ)) after `time`, or after `time` steps."""
    w = np.maximum(modes.values, 0) + modes.count * modes.ridge
    live = w > tol * w.max(initial=0)
    if np.isinf(time):
        return np.where(live, 0.0, 1.0), np.where(live, 1 / np.where(live, w, 1), 0)
    if step is None:
        exponent, horizon = -w * time / modes.count, time / modes.count
        left, done = np.exp(exponent), -np.expm1(exponent)
    else:
        factor = 1 - step * w / modes.count
        horizon = step * time / modes.count
        left = factor**time
        slow = factor > 0.5  # 1 − left without cancellation
        rate = np.log1p(-np.where(slow, step * w / modes.count, 0))
        done = np.where(slow, -np.expm1(time * rate), 1 - left)
    tiny = w * horizon < 1e-12
    return left, np.where(tiny, horizon, done / np.where(tiny, 1, w))


def _check_times(times: Sequence[float], step: float | None) -> list[float]:
    if step is not None:
        checks.in_range("step", step, 0, open_low=True)
        return [
            each if np.isinf(each) else checks.positive_int("times", each, zero=True)
            for each in times
        ]
    return [checks.in_range("times", each, 0) for each in times]


def _initial(modes: Modes, targets: Values, start: Any) -> np.ndarray:
    """s (F₀ − Y) over the observed rows, [P, C]."""
    if targets.shape[0] != modes.n or np.prod(targets.shape[:2]) != len(modes.observed):
        raise UserError(
            f"targets {targets.shape} do not fit a kernel of {len(modes.observed)} rows"
        )
    error = (0 if start is None else np.asarray(start, np.float64)) - targets
    return modes.root[:, None] * error.reshape(len(modes.observed), -1)[modes.observed]


def predict(
    modes: Modes,
    cross: Float[np.ndarray, "Q P"],
    targets: Values,
    *,
    times: Sequence[float] = (np.inf,),
    step: float | None = None,
    start: Values | None = None,
    start_at: Float[np.ndarray, "M D *C"] | None = None,
    tol: float = 1e-10,
) -> np.ndarray:
    """F(x, t) at any points, [T, M, 1+d(, C)] in float64.

    Args:
        modes: of the training points.
        cross: K(x, X) [M (1+d), N (1+d)], κ² included; the Gram matrix itself for X.
        targets: Y [N, 1+d] or, for several outputs, [N, 1+d, C].
        times: t >= 0 of gradient flow, np.inf for the limit; with `step`, numbers of steps.
        step: η > 0 of gradient descent; None for gradient flow.
        start, start_at: F₀ at X and at x; 0 if None. A finite network is compared from its own.
        tol: at t = ∞ without ridge, modes with w <= tol · w_max do not move (effective rank).

    Raises:
        UserError: shapes that do not fit, negative times, fractions of steps.
    """
    error = _initial(modes, targets, start)
    size = targets.shape[1]
    if cross.ndim != 2 or cross.shape[1] != len(modes.observed) or len(cross) % size:
        raise UserError(f"cross {cross.shape} does not fit {len(modes.observed)} training rows")
    along = modes.vectors.T @ error
    live = [_gains(modes, each, step, tol)[1] for each in _check_times(times, step)]
    moved = np.stack([modes.vectors @ (gain[:, None] * along) for gain in live])
    seen = cross if modes.observed.all() else cross[:, modes.observed]
    change = seen @ (modes.root[:, None] * moved)
    shape = (len(live), len(cross) // size, size, *targets.shape[2:])
    return (0 if start_at is None else np.asarray(start_at)[None]) - change.reshape(shape)


def residuals(
    modes: Modes,
    targets: Values,
    *,
    times: Sequence[float],
    step: float | None = None,
    start: Values | None = None,
    tol: float = 1e-10,
) -> np.ndarray:
    """F(X, t) − Y at the training points, [T, N, 1+d(, C)], without cancellation at late times.

    Needs λ > 0 and no ridge: V exp(−w t/N) Vᵀ s (F₀ − Y) over s. Arguments as `predict`.

    Raises:
        UserError: modes of λ = 0 or with a ridge: `predict` serves these.
    """
    if not modes.observed.all() or modes.ridge:
        raise UserError("residuals need lam > 0 and ridge = 0: use predict with the Gram matrix")
    along = modes.vectors.T @ _initial(modes, targets, start)
    live = [_gains(modes, each, step, tol)[0] for each in _check_times(times, step)]
    left = np.stack([modes.vectors @ (each[:, None] * along) for each in live])
    return (left / modes.root[:, None]).reshape(len(live), *targets.shape)


class Regression(NamedTuple):
    """predictions: F at the points asked for. coefficients: α [N, 1+d(, C)], F(x) = K(x, X) α.

    rank: effective rank, the number of modes used.
    """

    predictions: np.ndarray
    coefficients: np.ndarray
    rank: int


def kernel_regression(
    modes: Modes,
    cross: Float[np.ndarray, "Q P"],
    targets: Values,
    *,
    tol: float = 1e-10,
) -> Regression:
    """The end of training from F₀ = 0: K(x, X) s (s K s + N ρ)⁻¹ s Y, by eigenvectors.

    Modes with w <= tol · w_max are left out, so that repeated training points do no harm. With
    ρ = 0 and full rank it is Hermite interpolation, and λ cancels.
    """
    error = -_initial(modes, targets, None)
    gain = _gains(modes, np.inf, None, tol)[1]
    inner = modes.root[:, None] * (modes.vectors @ (gain[:, None] * (modes.vectors.T @ error)))
    full = np.zeros((len(modes.observed), inner.shape[1]))
    full[modes.observed] = inner
    coefficients = full.reshape(targets.shape)
    size = targets.shape[1]
    predictions = (np.asarray(cross) @ full).reshape(-1, size, *targets.shape[2:])
    return Regression(predictions, coefficients, int(np.sum(gain > 0)))


def log_evidence(modes: Modes, targets: Values) -> float:
    """log p(Y) of the Gaussian process with covariance K and noise N ρ on f, N ρ/λ on ∂f/∂x.

    −(sY)ᵀ A⁻¹ (sY)/2 − log det A/2 + Σ log s − (P/2) log 2π with A = s K s + N ρ; outputs add up.
    """
    noise = modes.count * checks.in_range("ridge", modes.ridge, 0, open_low=True)
    along = modes.vectors.T @ _initial(modes, targets, None)
    w = np.maximum(modes.values, 0) + noise
    outputs = along.shape[1]
    fit = float(np.sum(along**2 / w[:, None]))
    constant = np.sum(np.log(w)) - 2 * np.sum(np.log(modes.root)) + len(w) * np.log(2 * np.pi)
    return -0.5 * (fit + outputs * float(constant))


def leave_one_out(modes: Modes, targets: Values, *, tol: float = 1e-10) -> np.ndarray:
    """f at every training point from all the others, [N(, C)], at the end of training, closed form.

    A point is left out with its Jacobian: the error is (A⁻¹)_ii⁻¹ (A⁻¹ s Y)_i with its own block.
    Eigenvalues are raised to tol · w_max.
    """
    w = np.maximum(modes.values, 0) + modes.count * modes.ridge
    half = modes.vectors / np.sqrt(np.maximum(w, tol * w.max()))
    right = -_initial(modes, targets, None)
    side = len(w) // modes.n
    own = half.reshape(modes.n, side, -1)
    blocks = own @ own.transpose(0, 2, 1)
    error = np.linalg.solve(blocks, (half @ (half.T @ right)).reshape(modes.n, side, -1))
    found = (right.reshape(modes.n, side, -1) - error)[:, 0]  # s = 1 there
    return found.reshape(targets.shape[:1] + targets.shape[2:])
