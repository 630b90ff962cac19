"""Study `kernel_init`: kernels of finite networks at initialisation against their limits.

For every width and depth: the Jacobian NNGP kernel and the JNTK of fresh networks on a net of S^3,
their errors, and how these fall with the width. Beside it the joint distribution of (f, ∂f/∂x) over
networks, and the limit kernel against automatic differentiation of the scalar one.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rflib.core import checks, keys
from rflib.methods.jacobian_ntk.data import sphere_net
from rflib.methods.jacobian_ntk.empirical import empirical_jnngp, empirical_jntk
from rflib.methods.jacobian_ntk.kernels import (
    flatten,
    gram,
    jacobian_nngp,
    sweep,
)
from rflib.methods.jacobian_ntk.network import Mlp, init, values
from rflib.methods.jacobian_ntk.spectra import extremes
from rflib.methods.jacobian_ntk.theory import PowerLaw, bootstrap_mean, by_autodiff, power_law
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

KERNELS = ("jnngp", "jntk")
DIMENSION = 4  # of the sphere's surroundings


class Slope(NamedTuple):
    """How the error of one kernel falls: error [W], its 95 % band, the power law and its band."""

    widths: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    law: PowerLaw
    slope_low: float
    slope_high: float

    @property
    def slope(self) -> float:
        """d log error / d log width."""
        return -self.law.exponent

    @property
    def falling(self) -> bool:
        """Whether the mean error is smaller at every next width."""
        return bool(np.all(np.diff(self.error) < 0))


def slope(widths: Any, errors: np.ndarray, *, resamples: int) -> Slope:
    """The power law of errors [W, R] of R networks a width; bands by resampling the networks."""
    widths = np.asarray(widths, float)
    mean, low, high = bootstrap_mean(errors.T, resamples=resamples)
    rng = np.random.default_rng(0)
    count, logs = errors.shape[1], np.log(widths)
    drawn = rng.integers(count, size=(resamples, len(widths), count))
    means = np.log(np.take_along_axis(errors[None], drawn, 2).mean(2))
    centred = logs - logs.mean()
    slopes = means @ centred / (centred @ centred)
    band = np.percentile(slopes, [2.5, 97.5])
    return Slope(widths, mean, low, high, power_law(widths, mean), float(band[0]), float(band[1]))


def run_study(config: Any, run: Any) -> dict[str, Any]:
    """Metrics of all cells, by name; writes the table of errors."""
    c = config.kernel_init
    for name in ("widths", "depths", "draw_widths"):
        checks.distinct(f"config.kernel_init.{name}", getattr(c, name))
    common = {"activation": config.model.activation, "points": c.points}
    cells = [
        Cell(f"L{depth}-n{width}", {"kind": "kernels", "depth": depth, "width": width,
                                    "repeats": c.repeats, **common})
        for depth in c.depths
        for width in c.widths
    ]  # fmt: skip
    deepest = max(c.depths)
    check = {**common, "kind": "check", "depth": deepest, "points": c.check_points}
    cells += [Cell("derivatives", check)]
    draw = {**common, "kind": "draws", "depth": config.model.depth, "draws": c.draws}
    cells += [
        Cell(f"draws-n{width}", {**draw, "width": width, "points": c.check_points})
        for width in c.draw_widths
    ]
    found = study(Study(cells, _cell), run, name="kernel_init", seed=config.seed)
    rows = [
        {"width": m["width"], "depth": m["depth"], "repeat": number, "kernel": kernel,
         "max_error": m[f"{kernel}_max"][number], "rms_error": m[f"{kernel}_rms"][number],
         "relative_max": m[f"{kernel}_max"][number] / m[f"{kernel}_scale"]}
        for m in found.values() if m["kind"] == "kernels"
        for kernel in KERNELS
        for number in range(c.repeats)
    ]  # fmt: skip
    run.table("kernel_errors", rows, caption="Errors of the kernels of single networks at "
              "initialisation (kappa = 1); relative: to the limit's largest entry.")  # fmt: skip
    return dict(found)


def slopes(
    config: Any, found: Mapping[str, Any], what: str = "rms"
) -> dict[tuple[str, int], Slope]:
    """(kernel, depth) -> how its error falls with the width."""
    c = config.kernel_init
    return {
        (kernel, depth): slope(
            c.widths,
            np.array([found[f"L{depth}-n{width}"][f"{kernel}_{what}"] for width in c.widths]),
            resamples=c.resamples,
        )
        for kernel in KERNELS
        for depth in c.depths
    }


def smallest(config: Any) -> dict[tuple[str, int], float]:
    """(kernel, depth) -> smallest eigenvalue of the limit on the points, or round-off."""
    c = config.kernel_init
    net, x = Mlp(1, config.model.activation), sphere_net(c.points, DIMENSION)
    found = {}
    for kernel in KERNELS:
        for depth, matrix in sweep(net, x, c.depths, kind=kernel):
            each = extremes(matrix)
            found[kernel, depth] = max(each.smallest, np.finfo(float).eps * each.largest)
    return found


def _cell(cell: Cell, key: Key) -> Metrics:
    arguments = dict(cell.arguments)
    kind = arguments["kind"]
    net = Mlp(arguments.get("depth", 1), arguments["activation"])
    x = sphere_net(arguments["points"], DIMENSION)
    if kind == "check":
        return {"kind": kind, "relative": _derivatives(net, x)}
    if kind == "draws":
        measured = _distribution(net, key, x, arguments["width"], arguments["draws"])
        return {"kind": kind, "width": arguments["width"], **measured}
    measured = _errors(net, key, x, arguments["width"], arguments["repeats"])
    return {"kind": kind, "width": arguments["width"], "depth": arguments["depth"], **measured}


def _errors(net: Mlp, key: Key, x: np.ndarray, width: int, repeats: int) -> dict[str, Any]:
    limits = {kind: gram(net, x, kind=kind) for kind in KERNELS}
    rows = jnp.asarray(x, jnp.float32)
    truth = [jnp.asarray(limits[kind], jnp.float32) for kind in KERNELS]

    @jax.jit
    def measure(keys: Array) -> Array:
        def one(key: Array) -> Array:
            params = init(key, net, x.shape[1], width)
            both = empirical_jnngp(net, params, rows), empirical_jntk(net, params, rows)
            gaps = [flatten(each) - limit for each, limit in zip(both, truth, strict=True)]
            return jnp.stack([f(gap) for gap in gaps for f in (_largest, _rms)])

        return jax.lax.map(one, keys)

    found = np.asarray(measure(jax.random.split(key, repeats)), float)
    scales = {f"{kind}_scale": float(np.abs(limits[kind]).max()) for kind in KERNELS}
    names = [f"{kind}_{what}" for kind in KERNELS for what in ("max", "rms")]
    return {name: found[:, number] for number, name in enumerate(names)} | scales


def _largest(gap: Array) -> Array:
    return jnp.max(jnp.abs(gap))


def _rms(gap: Array) -> Array:
    return jnp.sqrt(jnp.mean(gap**2))


def _derivatives(net: Mlp, x: np.ndarray) -> float:
    """Largest relative difference of the NNGP blocks from derivatives of the scalar NNGP kernel.

    One of the points is moved off the sphere, where the derivatives along the radius differ.
    """
    x = np.concatenate([1.3 * x[:1], x[1:]])
    with jax.enable_x64(True):
        rows = jnp.asarray(x)
        slow = np.asarray(by_autodiff(net, rows, kind="jnngp"))
        gap = np.abs(np.asarray(jacobian_nngp(net, rows)) - slow).max()
    return float(gap / np.abs(slow).max())


def _distribution(net: Mlp, key: Key, x: np.ndarray, width: int, draws: int) -> dict[str, Any]:
    """How Gaussian (f, ∂f/∂x) is over networks: covariance error, excess kurtosis, mean.

    kurtosis: mean over the entries of F, 0 for a Gaussian; its standard error over ten groups of
    networks. covariance: its root-mean-square error over the limit's root mean square, and what
    that would be, as `sampling`, for as many draws of a Gaussian with the limit's covariance.
    """
    rows = jnp.asarray(x, jnp.float32)
    draw = jax.jit(functools.partial(_draw, net, width), static_argnums=1)
    flat = np.asarray(draw(rows, draws, key), float).reshape(draws, -1)
    limit = gram(net, x, kind="jnngp")
    covariance = flat.T @ flat / draws
    groups = np.array_split(flat, 10)
    excess = [np.mean(np.mean(g**4, 0) / np.mean(g**2, 0) ** 2) - 3 for g in groups]
    variance = np.diag(limit)
    noise = (limit**2 + np.outer(variance, variance)) / draws
    return {
        "covariance": float(np.sqrt(np.mean((covariance - limit) ** 2) / np.mean(limit**2))),
        "sampling": float(np.sqrt(np.mean(noise) / np.mean(limit**2))),
        "kurtosis": float(np.mean(np.mean(flat**4, 0) / variance**2) - 3),
        "kurtosis_error": float(np.std(excess, ddof=1) / np.sqrt(len(groups))),
        "mean": float(np.abs(flat.mean(0) / np.sqrt(variance / draws)).max()),
    }


def _draw(net: Mlp, width: int, rows: Array, draws: int, key: Array) -> Array:
    def one(number: Array) -> Array:
        return values(net, init(keys.named(key, number), net, rows.shape[1], width), rows)

    return jax.lax.map(one, jnp.arange(draws), batch_size=min(100, draws))
