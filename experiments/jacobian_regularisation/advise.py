"""The verb `advise`: what a Jacobian penalty will do on a CSV file, without training anything."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.jacobian_regularisation import data as rows
from rflib.core import checks, keys
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import data as sets
from rflib.methods.jacobian_ntk.advisor import Advice
from rflib.methods.jacobian_ntk.advisor import advise as ask
from rflib.methods.jacobian_ntk.dynamics import decompose, make_targets, predict
from rflib.methods.jacobian_ntk.empirical import empirical_jntk
from rflib.methods.jacobian_ntk.kernels import flatten, gram
from rflib.methods.jacobian_ntk.network import init
from rflib.methods.jacobian_ntk.theory import power_law
from rflib.run import files
from rflib.run.claims import markdown_table
from rflib.train import host

PROBED = (64, 128, 256)  # widths whose networks are drawn to see how their kernel's error falls
DRAWN = 3  # networks of each
PROBED_ROWS = 32  # of the data
CLOSE = 0.1  # of the limit kernel's rms: what the recommended width comes down to
SANE = (1e-12, 1e12)  # of lam, kappa and lr: beyond, squares and quotients overflow
FLATTER = 0.1  # share of the slope that the penalty takes away once it is said to bind


def advise(
    *,
    csv: str | None,
    label: str | None,
    positive: str | None,
    columns: str | None,
    output: str | None,
    **numbers: str | None,
) -> None:
    """Prints the advice for a CSV file; writes it as JSON to `output`, if given.

    numbers: lam, kappa, lr, rows and seed, as text.
    """
    given = {name: number(name, value) for name, value in numbers.items()}
    for name in ("lam", "kappa", "lr"):
        checks.in_range(f"--{name}", given[name], *SANE)
    most = int(checks.in_range("--rows", checks.positive_int("--rows", given["rows"]), 2))
    seed = checks.positive_int("--seed", given["seed"], zero=True)
    host.compilation_cache(True)
    raw = _read(csv or "", label or "", positive or "", columns or "")
    taken = np.sort(np.random.default_rng(seed).permutation(len(raw.x))[:most])
    x, y = sets.unit_rows(sets.standardised(raw.x, raw.x)[taken]), raw.y[taken]
    found = ask(x, y, lam=given["lam"], kappa=given["kappa"], rows=most, seed=seed)
    width, exponent = width_for(found, x[:PROBED_ROWS], seed)
    advice = as_dict(found, raw, given["lam"], given["lr"]) | {
        "width": width,
        "width_slope": -exponent,
        "repeated_rows": repeated(x),
        **slopes(found, x, y, given["lam"]),
    }
    print(text(found, advice))
    if output:
        files.write_json(Path(output), advice)
        print(f"\nwritten to {output}")


def repeated(x: np.ndarray) -> int:
    """How many rows [N, d] are those of an earlier row, but for rounding."""
    return len(x) - len(np.unique(x.round(12) + 0.0, axis=0))  # + 0.0: -0 is 0


def slopes(found: Advice, x: np.ndarray, y: np.ndarray, lam: float) -> dict[str, float]:
    """When the penalty makes the function flatter at the rows, and by how much in the end.

    slope_binds: first t at which the root mean square of |∂f/∂x| over the rows is FLATTER below
    that without penalty, infinite if that does not happen. slope_fitted: the ratio of both when
    half of the labels is fitted without penalty. slope_end: at ten times the slowest time scale.
    """
    kernel, targets = gram(found.net, x), make_targets(y, x.shape[1])
    with_penalty, free = (decompose(kernel, len(x), lam=each) for each in (lam, 0.0))
    scales = found.scales
    times = [*np.geomspace(scales.fastest / 10, 10 * scales.slowest, 120), found.fitted]
    rms = [
        np.sqrt(np.mean(predict(modes, kernel, targets, times=times)[:, :, 1:] ** 2, axis=(1, 2)))
        for modes in (with_penalty, free)
    ]
    ratio = rms[0] / np.where(rms[1] > 0, rms[1], 1.0)
    below = np.flatnonzero(ratio[:-1] < 1 - FLATTER)
    first = float(times[below[0]]) if len(below) else math.inf
    return {"slope_binds": first, "slope_fitted": float(ratio[-1]), "slope_end": float(ratio[-2])}


def number(name: str, value: str | None) -> float:
    """A flag's number; UserError naming the flag."""
    try:
        return float(value or "")
    except ValueError:
        raise UserError(f"--{name}={value!r} is not a number") from None


def _read(path: str, label: str, positive: str, columns: str) -> sets.Labelled:
    if Path(path).name == sets.ALGERIAN:
        return sets.algerian(path)
    chosen = tuple(name.strip() for name in columns.split(",") if name.strip())
    return rows.own(path, label=label, positive=positive, columns=chosen)


