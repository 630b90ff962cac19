"""The Leddam experiment: its config, its smallest run, own data and `predict`."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.leddam as file
from experiments import leddam
from experiments.forecasting import claims, figures, models, study_figures, training
from experiments.forecasting.forecasters import BACKBONES, forecasters
from rflib.core import trees
from rflib.core.errors import NotFinite, UserError
from rflib.methods.leddam.baselines import DLinear
from rflib.methods.leddam.data import load, train_batches
from rflib.methods.leddam.decomposition import initial_kernel
from rflib.methods.leddam.generator import generate, write_layout
from rflib.nn import variables
from rflib.run import load_config
from rflib.run import record as records
from rflib.train import mesh as meshes
from rflib.train.task import Aux, EarlyStop, Result, Task

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--config", str(ROOT / "configs" / "leddam.py:tiny")]
SECTIONS = ["batch", "data", "model", "optim", "mesh", "checkpoint", "log", "evals", "expect"]


@pytest.fixture(autouse=True)
def _without_real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RFLIB_DATA", raising=False)
    monkeypatch.setenv("RFLIB_OFFLINE", "1")


# The config.


def test_all_variants_have_the_same_keys_in_the_order_of_the_design() -> None:
    keys = [list(records.flat(file.get_config(variant))) for variant in file.VARIANTS]
    assert all(each == keys[0] for each in keys)
    text = (ROOT / "configs" / "leddam.py").read_text()
    assert re.findall(r"    c\.(\w+) = ConfigDict\(\)", text) == SECTIONS


def test_every_leaf_of_the_config_has_a_comment_with_its_unit_or_range() -> None:
    lines = (ROOT / "configs" / "leddam.py").read_text().splitlines()
    body = lines[: lines.index("def _default(c: ConfigDict) -> ConfigDict:")]
    leaf = re.compile(r"    \w\.[\w.]+ = (?!ConfigDict|_)")
    leaves = [line for line in body if leaf.match(line)]
    assert len(leaves) > 50
    assert [line for line in leaves if "  # " not in line] == []


@pytest.mark.parametrize("variant", file.VARIANTS)
def test_a_config_survives_json(variant: str) -> None:
    config = records.nested(load_config("leddam", variant))
    text = json.dumps(records.encode(config), allow_nan=False)
    assert records.decode(json.loads(text)) == config


class Reading:
    """A config that writes down which leaves are read."""

    def __init__(self, config: Any, seen: set[str], path: str = ""):
        self._config, self._seen, self._path = config, seen, path

    def __getattr__(self, name: str) -> Any:
        path, value = f"{self._path}{name}", self._config[name]
        if hasattr(value, "keys"):
            return Reading(value, self._seen, f"{path}.")
        self._seen.add(path)
        return value

    __getitem__ = __getattr__

    def __contains__(self, name: str) -> bool:
        return name in self._config


def test_every_key_of_the_config_is_read_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training itself is left out: what it is called with is what the config says."""
    write_layout(tmp_path, "ETTh1", generate(0, rows=14500, channels=7).values)

    def fit(step: Any, batch: Any, run: Any, **settings: Any) -> Result:
        shapes = jax.eval_shape(step.init, jax.random.key(settings["seed"]))
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        view, metrics = step.view(state), {"test/mse": 1.0, "test/mae": 1.0}
        return Result(state, view, view, 66, metrics, 66, 1.0, "early stop")

    monkeypatch.setattr(training, "fit", fit)
    # It compares keys without using them: what it reads counts for nothing here.
    monkeypatch.setattr(claims, "departures", lambda config, names: [])
    monkeypatch.setattr(figures, "draw", lambda run, cells: None)
    monkeypatch.setattr(study_figures, "draw_studies", lambda run, cells, margin: None)
    names = (*BACKBONES, "dlinear-ld", "lstm+ld")
    overrides = {"data.path": str(tmp_path), "data.names": ("ETTh1",), "model.names": names}
    config, seen = load_config("leddam", overrides=overrides), set[str]()
    silent = dict.fromkeys(("note", "array", "table", "metric", "claim"), lambda *a, **k: None)
    leddam.main(Reading(config, seen), SimpleNamespace(**silent))

    def general(path: str) -> str:  # one data set stands for all in the tables by data set
        return re.sub(r"\.(ETT..|Weather|Electricity|Solar|Traffic|other)\b", ".*", path)

    assert {general(path) for path in seen} == {general(path) for path in records.flat(config)}


