"""Kernels on raw windows (claim C1), and whether tokens need positions (claim C3)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from experiments.forecasting.forecasters import ARMS, TITLES
from experiments.forecasting.models import core
from experiments.forecasting.paired import decide, paired
from experiments.forecasting.studies import differences, missing, short, usable, where
from experiments.forecasting.training import Cell, first_kernel
from rflib.data import windows
from rflib.methods.leddam.decomposition import smooth
from rflib.methods.leddam.similarity import dtw_similarity, spectral_similarity

MEASURES = ("DTW", "spectrum")
TRAINED, INITIAL, AVERAGE = "trained", "before training", "moving average"
C1 = "the trainable kernel follows the trend of a raw series better than {}"


@jax.jit
def similarities(
    raw: Float[jax.Array, "count past"], kernel: Float[jax.Array, " taps"], bias: float
) -> tuple[jax.Array, jax.Array]:
    """Means over windows: DTW of the trend with the window, spectra of the rest with it."""
    trend = smooth(raw, kernel) + bias
    spectral = spectral_similarity(raw, raw - trend)
    return jnp.mean(dtw_similarity(raw, trend)), jnp.mean(spectral)


def raw_windows(cell: Cell) -> Float[jax.Array, "count past"]:
    """The pasts of all test windows of the last series, standardised."""
    data = cell.data
    series = jnp.asarray(data.series[:, -1:])
    return windows(series, data.starts("test"), data.seq_len, data.pred_len)[0][..., 0]


def quality_table(config: Any, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a cell, model and kernel: trained (one a seed), as it began, the moving average."""
    rows = []
    for cell in cells:
        if cell.data.pred_len != config.expect.split_horizon or not cell.kernels:
            continue
        raw = raw_windows(cell)
        for model, learned in cell.kernels.items():
            module: Any = core(cell.forecasters[model].module, cell.views[model])[0]
            size = max(module.kernel_size, *getattr(module, "more_kernels", ()), 1)
            kernels: list[tuple[str, int | None, np.ndarray, float]] = [
                (TRAINED, outcome.seed, *kernel)
                for outcome, kernel in zip(cell.outcomes[model], learned, strict=True)
            ]
            kernels.append((INITIAL, None, first_kernel(module), 0.0))
            kernels.append((AVERAGE, None, np.full(size, 1 / size, np.float32), 0.0))
            for kind, seed, kernel, bias in kernels:
                found = similarities(raw, jnp.asarray(kernel), bias)
                rows.append(
                    {"cell": cell.name, "forecast": TITLES[model], "kernel": kind, "seed": seed}
                    | {name: float(each) for name, each in zip(MEASURES, found, strict=True)}
                    | {"sum of the kernel": float(np.sum(kernel)), "bias": bias}
                )
    return rows


def state_quality(
    config: Any, run: Any, cells: Sequence[Cell], rows: Sequence[dict[str, Any]]
) -> None:
    """C1 and its control, the kernel as it began; the same for other models with a kernel."""
    arms = set(ARMS) - {"leddam"}  # in the table, without claims of their own
    models = dict.fromkeys(m for cell in cells for m in cell.kernels if m not in arms)
    real = {cell.name for cell in cells if not cell.data.generated}
    decided = [row for row in rows if row["cell"] in real]
    if not any(row["forecast"] == TITLES["leddam"] for row in decided):
        horizon = config.expect.split_horizon
        reason = f"takes Leddam trained for horizon {horizon} on real data"
        run.claim("C1", C1.format("a moving average"), measured=None, verdict="undecided",
                  reason=reason)  # fmt: skip
    for model in models:
        mine = [row for row in decided if row["forecast"] == TITLES[model]]
        if not mine:
            continue
        suffix = "" if model == "leddam" else f" {model}"
        cut = short(config, cells, [model])
        for name, other, words in (
            (f"C1{suffix}", AVERAGE, "a moving average"),
            (f"C1{suffix} control", INITIAL, "before training (the control)"),
        ):
            gaps = {key: _gaps(mine, key, other) for key in MEASURES}
            effects = {key: paired(values) for key, values in gaps.items()}
            verdict, reason = decide(list(effects.values()))
            levels = "; ".join(
                f"{key} {_level(mine, TRAINED, key):.4f} against {_level(mine, other, key):.4f}, "
                f"{effect}"
                for key, effect in effects.items()
            )
            kinds = ", ".join(dict.fromkeys(row["cell"] for row in mine))
            run.claim(
                name,
                f"{C1.format(words)}, kernel of {TITLES[model]}",
                measured=levels,
                unit=f"similarity, difference with 95 % interval of {effects['DTW'].count} pairs "
                f"on {kinds}",
                verdict="undecided" if cut else verdict,
                reason=cut or reason,
            )


