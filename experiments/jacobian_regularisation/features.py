"""Study `features`: is an accurate eigen-feature of the kernel regressor also a robust one?"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.jacobian_regularisation import data as rows
from rflib.core import checks
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import features as eigen
from rflib.methods.jacobian_ntk.data import Labelled
from rflib.methods.jacobian_ntk.dynamics import decompose, make_targets
from rflib.methods.jacobian_ntk.kernels import gram
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

DEFINITIONS = ("accuracy", "usefulness")


def cell_name(activation: str, depth: int, lam: float, split: int) -> str:
    """The name of a cell, unique in the study."""
    return f"{activation}-L{depth}-lam{lam:g}-split{split}"


def run_study(config: Any, run: Any, raw: Labelled) -> dict[str, Any]:
    """Metrics of all cells by name; writes the table of features and that of correlations."""
    c = config.features
    if not rows.binary(raw.y):
        run.note("features: labels are not +1 and -1, so that no feature is right or wrong")
        return {}
    lams = checks.distinct("config.features.lams", c.lams)
    checks.one_of("config.features.attack_lam", c.attack_lam, [lam for lam in lams if lam])
    cells = []
    for split in checks.distinct("config.features.splits", c.splits):
        for activation, depth in checks.distinct("config.features.nets", map(tuple, c.nets)):
            for lam in lams:
                attacked = c.attacked if lam in (0, c.attack_lam) else 0
                a = {"activation": activation, "depth": depth, "lam": lam, "split": split,
                     "rows": c.rows, "eps": c.eps, "attacked": attacked, "tol": c.tol,
                     "steps": c.attack_steps, "data": raw.name,
                     "content": float(raw.x.sum())}  # fmt: skip
                cells.append(Cell(cell_name(activation, depth, lam, split), a))
    found = study(
        Study(cells, functools.partial(_cell, config, raw)), run, name="features", seed=config.seed
    )
    caption = (
        "Spearman correlation over features between accuracy (usefulness) and its robust version, "
        f"at eps = {c.eps:g}, with 95 % bootstrap intervals; telling: without features whose "
        "accuracy is within two standard errors of 1/2; lam = 0 is the plain NTK."
    )
    run.table("feature_correlations", correlations(found), caption=caption)
    every = [
        {"activation": m["activation"], "depth": m["depth"], "lam": m["lam"], "split": m["split"],
         "feature": number, "eigenvalue": m["eigenvalues"][number]}
        | {name: m[name][number] for name in m["first_order_names"]}
        | {f"attack_{name}": m[f"attack_{name}"][number] for name in ("accuracy", "usefulness")
           if number < m["attacked"]}
        for m in found.values()
        for number in range(len(m["eigenvalues"]))
    ]  # fmt: skip
    run.table("features", every, caption="Every kept eigen-feature on the test rows.")
    return dict(found)


def _cell(config: Any, raw: Labelled, cell: Cell, key: Key) -> Metrics:
    a = dict(cell.arguments)
    part = rows.parts(config, raw, a["rows"], a["split"])
    if not len(part.x_test):
        raise UserError(f"config.features.rows={a['rows']} leaves no rows for testing")
    net = Mlp(a["depth"], a["activation"])
    kernel, cross = gram(net, part.x_train), gram(net, part.x_test, part.x_train)
    modes = decompose(kernel, len(part.x_train), lam=a["lam"])
    found = eigen.eigen_features(
        modes, make_targets(part.y_train, part.x_train.shape[1]), tol=a["tol"]
    )
    outputs, y = eigen.evaluate(found, cross), part.y_test
    first = eigen.measure(outputs, y, eigen.first_order_margins(outputs, y, a["eps"]))
    known = {name: a[name] for name in ("activation", "depth", "lam", "split")}
    measured = {"eigenvalues": found.values, "rank": len(found.values), "tests": len(y),
                "first_order_names": list(first._fields), "attacked": 0}  # fmt: skip
    measured |= first._asdict()
    count = min(a["attacked"], len(found.values))
    if count:
        worst = eigen.attack_margins(net, part.x_train, found.coefficients[..., :count],
                                     part.x_test, y, a["eps"], steps=a["steps"])  # fmt: skip
        attack = eigen.measure(outputs[..., :count], y, worst)
        measured["attacked"] = count
        measured["attack_accuracy"] = attack.robust_accuracy
        measured["attack_usefulness"] = attack.robust_usefulness
    return known | measured


def correlations(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a cell, definition (accuracy, usefulness) and form (first order, attack), with and
    without the features that guess."""
    table = []
    for m in found.values():
        accuracy = np.array(m["accuracy"])
        telling = eigen.telling(accuracy, m["tests"])
        for form in ("first order", "attack"):
            count = len(accuracy) if form == "first order" else m["attacked"]
            for definition in DEFINITIONS if count else ():
                name = f"robust_{definition}" if form == "first order" else f"attack_{definition}"
                clean, robust = np.array(m[definition])[:count], np.array(m[name])[:count]
                for kept, keep in (("telling", telling[:count]), ("all", None)):
                    each = eigen.spearman(clean, robust, keep=keep)
                    table.append(
                        {"activation": m["activation"], "depth": m["depth"], "lam": m["lam"],
                         "split": m["split"], "definition": definition, "form": form,
                         "features": kept, "correlation": each.value, "low": each.low,
                         "high": each.high, "count": each.count}
                    )  # fmt: skip
    return table
