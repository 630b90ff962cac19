"""The studies: verdicts and tables are those of the numbers, figures those of the tables."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import leddam
from experiments.forecasting import (
    claims,
    quality,
    studies,
    study_figures,
    training,
)
from experiments.forecasting.paired import Paired
from rflib.run import Run, load_config
from tests.leddam.forecasters import SMALL

# Verdicts.


def _cell(
    name: str, errors: dict[str, tuple[float, ...]], *, cut: bool = False, generated: bool = False
) -> Any:
    data = SimpleNamespace(name=name, generated=generated, seq_len=96, pred_len=96)
    outcomes = {
        model: [training.Outcome(i, e, e / 2, e, 66, 66, cut) for i, e in enumerate(each)]
        for model, each in errors.items()
    }
    made: dict[str, Any] = {"data": data, "forecasters": {}, "views": {}, "naive": {}}
    made |= {"parameters": dict.fromkeys(errors, 1), "kernels": {}}
    return training.Cell(name=f"{name}-96", outcomes=outcomes, **made)


def _said(state: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    run = SimpleNamespace(claim=lambda name, text, **rest: said.update({name: rest}))
    state(load_config("leddam"), run, *arguments)
    return said


def _ablated(auto: float, channel: float, mov: float) -> list[Any]:
    """Two cells, three seeds, a full model and arms this much worse, with a little noise."""
    full = np.array([0.380, 0.381, 0.379])
    noise = 1e-4 * np.array([0, 1, -1])
    more = {"no_auto": auto, "no_channel": channel, "mov": mov}
    arms = {f"leddam-{name}": tuple(full + each + noise) for name, each in more.items()}
    return [_cell(name, {"leddam": tuple(full), **arms}) for name in ("ETTh1", "ETTh2")]


@pytest.mark.parametrize(
    ("more", "both_branches", "all_parts"),
    [
        ((0.01, 0.01, 0.01), "holds", "holds"),
        ((0.01, 0.01, 0.0), "holds", "refuted"),  # the moving average does as well
        ((0.01, 0.01, 0.0003), "holds", "refuted"),  # above 0 and below the margin
        ((0.01, 0.01, 0.00052), "holds", "holds"),
        ((0.01, -0.01, 0.01), "refuted", "refuted"),
    ],
)
def test_parts_matter_only_if_every_arm_is_worse_by_more_than_the_margin(
    more: tuple[float, ...], both_branches: str, all_parts: str
) -> None:
    cells = _ablated(*more)
    assert _said(studies.state_arms, "C2", cells)["C2"]["verdict"] == both_branches
    found = _said(studies.state_arms, "C7", cells)["C7"]
    assert found["verdict"] == all_parts
    assert f"Leddam mov less Leddam: {more[2]:+.4f} [" in found["measured"]
    assert "3 seeds on ETTh1-96, ETTh2-96" in found["unit"]


def test_what_decides_nothing_says_why() -> None:
    full = _ablated(0.01, 0.01, 0.01)
    absent = [cell._replace(outcomes={"leddam": cell.outcomes["leddam"]}) for cell in full]
    generated = [_cell("x", {"dlinear": (0.4, 0.4), "dlinear-ld": (0.3, 0.3)}, generated=True)]
    short = [_cell("x", {"dlinear": (0.4, 0.41), "dlinear-ld": (0.3, 0.31)}, cut=True)]
    single = [_cell("x", {"dlinear": (0.4,), "dlinear-ld": (0.3,)})]
    for name, cells, reason in (
        ("C7", absent, "not trained here: Leddam no_auto, Leddam no_channel, Leddam mov"),
        ("C6", generated, "generated series decide nothing"),
        ("C6", short, "cut short by steps="),
        ("C6", single, "an interval of 1 pairs"),
    ):
        found = _said(studies.state_arms, name, cells)[name]
        assert found["verdict"] == "undecided" and reason in found["reason"]
    for state, name in ((studies.state_plugin, "C5"), (quality.state_order, "C3")):
        found = _said(state, absent)[name]
        assert found["verdict"] == "undecided" and found["measured"] is None and found["reason"]


def test_differences_are_of_the_same_cell_and_seed() -> None:
    cells = [
        _cell("a", {"x": (1.0, 2.0), "y": (0.5, 1.75)}),
        _cell("b", {"x": (4.0,), "y": (3.0,)}),
    ]
    assert studies.differences(cells, "x", "y") == [0.5, 0.25, 1.0]
    assert studies.differences(cells, "x", "y", "mae") == [0.25, 0.125, 0.5]
    assert studies.differences(cells, "x", "y", relative=True) == [0.5, 0.125, 0.25]


def test_relative_gains_by_hand() -> None:
    """1 - 6/8 = 1/4 of the sums; 1/2 and 1/6 cell by cell, 1/3 in the mean."""
    assert studies.relative_gains([2.0, 6.0], [1.0, 5.0]) == (0.25, pytest.approx(1 / 3))
    cells = [_cell("a", {"x": (1.0, 3.0), "y": (1.0, 1.0)}), _cell("b", {"x": (6.0,), "y": (5.0,)})]
    found = studies.gain(cells, "x", "y")
    assert found[:2] == (0.25, pytest.approx(1 / 3))
    assert found.pairs.mean == pytest.approx((0 + 2 / 3 + 1 / 6) / 3)


def _plugged(ld: float, mov: float, backbone: str = "lstm") -> list[Any]:
    """Two cells where LD and the moving average leave these shares of the error, with noise."""
    cells = []
    for name, level in (("ETTh1", 1.0), ("ETTh2", 2.0)):
        raw = level * np.array([1.0, 1.1, 0.9])
        shares = {"raw": 1.0, "ld": ld, "mov": mov}
        noise = 1 + 0.01 * np.array([0, 1, -1])
        errors = {
            f"{backbone}+{split}": tuple(raw * share * (noise if split == "ld" else 1))
            for split, share in shares.items()
        }
        cells.append(_cell(name, errors))
    return cells


@pytest.mark.parametrize(
    ("ld", "mov", "verdicts"),
    [
        (0.6, 0.8, ("holds", "holds", "holds")),
        (0.6, 0.4, ("holds", "refuted", "refuted")),  # the frozen control gains more
        (0.6, 0.6, ("holds", "undecided", "undecided")),
        (1.2, 1.4, ("refuted", "holds", "refuted")),
    ],
)
def test_the_plug_in_holds_only_if_it_gains_and_beats_the_frozen_control(
    ld: float, mov: float, verdicts: tuple[str, ...]
) -> None:
    cells = _plugged(ld, mov)
    gained = studies.gain(cells, "lstm+raw", "lstm+ld")
    said = _said(studies.state_plugin, cells)
    assert tuple(said[name]["verdict"] for name in ("C5 gain", "C5 control", "C5")) == verdicts
    assert f"learnable: LSTM {100 * gained.ratio_of_means:+.1f}; " in said["C5"]["measured"]
    assert f"Frozen: LSTM {100 * (1 - mov):+.1f}" in said["C5"]["measured"]


def test_an_undecided_plug_in_names_the_open_comparison() -> None:
    said = _said(studies.state_plugin, _plugged(0.6, 0.6))
    assert said["C5"]["reason"] == "intervals include 0: LSTM against the frozen control"
    assert said["C5 gain"]["reason"] == ""


def test_one_forecaster_without_a_gain_refutes_the_claim_about_all() -> None:
    good, bad = _plugged(0.6, 0.8), _plugged(1.2, 1.4, "lightts")
    cells = [
        a._replace(outcomes={**a.outcomes, **b.outcomes}) for a, b in zip(good, bad, strict=True)
    ]
    said = _said(studies.state_plugin, cells)
    assert [said[name]["verdict"] for name in ("C5 gain", "C5 control", "C5")] == [
        "refuted", "holds", "refuted"]  # fmt: skip
    rows = studies.plugin_table(cells)
    splits = ("LD", "moving average")
    titles = [f"{name} + {split}" for name in ("LightTS", "LSTM") for split in splits]
    assert [row["forecaster"] for row in rows] == titles
    assert rows[1]["gain of mean MSE [%]"] == pytest.approx(-40)
    assert rows[1]["mean gain of MAE [%]"] == pytest.approx(-40)
    assert len(studies.plugin_cells(cells)) == 4


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        ((-0.001, 0.002), [(0.02, 0.04), (0.4, 0.6)], "holds"),
        ((0.006, 0.009), [(0.02, 0.04), (0.4, 0.6)], "refuted"),
        ((-0.001, 0.002), [(-0.03, -0.01), (0.4, 0.6)], "refuted"),
        ((-0.001, 0.009), [(0.02, 0.04), (0.4, 0.6)], "undecided"),
        ((-0.001, 0.002), [(-0.01, 0.04), (0.4, 0.6)], "undecided"),
    ],
)
def test_order_without_positions(own: Any, others: list[Any], verdict: str) -> None:
    def interval(ends: tuple[float, float]) -> Paired:
        return Paired(sum(ends) / 2, *ends, 3)

    assert quality.order_verdict(interval(own), list(map(interval, others)), 0.005)[0] == verdict


def test_only_the_peers_alone_compete_with_leddam() -> None:
    cell = _cell("ETTh1", {"leddam": (0.38,), "leddam-mov": (0.37,), "lstm+ld": (0.3,),
                           "dlinear-ld": (0.3,), "dlinear": (0.4,)})  # fmt: skip
    gaps, overlaps = claims._gaps([cell], "mse")
    assert list(gaps) == ["DLinear on ETTh1-96"] and overlaps == []


def test_a_bar_of_the_ablation_is_as_long_as_the_mean_difference() -> None:
    drawn: dict[str, Any] = {}
    run = SimpleNamespace(figure=lambda name, make, caption: drawn.update({name: make()}))
    study_figures.draw_studies(run, _ablated(0.3, 0.01, -0.002), margin=5e-4)
    assert list(drawn) == ["ablation"]
    (axis,) = drawn["ablation"].axes
    bars = [bar.get_width() for bar in axis.containers[0]]
    np.testing.assert_allclose(bars, [0.3, 0.01, -0.002], rtol=1e-6)
    names = ["Leddam no_auto", "Leddam no_channel", "Leddam mov"]
    assert [label.get_text() for label in axis.get_yticklabels()] == names
    assert "Leddam no_auto is last, +0.3000 MSE" in axis.get_title()


# Quality of a decomposition.


def test_the_better_kernel_follows_the_trend_more_closely_in_the_table_too() -> None:
    """A kernel of one tap leaves the series as it is: DTW similarity 1, nothing seasonal left."""
    rng = np.random.default_rng(0)
    data = SimpleNamespace(name="ETTh1", generated=False, seq_len=16, pred_len=720)
    data.series = rng.normal(size=(760, 2)).cumsum(0).astype(np.float32)
    data.starts = lambda part: np.arange(20)
    module = SimpleNamespace(kernel_size=5, ld_init="gauss")
    one = np.eye(1, 5, 2, dtype=np.float32)[0]
    wide = np.full(5, 0.2, np.float32)
    cell = _cell("ETTh1", {"leddam": (0.4, 0.4, 0.4)})._replace(
        data=data,
        kernels={"leddam": [(one, 0.0)] * 3},
        forecasters={"leddam": SimpleNamespace(module=module)},
        views={"leddam": {}},
    )
    rows = quality.quality_table(load_config("leddam"), [cell])
    assert [row["kernel"] for row in rows] == ["trained"] * 3 + [
        "before training",
        "moving average",
    ]
    assert rows[0]["DTW"] == pytest.approx(1) and rows[0]["spectrum"] == 0
    raw = quality.raw_windows(cell)
    np.testing.assert_array_equal(raw[3], data.series[3:19, 1])
    expected = quality.similarities(raw, jnp.asarray(wide), 0.0)
    assert (rows[-1]["DTW"], rows[-1]["spectrum"]) == pytest.approx(tuple(map(float, expected)))
    said = _said(quality.state_quality, [cell], rows)
    assert {name: each["verdict"] for name, each in said.items()} == {
        "C1": "refuted", "C1 control": "refuted"}  # it leaves no season  # fmt: skip
    swapped = [{**row, "spectrum": row["DTW"]} for row in rows]
    said = _said(quality.state_quality, [cell], swapped)
    assert {each["verdict"] for each in said.values()} == {"holds"}


# A whole run.


def test_a_small_plug_in_study_ends_with_its_tables_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFLIB_OFFLINE", "1")
    monkeypatch.delenv("RFLIB_DATA", raising=False)
    overrides: dict[str, Any] = {
        **SMALL,
        "data.names": ("synthetic",),
        "data.rows": 400,
        "data.channels": 2,
        "data.horizons": (8,),
        "more_seeds": (1,),
        "steps": 4,
        "expect.split_horizon": 8,
        "model.names": tuple(f"nlinear+{split}" for split in ("raw", "ld", "mov")),
        "mesh.data": 1,
    }
    config = load_config("leddam", "plugin_small", overrides)
    workdir = tmp_path / "run"
    with Run.open(workdir, config, experiment="leddam", quiet=True) as run:
        leddam.main(config, run)
    report = json.loads((workdir / "report.json").read_text())
    verdicts = {each["id"]: each["verdict"] for each in report["claims"]}
    assert {f"C{number}" for number in range(1, 9)} <= verdicts.keys()
    assert set(verdicts.values()) == {"undecided"}  # generated series
    for table in ("errors", "runs", "plugin_gain", "plugin_cells", "decomposition_quality"):
        assert (workdir / "tables" / f"{table}.csv").stat().st_size > 100
    assert (workdir / "figures" / "plugin-gain.png").stat().st_size > 5000
    text = (workdir / "tables" / "decomposition_quality.csv").read_text()
    assert len(re.findall("trained", text)) == 2  # one a seed, of the learnable kernel only
