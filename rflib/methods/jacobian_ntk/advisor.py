"""What a Jacobian penalty will do to a wide network on given data, before anything is trained.

In the limit of wide networks (Kim and Yang, ICML 2024) training is solved by the JNTK: its smallest
eigenvalue says whether the data can be fitted with Jacobians at all, its spectrum how fast, and the
solution with and without the penalty from when on the penalty matters.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.dynamics import (
    Modes,
    decompose,
    leave_one_out,
    make_targets,
    predict,
)
from rflib.methods.jacobian_ntk.kernels import gram, sweep
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.spectra import extremes

RESOLUTION = 2e-8  # of λ_max: the largest error of a float32 recursion that was measured
DEPTHS = (1, 2, 3, 4, 6, 8, 11, 14)


class DepthRow(NamedTuple):
    """One architecture: smallest and largest eigenvalues over κ², and whether they are resolved.

    resolved: λ_min(JNTK) > resolution · λ_max(JNTK).
    """

    activation: str
    depth: int
    ntk_smallest: float
    jntk_smallest: float
    jntk_largest: float
    resolved: bool


class Scales(NamedTuple):
    """Time scales N/w of the modes: fastest, median, slowest; steps of size η are t/η.

    stable_step: gradient descent needs η below it. rank: effective rank, of `size` modes.
    """

    fastest: float
    median: float
    slowest: float
    stable_step: float
    rank: int
    size: int


class Advice(NamedTuple):
    """The table of architectures; the recommended one; its time scales, and when λ matters.

    net: the recommended network. reached: whether its λ_min is resolved, else it is the one
    with the largest λ_min/λ_max. binds: first t at which f at the training points with and without
    penalty differ by 5 % of rms(y), rms over points; infinite if never up to the slowest mode.
    fitted: first t at which training without the penalty has halved its error. leave_one_out:
    root-mean-square error, and share of right signs (NaN unless labels are ±1), at t = ∞.
    rows: how many rows were used.
    """

    table: tuple[DepthRow, ...]
    net: Mlp
    reached: bool
    scales: Scales
    binds: float
    fitted: float
    leave_one_out: tuple[float, float]
    rows: int


def architectures(
    x: Float[np.ndarray, "N d"],
    *,
    activations: Sequence[str] = ("gelu", "erf"),
    depths: Sequence[int] = DEPTHS,
    resolution: float = RESOLUTION,
) -> tuple[DepthRow, ...]:
    """Extreme eigenvalues of NTK and JNTK (without κ²) for each activation and depth, float64."""
    rows = []
    for activation in activations:
        net = Mlp(1, activation)
        plain = dict(sweep(net, x, depths, kind="ntk"))
        for depth, matrix in sweep(net, x, depths):
            found, small = extremes(matrix), extremes(plain[depth]).smallest
            clear = bool(found.smallest > resolution * found.largest)
            rows.append(DepthRow(activation, depth, small, found.smallest, found.largest, clear))
    return tuple(rows)


def recommend(table: Sequence[DepthRow]) -> DepthRow:
    """The shallowest resolved architecture; of equally shallow ones that of larger λ_min/λ_max.

    If none is resolved, the one of the largest ratio.
    """
    clear = [row for row in table if row.resolved] or list(table)
    if not clear:
        raise UserError("table is empty: there is no architecture to recommend")
    least = min(row.depth for row in clear) if clear[0].resolved else None
    best = [row for row in clear if least is None or row.depth == least]
    return max(best, key=lambda row: row.jntk_smallest / row.jntk_largest)


def time_scales(modes: Modes, *, tol: float = 1e-10) -> Scales:
    """Time scales of the modes that move at all, w > tol · w_max."""
    live = modes.rates[modes.values > tol * modes.values.max()]
    fastest, median, slowest = (float(1 / np.quantile(live, q)) for q in (1, 0.5, 0))
    return Scales(fastest, median, slowest, modes.stable_step, len(live), len(modes.values))


def binding_time(
    kernel: Float[np.ndarray, "P P"],
    y: Float[np.ndarray, "N"],
    modes: Modes,
    *,
    share: float = 0.05,
    points: int = 200,
) -> tuple[float, float]:
    """(binds, fitted): from when on the penalty changes f, and when half of y is fitted without it.

    kernel: K [N (1+d), N (1+d)] with κ². modes: of the penalised training on it. binds is the first
    t, on a logarithmic grid refined by bisection, at which the root mean square over training
    points of f_λ − f₀ exceeds share · rms(y), both from F₀ = 0. Infinite where it does not happen.
    """
    n = len(y)
    targets = make_targets(y, len(kernel) // n - 1)
    free = decompose(kernel, n, lam=0.0, reduction="mean" if modes.count == n else "sum")
    level = float(np.sqrt(np.mean(y**2)))

    def at(times: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        both = [predict(each, kernel, targets, times=times)[:, :, 0] for each in (modes, free)]
        return (
            np.sqrt(np.mean((both[0] - both[1]) ** 2, axis=1)) - share * level,
            0.5 * level - np.sqrt(np.mean((both[1] - y[None]) ** 2, axis=1)),
        )

    scales = time_scales(modes)
    slowest = max(scales.slowest, time_scales(free).slowest)
    grid = np.geomspace(scales.fastest / 100, 10 * slowest, points)
    return _first(grid, at, 0), _first(grid, at, 1)


def _first(
    grid: np.ndarray, at: Callable[[Sequence[float]], tuple[np.ndarray, np.ndarray]], which: int
) -> float:
    signs = at(list(grid))[which] > 0
    if not signs.any():
        return float("inf")
    number = int(np.argmax(signs))
    low, high = (grid[number - 1] if number else 0.0), grid[number]
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if at([middle])[which][0] > 0 else (middle, high)
    return float(high)


def advise(
    x: Float[np.ndarray, "N d"],
    y: Float[np.ndarray, "M"],
    *,
    lam: float = 0.01,
    kappa: float = 0.1,
    activations: Sequence[str] = ("gelu", "erf"),
    depths: Sequence[int] = DEPTHS,
    resolution: float = RESOLUTION,
    rows: int = 128,
    seed: int = 0,
) -> Advice:
    """Smallest eigenvalues, a depth, time scales of training, and when the penalty starts to bind.

    Args:
        x: inputs, best standardised and of unit norm (`data.split`). y: labels.
        lam: λ > 0. kappa: κ, which scales all times by κ^(-2).
        activations, depths: to choose from.
        resolution: the least λ_min/λ_max that counts as full rank. The default is the rounding of
            float32, in which networks are trained: below it a mode is learnt by noise alone.
        rows, seed: more than `rows` rows are sampled down to so many: the cost is O((N (1+d))³).

    Raises:
        UserError: lam <= 0, fewer than two rows, or unequal lengths.
    """
    checks.in_range("lam", lam, 0, np.inf, open_low=True, open_high=True)
    if len(x) != len(y) or len(x) < 2:
        raise UserError(
            f"x has {len(x)} rows and y {len(y)}: two or more are needed, one label each"
        )
    taken = np.sort(np.random.default_rng(seed).permutation(len(x))[:rows])
    x, y = np.asarray(x[taken], float), np.asarray(y[taken], float)
    table = architectures(x, activations=activations, depths=depths, resolution=resolution)
    best = recommend(table)
    net = Mlp(best.depth, best.activation, kappa=kappa)
    kernel = gram(net, x)
    modes = decompose(kernel, len(x), lam=lam)
    binds, fitted = binding_time(kernel, y, modes)
    left = leave_one_out(modes, make_targets(y, x.shape[1]))
    signs = float(np.mean(left * y > 0)) if set(np.unique(y)) <= {-1.0, 1.0} else float("nan")
    errors = (float(np.sqrt(np.mean((left - y) ** 2))), signs)
    return Advice(table, net, best.resolved, time_scales(modes), binds, fitted, errors, len(x))