def test_the_kernels_of_the_config_are_those_of_the_models_and_of_what_is_shown() -> None:
    options = {
        "model.names": ("leddam", "dlinear+ld", "dlinear-ld", "leddam-mov"),
        "model.leddam.kernel_size": 5,
        "model.leddam.kernel_constraint": "symmetric",
        "model.leddam.more_kernels": (9, 3),
        "model.leddam.per_series": False,
        "model.plugin.kernel_constraint": "simplex",
        "model.plugin.more_kernels": (7,),
    }
    found = forecasters(load_config("leddam", "tiny", options), 3, "mine", 4)
    assert not found["leddam"].module.per_series  # pyright: ignore[reportAttributeAccessIssue]
    for name, each in found.items():
        module: Any = each.module
        view = variables.init(module, jax.random.key(0), (1, module.seq_len, 3))
        kernel, bias = training.learned_kernel(module, view)
        frozen = name == "leddam-mov"
        assert ("decomposition" in view["params"]) != frozen
        assert kernel.sum() == pytest.approx(1) and bias == 0
        sizes = {"leddam": 9, "dlinear+ld": 25, "dlinear-ld": 25, "leddam-mov": 9}
        assert kernel.shape == (sizes[name],)
        if not frozen:
            np.testing.assert_array_equal(training.first_kernel(module), kernel)
    plain = training.first_kernel(found["dlinear-ld"].module)
    np.testing.assert_array_equal(plain, initial_kernel("softmax_gauss", 25))


# Training.


def test_each_phase_is_trained_as_its_seed_and_the_config_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own weights and own order of the windows a seed; the test on all test windows."""
    calls: dict[str, tuple[Any, dict[str, Any]]] = {}

    def fit(step: Any, batch: Any, run: Any, **settings: Any) -> Result:
        calls[settings["name"]] = batch, settings
        view = step.view(jax.jit(step.init)(jax.random.key(settings["seed"])))
        return Result(view, view, view, 66, {"test/mse": 1.0, "test/mae": 1.0}, 66, 1.0, "steps")

    asked: list[np.ndarray] = []

    def over_batches(measure: Any, starts: np.ndarray, **_: Any) -> Any:
        return lambda view, key: asked.append(starts) or {}

    monkeypatch.setattr(training, "fit", fit)
    monkeypatch.setattr(training, "over_batches", over_batches)
    overrides = {"model.names": ("dlinear",), "more_seeds": (7,), "optim.patience": 5}
    config = load_config("leddam", "tiny", overrides)
    data = load("synthetic", rows=1000)
    silent: Any = SimpleNamespace(note=lambda text: None)
    training.train_cell(config, silent, data, meshes.make_mesh({"data": 1}))
    assert list(calls) == ["synthetic-96-dlinear-2021", "synthetic-96-dlinear-7"]
    for seed, (batch, settings) in zip((2021, 7), calls.values(), strict=True):
        assert settings["seed"] == seed and settings["stop"] == EarlyStop("valid", 5)
        for step in (0, 9):
            assert np.array_equal(batch(step), train_batches(data, 32, seed=seed)(step))
        for name in ("valid", "test"):
            settings["evals"][name].run(None, jax.random.key(0))
            assert np.array_equal(asked[-1], data.starts(name))
        assert [settings["evals"][name].best for name in ("valid", "test")] == ["min", None]


def test_a_validation_error_that_is_never_finite_is_named_with_its_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = Result(None, None, None, 66, {"test/mse": np.nan}, -1, np.nan, "early stop")
    monkeypatch.setattr(training, "fit", lambda *a, **k: nothing)
    config = load_config("leddam", "tiny", {"model.names": ("dlinear",)})
    silent: Any = SimpleNamespace(note=lambda text: None)
    mesh = meshes.make_mesh({"data": 1})
    with pytest.raises(NotFinite, match=r"synthetic-96-dlinear-2021: .* never a finite .* rate"):
        training.train_cell(config, silent, load("synthetic", rows=1000), mesh)


@pytest.mark.parametrize(
    "overrides",
    [
        {"more_seeds": (1, 2021)},
        {"more_seeds": ("x",)},
        {"data.names": ()},
        {"data.names": ("synthetic", "synthetic")},
        {"data.horizons": ()},
        {"data.horizons": (96, 24, 96)},
        {"data.horizons": (96, "24")},
    ],
)
def test_empty_repeated_and_wrong_lists_are_refused_before_any_training(
    overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed that is named twice would be one run that counts as two."""
    monkeypatch.setattr(training, "fit", None)
    silent = SimpleNamespace(note=lambda text: None, array=lambda *a, **k: None)
    key = next(iter(overrides))
    with pytest.raises(UserError, match=f"{key}="):
        leddam.main(load_config("leddam", "tiny", overrides), silent)


