"""Study `regression`: accuracy of the limit against stopping time and penalty; baselines."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.jacobian_regularisation import data as rows
from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.data import Labelled, Split
from rflib.methods.jacobian_ntk.dynamics import (
    Modes,
    decompose,
    kernel_regression,
    leave_one_out,
    log_evidence,
    make_targets,
    predict,
)
from rflib.methods.jacobian_ntk.features import first_order_margins
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study


def run_study(config: Any, run: Any, raw: Labelled) -> dict[str, Any]:
    """Metrics of all cells by name; writes the tables of accuracies and of the selection."""
    c = config.regression
    common = {
        "activation": c.activation, "depth": c.depth, "rows": c.rows, "times": tuple(c.times),
        "eps": tuple(c.eps), "ridges": tuple(c.ridges), "split": config.data.split,
        "data": raw.name, "content": float(raw.x.sum()),
    }  # fmt: skip
    cells = [
        Cell(f"{kind}-lam{lam:g}", {**common, "kind": kind, "lam": lam})
        for kind in ("jntk", "jnngp")
        for lam in checks.distinct("config.regression.lams", c.lams)
    ]
    found = study(
        Study(cells, functools.partial(_cell, config, raw)), run, name="regression",
        seed=config.seed,
    )  # fmt: skip
    curves = [
        {"kernel": m["kernel"], "lam": m["lam"], "time": time, "rank": m["rank"]}
        | {name: m[name][number] for name in m["measured"]}
        for m in found.values()
        for number, time in enumerate(m["times"])
    ]
    run.table("stopping", curves, caption="Test rows against the stopping time t of gradient flow "
              "(kappa = 1, mean loss, zero start); robust: to first order.")  # fmt: skip
    chosen = [
        {"kernel": m["kernel"], "lam": m["lam"], **row}
        for m in found.values()
        for row in m["selection"]
    ]
    run.table("selection", chosen, caption="Ridge rho: log evidence and leave-one-out on the "
              "training rows beside the test rows.")  # fmt: skip
    return dict(found)


def _cell(config: Any, raw: Labelled, cell: Cell, key: Key) -> Metrics:
    a = dict(cell.arguments)
    part = rows.parts(config, raw, a["rows"])
    if not len(part.x_test):
        raise UserError(f"config.regression.rows={a['rows']} leaves no rows for testing")
    net = Mlp(a["depth"], a["activation"])
    kernel = gram(net, part.x_train, kind=a["kind"])
    cross = gram(net, part.x_test, part.x_train, kind=a["kind"])
    targets = make_targets(part.y_train, part.x_train.shape[1])
    modes = decompose(kernel, len(part.x_train), lam=a["lam"])
    times = [*a["times"], np.inf]
    outputs = predict(modes, cross, targets, times=times)
    measured = [_quality(each, part.y_test, a["eps"]) for each in outputs]
    names = list(measured[0])
    return {
        "kernel": a["kind"] if a["lam"] else a["kind"].removeprefix("j"),
        "lam": a["lam"],
        "times": times,
        "rank": modes.rank(),
        "measured": names,
        "selection": [_selected(modes, cross, targets, part, ridge, a["eps"]) for ridge in
                      a["ridges"]],
        **{name: [each[name] for each in measured] for name in names},
    }  # fmt: skip


def _quality(outputs: np.ndarray, y: np.ndarray, eps: Any) -> dict[str, float]:
    """Of F [M, 1+d] on test rows: rmse, slope |∂f/∂x|, and shares of right signs if labels are."""
    found = {
        "rmse": float(np.sqrt(np.mean((outputs[:, 0] - y) ** 2))),
        "slope": float(np.linalg.norm(outputs[:, 1:], axis=1).mean()),
    }
    if rows.binary(y):
        found["accuracy"] = float(np.mean(outputs[:, 0] * y > 0))
        for each in eps:
            margins = first_order_margins(outputs[..., None], y, each)[:, 0]
            found[f"robust_{each:g}"] = float(np.mean(margins > 0))
    return found


def _selected(
    modes: Modes, cross: np.ndarray, targets: np.ndarray, part: Split, ridge: float, eps: Any
) -> dict[str, float]:
    """One ridge: what can be said without test rows, and what these say."""
    modes = modes._replace(ridge=ridge)
    outputs = kernel_regression(modes, cross, targets).predictions
    left, y = leave_one_out(modes, targets), targets[:, 0]
    found = {
        "ridge": ridge,
        "log_evidence": log_evidence(modes, targets),
        "leave_one_out_rmse": float(np.sqrt(np.mean((left - y) ** 2))),
    }
    if rows.binary(y):
        found["leave_one_out_accuracy"] = float(np.mean(left * y > 0))
    return {
        **found,
        **_quality(outputs, part.y_test, eps),
    }


def accuracies(found: Mapping[str, Any], kernel: str, lam: float) -> dict[float, float]:
    """time -> test accuracy of one kernel and penalty; {} if it was not run."""
    m = found.get(f"{kernel}-lam{lam:g}", {})
    return dict(zip(m.get("times", ()), m.get("accuracy", ()), strict=False))