def width_for(found: Advice, x: np.ndarray, seed: int) -> tuple[float, float]:
    """(width, exponent): from which width on the kernel of a fresh network is as good as its limit.

    The rms error of a few narrow networks on a few rows, as a share of the limit's rms, gives a
    power law; the width is where it comes down to CLOSE.
    """
    net = found.net._replace(kappa=1.0)
    limit = gram(net, x)
    truth, points = jnp.asarray(limit, jnp.float32), jnp.asarray(x, jnp.float32)
    scale = float(np.sqrt(np.mean(limit**2)))
    errors = []
    for width in PROBED:

        @jax.jit
        def gap(key: jax.Array, width: int = width) -> jax.Array:
            params = init(key, net, x.shape[1], width)
            return jnp.mean((flatten(empirical_jntk(net, params, points)) - truth) ** 2)

        root = jax.random.key(seed)
        each = [float(gap(keys.named(root, width, i))) for i in range(DRAWN)]
        errors.append(math.sqrt(float(np.mean(each))) / scale)
    law = power_law(np.array(PROBED, float), np.array(errors))
    return law.width(CLOSE), law.exponent


def as_dict(found: Advice, raw: sets.Labelled, lam: float, lr: float) -> dict[str, Any]:
    """The advice as plain values; steps are those of gradient descent of step `lr`."""
    scales = found.scales
    return {
        "data": raw.origin,
        "rows": len(raw.x),
        "rows_used": found.rows,
        "d": raw.x.shape[1],
        "lam": lam,
        "kappa": found.net.kappa,
        "activation": found.net.activation,
        "depth": found.net.depth,
        "full_rank": found.reached,
        "effective_rank": scales.rank,
        "modes": scales.size,
        "fastest": scales.fastest,
        "median": scales.median,
        "slowest": scales.slowest,
        "largest_step": scales.stable_step,
        "step": lr,
        "half_fitted": found.fitted,
        "penalty_binds": found.binds,
        "leave_one_out_rmse": found.leave_one_out[0],
        "leave_one_out_accuracy": found.leave_one_out[1],
        "architectures": [row._asdict() for row in found.table],
    }


def text(found: Advice, advice: dict[str, Any]) -> str:
    """The advice for people."""
    table = [
        {"activation": row.activation, "depth": row.depth, "NTK smallest": row.ntk_smallest,
         "JNTK smallest": row.jntk_smallest, "JNTK largest": row.jntk_largest,
         "resolved in float32": "yes" if row.resolved else "no"}
        for row in found.table
    ]  # fmt: skip
    lr, scales = advice["step"], found.scales
    rank = f"{scales.rank} of {scales.size}"
    accuracy = advice["leave_one_out_accuracy"]
    right = "" if math.isnan(accuracy) else f", {accuracy:.1%} of signs right"
    known = "full rank in float32" if found.reached else "no tried architecture is resolved; best"
    lam, fitted = advice["lam"], advice["half_fitted"]
    if math.isinf(advice["slope_binds"]):
        binding = f"The penalty lambda = {lam:g} never makes |df/dx| at the rows 10 % smaller."
    else:
        early = "before" if advice["slope_binds"] < fitted else "after"
        binding = (
            f"The penalty binds from t = {advice['slope_binds']:.3g} on (|df/dx| at the rows is "
            f"{FLATTER:.0%} below that without), {early} half of the labels is fitted (t = "
            f"{fitted:.3g}, where it is {advice['slope_fitted']:.0%} of that without; in the end "
            f"{advice['slope_end']:.0%}). Stop earlier and lambda = {lam:g} does nothing."
        )
    if math.isfinite(advice["penalty_binds"]):
        binding += f" It changes f there by 5 % from t = {advice['penalty_binds']:.3g} on."
    lines = [
        f"{advice['data']}: {advice['rows']} rows, d = {advice['d']}; {advice['rows_used']} used, "
        f"standardised, unit rows. lambda = {advice['lam']:g}, kappa = {advice['kappa']:g}.",
        "",
        "Smallest eigenvalues (kappa = 1):",
        "",
        markdown_table(table),
        "",
        f"Recommended: {advice['activation']}, depth {advice['depth']} ({known}; effective rank "
        f"{rank}), {_width(advice['width'], advice['width_slope'])}.",
        f"Time scales 1/rate, mean loss: fastest {scales.fastest:.3g}, median {scales.median:.3g}, "
        f"slowest {scales.slowest:.3g}; in steps of {lr:g}: {scales.fastest / lr:.3g}, "
        f"{scales.median / lr:.3g}, {scales.slowest / lr:.3g}. Gradient descent needs steps below "
        f"{scales.stable_step:.3g}.",
        binding,
        f"At t = infinity, whatever lambda: leave-one-out error {advice['leave_one_out_rmse']:.3f} "
        f"rms{right}.",
    ]
    if advice["repeated_rows"]:
        lines[-1] += (
            f" {advice['repeated_rows']} of the rows used are copies of others, once of unit norm: "
            "the kernels are singular at every depth, and leave-one-out sees the copies."
        )
    return "\n".join(lines)


def _width(width: float, slope: float) -> str:
    """In words, rounded up to a power of two."""
    if math.isinf(width):
        return f"no width seen: the kernel's error did not fall from n = {PROBED[0]} on"
    power = 2 ** math.ceil(math.log2(max(width, 1)))
    return (
        f"width from about {power} on (kernel within {CLOSE:.0%} of its limit; error falls as "
        f"n^({slope:.2f}))"
    )