@pytest.mark.parametrize("halve", [False, True])
def test_the_rate_is_halved_after_every_epoch_or_never(halve: bool) -> None:
    """Adam's step on a constant gradient is the rate."""
    slope = Task(
        init=lambda key: {"params": {"w": jnp.zeros(())}},
        loss=lambda values, batch, key: (values["params"]["w"], Aux()),
        batch=lambda step: np.zeros(1, np.float32),
    )
    forecaster = models.Forecaster(DLinear(1, 1, 1), 1, 0.1, 3, halve, None)
    step = models.step(load_config("leddam"), forecaster, slope, epoch=4)
    key = jax.random.key(0)
    state, update, ws = step.init(key), jax.jit(step.update), [0.0]
    for number in range(12):
        state, _ = update(state, slope.batch(number), key)
        ws.append(float(state["params"]["w"]))
    expected = [0.1 * 0.5 ** (number // 4 if halve else 0) for number in range(12)]
    np.testing.assert_allclose(-np.diff(ws), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("steps", "done", "reason", "cut"),
    [
        (0, 30, "steps", False),  # both of its epochs
        (20, 20, "steps", True),
        (20, 15, "early stop", False),
        (40, 30, "steps", False),  # the limit is beyond its epochs
    ],
)
def test_a_training_that_steps_ended_early_is_told(
    steps: int, done: int, reason: str, cut: bool
) -> None:
    config = load_config("leddam", "tiny", {"steps": steps})
    data = load("synthetic", rows=1000)
    assert len(data.starts("train")) // 32 == 15
    forecaster = models.Forecaster(DLinear(5, 96, 96), 32, 0.1, 2, False, None)
    result = Result(None, None, None, done, {"test/mse": 1.0, "test/mae": 1.0}, 1, 1.0, reason)
    assert training._outcome(config, forecaster, data, 0, result).cut is cut


# The smallest run.


def _command(workdir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The experiment as a user starts it: in its own process, on the devices that there are."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-m", "experiments.leddam", *TINY, "--workdir", str(workdir)]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """(workdir, output, processor seconds) of a tiny run."""
    workdir = tmp_path_factory.mktemp("leddam") / "tiny"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _command(workdir)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return workdir, done.stdout, seconds


@pytest.mark.multiprocess
def test_tiny_ends_with_its_claims_within_a_minute_of_processor_time(
    tiny: tuple[Path, str, float],
) -> None:
    workdir, output, seconds = tiny
    assert seconds < 60
    assert "generated data (seed 0)" in output
    report = json.loads((workdir / "report.json").read_text())
    verdicts = {claim["id"]: claim["verdict"] for claim in report["claims"]}
    assert verdicts["naive synthetic-96"] == "holds"
    assert verdicts["C8"] == "holds"
    decided = {name for name, verdict in verdicts.items() if verdict != "undecided"}
    assert decided == {"naive synthetic-96", "C8"}  # generated series decide nothing else
    assert {f"C{number}" for number in range(1, 9)} <= verdicts.keys()
    assert output.rstrip().splitlines()[-1].startswith("done")
    for figure in ("kernel", *(f"{kind}-synthetic-96" for kind in
                   ("decomposition", "forecast", "attention"))):  # fmt: skip
        assert (workdir / "figures" / f"{figure}.png").stat().st_size > 5000


@pytest.mark.multiprocess
def test_tiny_saves_at_least_every_two_seconds(tiny: tuple[Path, str, float]) -> None:
    config = load_config("leddam", "tiny")
    lines = map(json.loads, (tiny[0] / "timing.jsonl").read_text().splitlines())
    rates = [line["steps_per_second"] for line in lines if "steps_per_second" in line]
    saved_every = 59 if config.checkpoint.every == 0 else config.checkpoint.every  # an epoch
    assert saved_every / np.median(rates) < 2


@pytest.mark.multiprocess
def test_two_tiny_runs_of_one_seed_log_the_same_bits(
    tiny: tuple[Path, str, float], tmp_path: Path
) -> None:
    done = _command(tmp_path / "again")
    assert done.returncode == 0, done.stderr

    def metrics(workdir: Path) -> list[dict[str, Any]]:
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in line.items() if k != "time"} for line in lines]

    first = metrics(tiny[0])
    assert len(first) == 2 * (3 + 3 + 1)  # two models: training, validation, test
    assert metrics(tmp_path / "again") == first


