"""Study `spectrum`: smallest eigenvalues of the limit kernels by depth, in four arithmetics."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.jacobian_regularisation import data as rows
from rflib.core import checks, keys
from rflib.methods.jacobian_ntk.data import Labelled, sphere_net
from rflib.methods.jacobian_ntk.kernels import flatten, sweep
from rflib.methods.jacobian_ntk.monte_carlo import monte_carlo
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.spectra import extremes
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

EPS = float(np.finfo(np.float64).eps)


def run_study(config: Any, run: Any, raw: Labelled) -> dict[str, Any]:
    """Metrics of all cells, by name "kind-activation"; writes the table of eigenvalues."""
    c = config.spectrum
    x = rows.first_rows(config, raw, c.rows)
    depths = checks.distinct("config.spectrum.depths", c.depths)
    data = {"rows": len(x), "data": raw.name, "content": float(x.sum())}
    cells = []
    for activation in checks.distinct("config.spectrum.activations", c.activations):
        common = {"activation": activation, "depths": depths}
        cells.append(Cell(f"exact-{activation}", {**common, **data, "kind": "exact"}))
        if c.single:
            cells.append(Cell(f"single-{activation}", {**common, **data, "kind": "single"}))
        if c.sphere:
            sphere = {**common, "kind": "sphere", "rows": c.sphere}
            cells.append(Cell(f"sphere-{activation}", sphere))
        if c.sampled_rows:
            few = {**data, "rows": min(c.sampled_rows, len(x)), "activation": activation}
            few["depths"] = checks.distinct("config.spectrum.sampled_depths", c.sampled_depths)
            cells.append(Cell(f"few-{activation}", {**few, "kind": "few"}))
            for way in ("joint", "pairs"):
                sampled = {"kind": way, "samples": c[way], "repeats": c.sampled_repeats}
                cells.append(Cell(f"{way}-{activation}", {**few, **sampled}))
    found = study(Study(cells, functools.partial(_cell, x)), run, name="spectrum", seed=config.seed)
    run.table(
        "smallest_eigenvalues",
        _table(config, found),
        caption="Smallest and largest eigenvalues without kappa; few, joint, pairs: on the first "
        f"{c.sampled_rows} rows; joint and pairs: mean over Monte-Carlo matrices.",
    )
    return dict(found)


def _table(config: Any, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    references = {
        name: dict(zip(config.expect.depths, config.expect.sphere[name], strict=True))
        for name in ("gelu", "erf")
    }
    table = []
    for m in found.values():
        for number, depth in enumerate(m["depths"]):
            row = {"kind": m["kind"], "activation": m["activation"], "rows": m["rows"],
                   "depth": depth}  # fmt: skip
            row |= {name: m[name][number] for name in ("ntk", "jntk", "largest", "spread")
                    if name in m}  # fmt: skip
            if m["kind"] == "sphere" and m["rows"] == 256:
                row["reference_jntk"] = references.get(m["activation"], {}).get(depth)
            table.append(row)
    return table


def _cell(x: np.ndarray, cell: Cell, key: Key) -> Metrics:
    a = dict(cell.arguments)
    kind, depths = a["kind"], list(a["depths"])
    net = Mlp(max(depths), a["activation"])
    known = {"kind": kind, "activation": a["activation"], "depths": depths, "rows": a["rows"]}
    if kind in ("joint", "pairs"):
        return known | _sampled(net, key, x[: a["rows"]], depths, kind, a["samples"], a["repeats"])
    points = sphere_net(a["rows"]) if kind == "sphere" else x[: a["rows"]]
    if kind == "single":
        return known | _single(net, points, depths)
    return known | _exact(net, points, depths)


def _exact(net: Mlp, x: np.ndarray, depths: Sequence[int]) -> dict[str, Any]:
    """float64; resolved: λ_min above the rounding of the matrix."""
    found: dict[str, list[Any]] = {name: [] for name in ("ntk", "jntk", "largest", "resolved")}
    for _, matrix in sweep(net, x, depths, kind="ntk"):
        found["ntk"].append(extremes(matrix).smallest)
    for _, matrix in sweep(net, x, depths):
        each = extremes(matrix)
        found["jntk"].append(each.smallest)
        found["largest"].append(each.largest)
        found["resolved"].append(each.resolved)
    return found


def _single(net: Mlp, x: np.ndarray, depths: Sequence[int]) -> dict[str, Any]:
    """The recursion and the eigenvalues in float32."""
    import scipy.linalg

    found: dict[str, list[float]] = {"jntk": [], "largest": []}
    for _, matrix in sweep(net, x, depths, dtype=np.float32):
        every = scipy.linalg.eigvalsh(matrix)
        found["jntk"].append(float(every[0]))
        found["largest"].append(float(every[-1]))
    return found


def _sampled(
    net: Mlp, key: Key, x: np.ndarray, depths: Sequence[int], way: str, samples: int, repeats: int
) -> dict[str, Any]:
    """Smallest eigenvalues of Monte-Carlo matrices: means, and standard deviations as `spread`."""
    smallest = []
    with jax.enable_x64(True):
        for number in range(checks.positive_int("config.spectrum.sampled_repeats", repeats)):
            _, theta = monte_carlo(keys.named(key, number), net, x, samples, draws=way)
            each = [flatten(np.asarray(theta[depth - 1])) for depth in depths]
            smallest.append([float(np.linalg.eigvalsh(one)[0]) for one in each])
    spread = np.std(smallest, axis=0, ddof=1) if repeats > 1 else np.full(len(depths), np.nan)
    return {"jntk": np.mean(smallest, axis=0), "spread": spread, "every": smallest}
