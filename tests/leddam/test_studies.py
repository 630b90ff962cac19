"""The studies: every name is a forecaster that trains, and verdicts are those of the numbers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.leddam as file
from experiments import leddam
from experiments.forecasting import claims, forecasters, models, quality, studies, training
from experiments.forecasting.paired import Paired
from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.ablations import ABLATIONS
from rflib.run import Run, load_config

# Names.

SMALL: dict[str, Any] = {
    "data.seq_len": 16,
    "model.leddam.d_model": 16,
    "model.leddam.period": 8,
    "model.leddam.kernel_size": 3,
    "model.itransformer.d_model": 8,
    "model.patchtst.d_model": 8,
    "model.patchtst.d_ff": 8,
    "model.lightts.d_model": 16,
    "model.lstm.hidden": 4,
    "model.scinet.n_levels": 2,
    "model.plugin.kernel_size": 3,
    "model.dlinear.kernel_size": 3,
    **{f"model.{name}.{key}": value for name in ("transformer", "informer")
       for key, value in (("d_model", 8), ("d_ff", 8), ("n_heads", 2), ("label_len", 4))},
}  # fmt: skip


def _step(name: str, **overrides: Any) -> tuple[Any, Any]:
    """(step, what it is called with) of a model by name, small."""
    config = load_config("leddam", overrides=SMALL | {"model.names": (name,)} | overrides)
    forecaster = forecasters.forecasters(config, 3, "ETTh1", 8)[name]
    series = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    task = models.task(
        forecaster.module, loss="mse", series=jnp.asarray(series), batch=lambda _: np.arange(4)
    )
    return models.step(config, forecaster, task, epoch=5), (task.data, np.arange(4))


def _once(name: str, **overrides: Any) -> tuple[Any, Any, Any]:
    """(state before, state after one step, metrics); compiled without optimisation."""
    step, batch = _step(name, **overrides)
    options = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}

    def both(key: jax.Array) -> Any:
        state = step.init(key)
        return state, *step.update(state, batch, key)

    key = jax.random.key(0, impl="unsafe_rbg")
    return jax.jit(both).lower(key).compile(compiler_options=options)(key)


def test_the_names_are_the_models_the_arms_and_three_splits_of_every_model() -> None:
    names = set(forecasters.TITLES)
    assert {"leddam", "dlinear-ld", "lstm+ld", "informer+mov", "scinet+raw"} <= names
    assert {f"leddam-{name}" for name in ABLATIONS if name != "full"} <= names
    assert len(names) == 10 + 9 + 3 + 1 + 3 * 10
    assert len(set(forecasters.TITLES.values())) == len(names)


STEPPED = [name for name in forecasters.TITLES if not name.endswith(("+raw", "+mov"))]


@pytest.mark.parametrize("name", [name for name in forecasters.TITLES if name not in STEPPED])
def test_every_wiring_is_built_with_the_size_of_its_data(name: str) -> None:
    """Their steps are that of the backbone and, but for what is frozen, that of +ld."""
    config = load_config("leddam", overrides=SMALL | {"model.names": (name,)})
    module: Any = forecasters.forecasters(config, 3, "ETTh1", 8)[name].module
    assert (module.n_series, module.seq_len, module.pred_len) == (3, 16, 8)
    assert (module.split, module.kernel_size) == (name[-3:], 3)


@pytest.mark.parametrize("name", STEPPED)
def test_every_model_takes_a_step_that_keeps_its_state(name: str) -> None:
    """Traced, not executed: shapes, types and structure of all that a step computes."""
    step, batch = _step(name)
    key = jax.random.key(0)
    state = jax.eval_shape(step.init, key)
    after, metrics = jax.eval_shape(step.update, state, batch, key)
    assert trees.signature(after) == trees.signature(state)
    assert metrics["loss"].shape == ()


def test_steps_of_arms_move_almost_all_parameters() -> None:
    """Executed for two: what the models compute has tests of its own."""
    for name in ("leddam-no_channel", "lstm+mov"):
        before, after, metrics = _once(name)
        assert np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
        moved = jax.tree.map(
            lambda a, b: (np.asarray(a) != b).any(), before["params"], after["params"]
        )
        assert np.mean(jax.tree.leaves(moved)) > 0.9  # the biases of keys never get a gradient


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    config = load_config("leddam", overrides={"model.names": ("lstm+lb",)})
    with pytest.raises(UserError, match=r"config.model.names='lstm\+lb'.*did you mean 'lstm\+ld'"):
        forecasters.forecasters(config, 3, "ETTh1", 8)


def test_arms_and_plug_ins_take_the_settings_of_their_model() -> None:
    overrides: dict[str, Any] = {"model.names": ("leddam-no_auto", "leddam+ld", "lstm+mov")}
    found = forecasters.forecasters(load_config("leddam", overrides=overrides), 7, "ETTh1", 192)
    arm, plugged, lstm = (found[name] for name in overrides["model.names"])
    module: Any = plugged.module
    assert arm.module == module.backbone.copy(ablation="no_auto") and module.backbone.d_model == 512
    assert (arm.batch, arm.lr) == (plugged.batch, plugged.lr) == (128, 1e-4)
    assert (lstm.batch, lstm.lr, lstm.epochs) == (128, 1e-3, 12)
    assert arm.flops is not None and plugged.flops is None


def test_the_kernel_has_a_rate_of_its_own() -> None:
    """Adam's first step is the rate in every coordinate with a gradient."""
    for factor in (1.0, 0.1):
        before, after, _ = _once("nlinear+ld", **{"optim.ld_lr_mult": factor})
        moved = jax.tree.map(lambda a, b: np.abs(b - a).max(), before["params"], after["params"])
        kernel = moved.pop("decomposition")["kernel"]
        np.testing.assert_allclose(kernel, factor * 5e-3, rtol=1e-3)
        np.testing.assert_allclose(max(jax.tree.leaves(moved)), 5e-3, rtol=1e-3)


def test_a_negative_rate_of_the_kernel_is_refused() -> None:
    with pytest.raises(UserError, match="ld_lr_mult"):
        _step("dlinear-ld", **{"optim.ld_lr_mult": -1.0})


def test_variants_have_known_names_and_the_arms_of_their_claims() -> None:
    names = {variant: load_config("leddam", variant).model.names for variant in file.VARIANTS}
    assert all(name in forecasters.TITLES for each in names.values() for name in each)
    arms = {model for _, pairs in studies.CLAIMS.values() for pair in pairs for model in pair}
    assert arms <= set(names["default"]) and arms <= set(names["ett_full"])
    assert {f"leddam-{name}" for name in ABLATIONS if name != "full"} <= set(names["ett_full"])
    order = {each for name in quality.KINDS.values() for each in (name, f"{name}-positions")}
    assert order == set(names["attn_order"])
    plugged = {name.split("+")[0] for name in names["plugin"]}
    assert plugged == {"lstm", "lightts", "scinet", "transformer", "informer"}
    assert len(names["plugin"]) == 15 and len(names["plugin_small"]) == 6


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
