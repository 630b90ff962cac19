"""The paper's claims C1 to C8 and what a run says of them; the tables of errors."""

from collections.abc import Sequence
from typing import Any

from experiments.forecasting import models, quality, studies
from experiments.forecasting.forecasters import BACKBONES, PEERS, TITLES
from experiments.forecasting.published import departures
from experiments.forecasting.studies import short
from experiments.forecasting.training import Cell
from rflib.core import trees


def tabulate(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    """The tables so far: a long run shows them before its end."""
    caption = (
        "Errors on the test windows, standardised scale: mean and standard deviation over the "
        "seeds; published: the authors' training logs."
    )
    run.table("errors", errors_table(config, cells), caption=caption)
    run.table("runs", runs_table(cells), caption="Every training run.")
    for model in cells[-1].outcomes:
        for metric in ("mse", "mae"):
            run.metric(f"{cells[-1].name}/{model}/{metric}", cells[-1].mean(model, metric))
    for name, rows, text in (
        (
            "ablation",
            studies.ablation_table(cells),
            "MSE of each arm less that of the full model, with 95 % intervals over pairs.",
        ),
        (
            "plugin_gain",
            studies.plugin_table(cells),
            "What a split in front of each forecaster saves: 1 - mean / mean and mean of 1 - "
            "ratio over the cells; the 95 % interval is of the mean over (cell, seed) pairs.",
        ),
        ("plugin_cells", studies.plugin_cells(cells), "The same, cell by cell."),
        (
            "attention_order",
            quality.order_table(cells),
            "Errors by kind of token, without and with positions; 95 % intervals over the seeds.",
        ),
    ):
        if rows:
            run.table(name, rows, caption=text)


def errors_table(config: Any, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a forecast and cell: means and spreads over the seeds, the published figures."""
    rows = []
    for cell in cells:
        for model in cell.outcomes:
            published = expected(config, cell) if model == "leddam" else None
            rows.append(
                {
                    "data": _described(cell),
                    "horizon": cell.data.pred_len,
                    "forecast": TITLES[model],
                    "parameters": cell.parameters[model],
                    "seeds": len(cell.outcomes[model]),
                    "MSE": cell.mean(model, "mse"),
                    "MSE spread": cell.spread(model, "mse"),
                    "MAE": cell.mean(model, "mae"),
                    "MAE spread": cell.spread(model, "mae"),
                    "published MSE": published[0] if published else None,
                    "published MAE": published[1] if published else None,
                }
            )
        for name, errors in cell.naive.items():
            rows.append(
                {
                    "data": _described(cell),
                    "horizon": cell.data.pred_len,
                    "forecast": f"naive: {name}",
                    "parameters": 0,
                    "MSE": errors["mse"],
                    "MAE": errors["mae"],
                }
            )
    return rows


def runs_table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a training run."""
    return [
        {"data": _described(cell), "horizon": cell.data.pred_len, "forecast": TITLES[model]}
        | {k: v for k, v in outcome._asdict().items() if k != "cut" and v is not None}
        for cell in cells
        for model, outcomes in cell.outcomes.items()
        for outcome in outcomes
    ]


def _described(cell: Cell) -> str:
    return f"{cell.data.name} (generated)" if cell.data.generated else cell.data.name


def expected(config: Any, cell: Cell) -> tuple[float, float, float] | None:
    """Published MSE and MAE and the tolerance; None for other data, past or loss."""
    data = cell.data
    horizons = tuple(config.expect.horizons)
    if data.generated or data.name not in config.expect.leddam or data.seq_len != 96:
        return None
    if data.pred_len not in horizons or config.model.quantiles:
        return None
    row, column = config.expect.leddam[data.name], horizons.index(data.pred_len)
    return row.mse[column], row.mae[column], row.tolerance


def state(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    """Records every claim with its verdict."""
    for cell in cells:
        if "leddam" in cell.outcomes:
            _reproduction(config, run, cell)
            _against_naive(config, run, cell)
    if config.data.missing == "skip":
        _skipped(config, run, cells)
    rows = quality.quality_table(config, cells)
    if rows:
        run.table(
            "decomposition_quality",
            rows,
            caption="How well kernels of models trained for the longest horizon split raw test "
            "windows of the last series: 1 is best.",
        )
    quality.state_quality(config, run, cells, rows)
    studies.state_arms(config, run, "C2", cells)
    quality.state_order(config, run, cells)
    _against_models(config, run, cells)
    studies.state_plugin(config, run, cells)
    studies.state_arms(config, run, "C6", cells)
    studies.state_arms(config, run, "C7", cells)
    _overhead(run, cells)


def _reproduction(config: Any, run: Any, cell: Cell) -> None:
    name = f"C4 {cell.name}"
    mse, mae = cell.mean("leddam", "mse"), cell.mean("leddam", "mae")
    measured = f"{mse:.4f} / {mae:.4f}"
    text = f"Leddam's test error on {cell.data.name}, horizon {cell.data.pred_len}"
    if cell.data.name not in config.expect.leddam:
        return
    found = expected(config, cell)
    if found is None:
        reason = (
            "the data set was not found: generated series instead"
            if cell.data.generated
            else "nothing is published for this past, horizon and loss"
        )
        run.claim(name, text, measured=measured, unit="MSE / MAE", verdict="undecided",
                  reason=reason)  # fmt: skip
        return
    paper_mse, paper_mae, tolerance = found
    close = abs(mse - paper_mse) <= tolerance and abs(mae - paper_mae) <= tolerance
    why = short(config, [cell], ["leddam"]) or _changed(config, ["leddam"])
    run.claim(
        name,
        f"{text}, within {tolerance:g} of the authors' logs",
        measured=measured,
        unit="MSE / MAE",
        paper=f"{paper_mse:.3f} / {paper_mae:.3f}",
        verdict="undecided" if why else "holds" if close else "refuted",
        reason=why,
    )


def _changed(config: Any, names: Sequence[str]) -> str:
    """Why these models decide nothing, if they were not trained as published."""
    changed = departures(config, names)
    shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
    return f"not the published settings: {shown}" if changed else ""


def _skipped(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    for name in config.data.names:
        if name in config.expect.leddam and name not in {cell.data.name for cell in cells}:
            run.claim(f"C4 {name}", f"Leddam's test errors on {name}", measured=None,
                      verdict="undecided", reason="the data set was not found")  # fmt: skip


def _against_naive(config: Any, run: Any, cell: Cell) -> None:
    best = min(cell.naive, key=lambda name: cell.naive[name]["mse"])
    mse, cut = cell.mean("leddam", "mse"), short(config, [cell], ["leddam"])
    run.claim(
        f"naive {cell.name}",
        f"on {_described(cell)}, horizon {cell.data.pred_len}, Leddam beats every naive forecast "
        f"(the best one, {best}: {cell.naive[best]['mse']:.4f})",
        measured=mse,
        unit="MSE",
        verdict="undecided" if cut else "holds" if mse < cell.naive[best]["mse"] else "refuted",
        reason=cut,
    )


def _against_models(config: Any, run: Any, cells: Sequence[Cell]) -> None:
    """C4 on the cells at hand, for MSE and for MAE; a tie within the seeds decides nothing."""
    text = "Leddam has the lowest {} of the models of its time"
    usable = [
        cell
        for cell in cells
        if cell.data.name in config.expect.leddam
        and not cell.data.generated
        and "leddam" in cell.outcomes
        and any(name in cell.outcomes for name in PEERS)
    ]
    if not usable:
        run.claim("C4", text.format("error"), measured=None, verdict="undecided",
                  reason="needs a benchmark of the paper and another trained model")  # fmt: skip
        return
    count = len(usable[0].outcomes["leddam"])
    peers = [name for name in PEERS if name in config.model.names]
    why = short(config, usable, ("leddam", *peers)) or _changed(config, ("leddam", *peers))
    for metric in ("mse", "mae"):
        gaps, overlaps = _gaps(usable, metric)
        if why:
            verdict, reason = "undecided", why
        elif any(gap < 0 and name not in overlaps for name, gap in gaps.items()):
            verdict, reason = "refuted", ""
        elif overlaps:
            verdict, reason = "undecided", f"seeds overlap: {', '.join(overlaps)}"
        else:
            verdict, reason = "holds", ""
        run.claim(
            f"C4 {metric.upper()}",
            f"{text.format(metric.upper())}; measured: how much higher the others' means over "
            f"{count} seed{'s' * (count > 1)} are, {len(usable)} of the paper's 32 cells",
            measured=", ".join(f"{name} {gap:+.4f}" for name, gap in gaps.items()),
            unit=metric.upper(),
            verdict=verdict,
            reason=reason,
        )


def _gaps(cells: Sequence[Cell], metric: str) -> tuple[dict[str, float], list[str]]:
    """Each competitor's mean less Leddam's; those with seeds on both sides of its own."""
    gaps, overlaps = {}, []
    for cell in cells:
        own = [getattr(outcome, metric) for outcome in cell.outcomes["leddam"]]
        for model, outcomes in cell.outcomes.items():
            if model not in PEERS:
                continue
            name = f"{TITLES[model]} on {cell.name}"
            gaps[name] = cell.mean(model, metric) - cell.mean("leddam", metric)
            others = [getattr(outcome, metric) for outcome in outcomes]
            if min(others) <= max(own) and min(own) <= max(others):
                overlaps.append(name)
    return gaps, overlaps


def _overhead(run: Any, cells: Sequence[Cell]) -> None:
    cell = next((cell for cell in cells if "leddam" in cell.outcomes), None)
    text = "the learnable decomposition has kernel_size + 1 parameters, shared by all series"
    if cell is None:
        run.claim("C8", text, measured=None, verdict="undecided", reason="Leddam is not trained")
        return
    inside = models.core(cell.forecasters["leddam"].module, cell.views["leddam"])
    module: Any = inside[0]
    count = trees.size(inside[1]["params"].get("decomposition", {}))
    why = "the kernel is frozen here" if module.ld_init == "mov_frozen" else ""
    if module.kernel_constraint != "none" or module.more_kernels:
        why = "the kernel is not the paper's here: kernel_constraint or more_kernels"
    run.claim(
        "C8",
        text,
        measured=count,
        unit="parameters",
        paper=26 if module.kernel_size == 25 else None,
        verdict="undecided" if why else "holds" if count == module.kernel_size + 1 else "refuted",
        reason=why,
    )
    run.claim(
        "C8 size",
        "Leddam's size and latency lie between iTransformer's and Crossformer's and FEDformer's",
        measured=", ".join(
            f"{TITLES[name]} {n}" for name, n in cell.parameters.items() if name in BACKBONES
        ),
        unit=f"parameters on {cell.name}",
        verdict="undecided",
        reason="Crossformer and FEDformer are not trained here",
    )