def _level(rows: Sequence[dict[str, Any]], kind: str, key: str) -> float:
    return float(np.mean([row[key] for row in rows if row["kernel"] == kind]))


def _gaps(rows: Sequence[dict[str, Any]], key: str, other: str) -> list[float]:
    """Trained less `other`, one a cell and seed."""
    base = {row["cell"]: row[key] for row in rows if row["kernel"] == other}
    return [row[key] - base[row["cell"]] for row in rows if row["kernel"] == TRAINED]


# Order.

KINDS = {
    "delayed copies": "leddam",
    "points": "leddam-attn_point",
    "patches": "leddam-attn_patch",
}
C3 = "delayed copies carry temporal order without positional encoding"


def order_table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a cell and kind of token: errors without and with positions."""
    rows = []
    for cell in cells:
        for kind, name in KINDS.items():
            other = f"{name}-positions"
            if name not in cell.outcomes or other not in cell.outcomes:
                continue
            effect = paired(differences([cell], name, other))
            rows.append(
                {
                    "cell": cell.name,
                    "tokens": kind,
                    "MSE without positions": cell.mean(name, "mse"),
                    "MSE with positions": cell.mean(other, "mse"),
                    "difference": effect.mean,
                    "from": effect.low,
                    "to": effect.high,
                    "pairs": effect.count,
                    "MAE without positions": cell.mean(name, "mae"),
                    "MAE with positions": cell.mean(other, "mae"),
                }
            )
    return rows


def state_order(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    """C3: leaving positions out costs delayed copies nothing, and points and patches something."""
    names = [each for name in KINDS.values() for each in (name, f"{name}-positions")]
    harmless = config.expect.harmless
    text = (
        f"{C3}: leaving positions out costs them less than {harmless:g} MSE, and costs points "
        "and patches as tokens something"
    )
    found = usable(cells, names)
    if not found:
        run.claim("C3", text, measured=None, verdict="undecided", reason=missing(cells, names))
        return
    costs = {
        kind: paired(differences(found, name, f"{name}-positions")) for kind, name in KINDS.items()
    }
    own, *others = costs.values()
    cut = short(config, found, names)
    verdict, reason = order_verdict(own, others, harmless)
    run.claim(
        "C3",
        text,
        measured="; ".join(f"{kind} {cost}" for kind, cost in costs.items()),
        unit=f"MSE without less with positions, 95 % intervals, {where(found)}",
        paper="+.001; +.495; +.028 on ETTh2-96",
        verdict="undecided" if cut else verdict,
        reason=cut or reason,
    )
    worse = {
        kind: paired(differences(found, name, "leddam"))
        for kind, name in KINDS.items()
        if name != "leddam"
    }
    verdict, reason = decide(list(worse.values()), margin=config.expect.margin)
    run.claim(
        "C3 tokens",
        "without positions, points and patches as tokens are worse than delayed copies",
        measured="; ".join(f"{kind} {effect}" for kind, effect in worse.items()),
        unit=f"MSE more than delayed copies, 95 % intervals, {where(found)}",
        paper="+1.159; +.088 on ETTh2-96",
        verdict="undecided" if cut else verdict,
        reason=cut or reason,
    )


def order_verdict(own: Any, others: Sequence[Any], harmless: float) -> tuple[str, str]:
    """(verdict, reason): `own` cost below `harmless`, every other one above 0."""
    if own.low > harmless or any(each.high < 0 for each in others):
        return "refuted", ""
    if own.high < harmless and all(each.low > 0 for each in others):
        return "holds", ""
    return "undecided", f"an interval of {own.count} pairs includes both"