# The verdicts.


def _cell(errors: dict[str, tuple[float, ...]], name: str = "ETTh1", *, cut: bool = False) -> Any:
    """A cell whose models have these errors, MSE and MAE alike, one a seed."""
    data = SimpleNamespace(name=name, generated=False, seq_len=96, pred_len=96)
    outcomes = {
        model: [training.Outcome(i, e, e, e, 66, 66, cut) for i, e in enumerate(each)]
        for model, each in errors.items()
    }
    made: dict[str, Any] = {"data": data, "forecasters": {}, "views": {}, "parameters": {}}
    made["kernels"] = {}
    return training.Cell(name=f"{name}-96", outcomes=outcomes, naive={"zero": {"mse": 1.0}}, **made)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (_cell({"leddam": (0.38, 0.39), "dlinear": (0.40, 0.41)}), "holds"),
        (_cell({"leddam": (0.38, 0.40), "dlinear": (0.40, 0.41)}), "undecided"),  # they overlap
        (_cell({"leddam": (0.38, 0.42), "dlinear": (0.39, 0.40)}), "undecided"),  # in either order
        (_cell({"leddam": (0.41, 0.42), "dlinear": (0.39, 0.40)}), "refuted"),
        (_cell({"leddam": (0.38,), "dlinear": (0.40,)}, cut=True), "undecided"),
        (_cell({"leddam": (0.38,)}), None),  # nothing to compare with
        (_cell({"leddam": (0.38,), "dlinear": (0.40,)}, "mine"), None),  # no cell of the paper
    ],
)
def test_leddam_is_called_best_only_where_no_seeds_overlap(cell: Any, expected: str | None) -> None:
    said: dict[str, str] = {}
    run = SimpleNamespace(claim=lambda name, text, *, verdict, **_: said.update({name: verdict}))
    claims._against_models(load_config("leddam"), run, [cell])
    if expected is None:
        assert said == {"C4": "undecided"}
    else:
        assert said == {"C4 MSE": expected, "C4 MAE": expected}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "holds"),
        ({"model.leddam.form": "literal", "optim.scan": 1, "optim.patience": 6}, "holds"),
        ({"data.horizons": (96, 192), "more_seeds": ()}, "holds"),
        ({"model.leddam.d_model": 32}, "undecided"),
        ({"optim.leddam.epochs": 1}, "undecided"),
        ({"optim.loss": "mae"}, "undecided"),
        ({"optim.patience": 1}, "undecided"),
        ({"model.published.ETTh1.lr": 1e-3}, "undecided"),
        ({"batch.leddam": 8}, "undecided"),
    ],
)
def test_only_the_published_settings_are_judged(changes: dict[str, Any], expected: str) -> None:
    said: dict[str, str] = {}
    run = SimpleNamespace(claim=lambda name, text, *, verdict, **_: said.update({name: verdict}))
    config, outcome = load_config("leddam", "default", changes), training.Outcome
    cell = _cell({})._replace(outcomes={"leddam": [outcome(0, 0.377, 0.394, 0.0, 66, 66, False)]})
    claims._reproduction(config, run, cell)
    assert said == {"C4 ETTh1-96": expected}


@pytest.mark.parametrize(
    ("mse", "mae", "cut", "expected"),
    [
        (0.380, 0.390, False, "holds"),
        (0.384, 0.394, False, "refuted"),
        (0.377, 0.387, False, "refuted"),
        (0.377, 0.394, True, "undecided"),
    ],
)
def test_a_cell_is_reproduced_if_both_errors_are_within_the_tolerance(
    mse: float, mae: float, cut: bool, expected: str
) -> None:
    """Published for ETTh1, horizon 96: MSE .377, MAE .394; the tolerance is .006."""
    said: dict[str, str] = {}
    run = SimpleNamespace(claim=lambda name, text, *, verdict, **_: said.update({name: verdict}))
    cell = _cell({"leddam": (0.0,)})
    outcome = training.Outcome(0, mse, mae, 0.0, 66, 66, cut)
    claims._reproduction(load_config("leddam"), run, cell._replace(outcomes={"leddam": [outcome]}))
    assert said == {"C4 ETTh1-96": expected}


# The rest.


def test_a_mistake_in_the_command_is_answered_before_jax_is_imported() -> None:
    program = (
        "import sys; sys.argv = ['x', '--config.data.pathh=1']\n"
        "from rflib.run.cli import execute\n"
        "from experiments import leddam\n"
        "status = execute(leddam.main, leddam.VERBS, sys.argv[1:])\n"
        "assert 'jax' not in sys.modules, 'jax was imported'\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "config.data.path" in done.stderr


def test_tensor_rules_cut_every_attention_and_feed_forward_weight_in_two() -> None:
    config = load_config("leddam")
    module = forecasters(config, 7, "ETTh1", 96)["leddam"].module
    mesh = meshes.make_mesh({"data": 4, "model": 2})
    placed = meshes.shardings(models.abstract_view(module), training.RULES["tensor"], mesh)
    specs = {name: each.spec for name, each in trees.named_leaves(placed).items()}
    inner = r"params/(auto|channel)_0/(attention/\w+|expand|contract)/weight"
    assert sum("model" in spec for spec in specs.values()) == 12
    assert all(("model" in spec) == bool(re.search(inner, name)) for name, spec in specs.items())


def test_the_published_settings_give_the_published_parameter_counts() -> None:
    """Section 3 and the authors' scripts: six of the paper's models, counted in closed form."""
    config = load_config("leddam", "paper")
    counts = {
        ("ETTh1", 7, 96): 1_129_206,
        ("ETTh1", 7, 720): 4_995_542,
        ("Weather", 21, 96): 1_132_846,
        ("Electricity", 321, 96): 3_237_606,
        ("Solar", 137, 96): 12_760_390,
        ("Traffic", 862, 720): 3_564_834,
    }
    for (data, n_series, horizon), expected in counts.items():
        module = forecasters(config, n_series, data, horizon)["leddam"].module
        params = models.abstract_view(module)["params"]
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_the_notebook_is_its_source_without_outputs() -> None:
    jupytext = pytest.importorskip("jupytext")
    source = jupytext.read(ROOT / "colab" / "leddam.py")
    notebook = jupytext.read(ROOT / "colab" / "leddam.ipynb")
    cells = [[(c.cell_type, c.source) for c in each.cells] for each in (source, notebook)]
    assert cells[0] == cells[1], "jupytext --to ipynb colab/leddam.py brings it up to date"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
