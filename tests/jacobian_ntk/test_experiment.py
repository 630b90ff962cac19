"""The experiment on Jacobian penalties: config, smallest run, training, own data, `advise`."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.jacobian_ntk as file
from experiments import jacobian_ntk
from experiments.jacobian_regularisation import advise as advice
from experiments.jacobian_regularisation import checks, claims, kernel_init, training
from experiments.jacobian_regularisation import data as rows
from rflib.core import keys
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk import data as sets
from rflib.methods.jacobian_ntk.dynamics import make_targets, robust_loss
from rflib.methods.jacobian_ntk.network import init, values
from rflib.run import Run, load_config
from rflib.run import record as records
from rflib.run.cli import execute

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ["data", "model", "optim", "mesh", "checkpoint", "log", *file.STUDIES, "expect"]
SMALLEST = {
    "steps": 8,
    "checkpoint.every": 4,
    "log.every": 4,
    "data.label": "class",
    "data.positive": "fire",
    "data.columns": ("a", "b", "c"),
    "model.activation": "erf",
    "model.depth": 1,
    "optim.vectorise": 8,
    "kernel_init.points": 4,
    "kernel_init.widths": (8, 16),
    "kernel_init.depths": (1,),
    "kernel_init.repeats": 2,
    "kernel_init.resamples": 50,
    "kernel_init.check_points": 2,
    "kernel_init.draw_widths": (4, 8),
    "kernel_init.draws": 20,
    "constancy.rows": 4,
    "constancy.widths": (8, 16),
    "constancy.repeats": 2,
    "dynamics.rows": 4,
    "dynamics.test_rows": 4,
    "dynamics.widths": (8, 16),
    "dynamics.repeats": 2,
    "dynamics.linearised": 8,
    "spectrum.rows": 4,  # as many as sampled_rows: one compilation
    "spectrum.single": True,
    "spectrum.depths": (1, 2),
    "spectrum.activations": ("erf",),
    "spectrum.sphere": 4,
    "spectrum.sampled_rows": 4,
    "spectrum.sampled_depths": (1, 2),
    "spectrum.joint": 50,
    "spectrum.pairs": 50,
    "spectrum.sampled_repeats": 2,
    "features.rows": 12,
    "features.nets": (("erf", 2),),
    "features.lams": (0.0, 0.01),
    "features.attacked": 2,
    "features.attack_steps": 2,
    "regression.rows": 12,
    "regression.depth": 2,
    "regression.lams": (0.0, 0.01),
}


# The config.


def test_all_variants_have_the_same_keys() -> None:
    found = [list(records.flat(file.get_config(variant))) for variant in file.VARIANTS]
    assert all(each == found[0] for each in found)
    text = (ROOT / "configs" / "jacobian_ntk.py").read_text()
    assert re.findall(r"    c\.(\w+) = ConfigDict\(\)", text) == SECTIONS


def test_every_leaf_of_the_config_has_a_comment_with_its_unit_or_range() -> None:
    lines = (ROOT / "configs" / "jacobian_ntk.py").read_text().splitlines()
    body = lines[: lines.index("def _default(c: ConfigDict) -> ConfigDict:")]
    leaves = [line for line in body if re.match(r"    \w\.[\w.]+ = (?!ConfigDict|_)", line)]
    assert len(leaves) > 60
    assert [line for line in leaves if "  # " not in line] == []


@pytest.mark.parametrize("variant", file.VARIANTS)
def test_a_config_survives_json(variant: str) -> None:
    config = records.nested(load_config("jacobian_ntk", variant))
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


# The smallest run.


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty rows of three columns with two classes, and one column that is not an input."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3))
    words = np.where(x[:, 0] + x[:, 1] * x[:, 2] > 0, "fire", "none")
    lines = [f"{a},{b},{c},{i},{word}" for i, ((a, b, c), word) in enumerate(zip(x, words,
             strict=True))]  # fmt: skip
    path = tmp_path_factory.mktemp("own") / "my.csv"
    path.write_text("\n".join(["a,b,c,number,class", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def smallest(csv: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str], Any]:
    """(workdir, keys that were read, config) of a run of all studies on a file of one's own."""
    workdir = tmp_path_factory.mktemp("jacobian_ntk") / "smallest"
    config = load_config("jacobian_ntk", "tiny", {**SMALLEST, "data.path": str(csv)})
    seen = set[str]()
    with (
        Run.open(workdir, config, experiment="jacobian_ntk", quiet=True) as run,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(checks, "check_config", lambda _: None)  # looking is not reading
        jacobian_ntk.main(Reading(config, seen), run)
    return workdir, seen, config


def test_every_key_of_the_config_is_read(
    smallest: tuple[Path, set[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, seen, config = smallest
    monkeypatch.delenv("RFLIB_DATA", raising=False)
    ours = load_config("jacobian_ntk", "tiny")
    raw = rows.labelled(Reading(ours, seen), SimpleNamespace(note=lambda text: None))
    assert raw.name == "generated"
    assert seen == set(records.flat(config))


def test_the_run_states_every_claim_and_draws_every_figure(
    smallest: tuple[Path, set[str], Any],
) -> None:
    workdir, _, _ = smallest
    report = json.loads((workdir / "report.json").read_text())
    assert {claim["id"] for claim in report["claims"]} == set(claims.TEXTS)
    verdicts = {claim["id"]: claim["verdict"] for claim in report["claims"]}
    assert verdicts["C2"] in ("holds", "refuted")
    names = {path.stem for path in (workdir / "figures").glob("*.png")}
    assert names == {"kernel_error", "gaussian", "constancy", "trajectories", "deviation",
                     "spectra", "features", "stopping"}  # fmt: skip
    tables = {path.stem for path in (workdir / "tables").glob("*.csv")}
    assert {"slopes", "deviations", "full_rank", "feature_correlations", "stopping"} <= tables


def test_a_run_of_one_study_leaves_the_other_claims_undecided(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    run = SimpleNamespace(claim=lambda name, text, *, verdict, **_: said.update({name: verdict}))
    claims.state(load_config("jacobian_ntk", "tiny"), run, {"regression": {}})
    assert said == dict.fromkeys(claims.TEXTS, "undecided")


def test_an_unknown_study_is_refused_before_anything_runs() -> None:
    config = load_config("jacobian_ntk", "tiny", {"exp": ("kernel_init", "spectra")})
    with pytest.raises(UserError, match="did you mean 'spectrum'"):
        jacobian_ntk.main(config, SimpleNamespace())


@pytest.mark.parametrize("variant", file.VARIANTS)
def test_every_variant_passes_the_checks(variant: str) -> None:
    checks.check_config(load_config("jacobian_ntk", variant))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 0, "config.steps=0 must be a whole number"),
        ("seed", -1, "config.seed=-1 must be a whole number of at least 0"),
        ("model.activation", "relu", "config.model: activation='relu' has no Jacobian kernel"),
        ("model.activation", "gelo", "config.model: activation='gelo' is not one of.*'gelu'"),
        ("model.depth", 0, "config.model: depth=0 must be a whole number"),
        ("model.kappa", 0.0, r"config.model.kappa=0.0 must lie in \(0"),
        ("optim.lr", float("inf"), r"config.optim.lr=inf must lie in \(0"),
        ("optim.lam", -0.1, r"config.optim.lam=-0.1 must lie in \[0"),
        ("optim.reduction", "total", "'total' is not one of 'mean', 'sum'"),
        ("kernel_init.widths", (64,), r"kernel_init.widths=\(64,\) must be 2 or more, ascending"),
        ("kernel_init.depths", (2, 1), "kernel_init.depths=.* ascending"),
        ("kernel_init.draws", 5, r"config.kernel_init.draws=5 must lie in \[10"),
        ("constancy.widths", (256, 64), "config.constancy.widths=.* ascending"),
        ("dynamics.test_rows", 0, "config.dynamics.test_rows=0 must be"),
        ("spectrum.activations", ("relu",), "config.spectrum.activations: activation='relu'"),
        ("spectrum.sphere", -1, "config.spectrum.sphere=-1 must be"),
        ("features.nets", (("erf", 0),), "config.features.nets: depth=0"),
        ("features.nets", ("erf", "gelu"), r"'erf' must be \(activation, depth\)"),
        ("features.lams", (0.0, -1.0), r"config.features.lams=-1.0 must lie in \[0"),
        ("features.attack_lam", 0.5, "config.features.attack_lam=0.5 is not one of"),
        ("features.tol", 0.0, "config.features.tol=0.0 must lie in"),
        ("regression.times", (1.0, "late"), "config.regression.times='late' must be a number"),
        ("regression.ridges", (0.0,), r"config.regression.ridges=0.0 must lie in \(0"),
        ("expect.slope", (-0.3, -0.6), "config.expect.slope"),
        ("data.name", "fires", "config.data.name='fires' is not one of"),
        ("data.standardise", "none", "config.data.standardise='none' is not one of"),
        ("data.split", -1, "config.data.split=-1 must be"),
    ],
)
def test_a_mistake_in_the_config_is_named_before_anything_runs(
    key: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("jacobian_ntk", "tiny", {"data.name": "generated", key: value})
    monkeypatch.setattr(kernel_init, "run_study", lambda *_: pytest.fail("it runs"))
    with pytest.raises(UserError, match=message):
        jacobian_ntk.main(config, SimpleNamespace(note=lambda _: None))


def test_keys_of_studies_that_do_not_run_are_not_looked_at() -> None:
    changes = {"exp": ("regression",), "steps": 0, "features.tol": 2.0, "kernel_init.draws": 1}
    checks.check_config(load_config("jacobian_ntk", "tiny", changes))


def test_data_that_leave_no_test_row_or_need_a_missing_package_end_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_init, "run_study", lambda *_: pytest.fail("it runs"))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    run = SimpleNamespace(note=lambda _: None)
    path = tmp_path / "two.csv"
    path.write_text("a,y\n1,-1\n2,1\n")
    for changes, message in (
        ({"data.path": str(path)}, "two.csv has 2 rows: the studies dynamics"),
        ({"data.name": "diabetes"}, "pip install scikit-learn"),
    ):
        with pytest.raises(UserError, match=message):
            jacobian_ntk.main(load_config("jacobian_ntk", "tiny", changes), run)


# Training.


def _trained(workdir: Path, overrides: dict[str, Any], measure: Any = None) -> dict[str, Any]:
    config = load_config("jacobian_ntk", "tiny", {**SMALLEST, **overrides})
    net = training.network(config)
    x, y = sets.sphere_net(4, 3), np.array([1.0, -1.0, -1.0, 1.0])
    points = jnp.asarray(x, jnp.float32)
    default = lambda params, start: {"F": values(net, params, points)}  # noqa: E731
    with Run.open(workdir, config, quiet=True) as run:
        return training.train(config, run, "job", 8, x, y, repeats=2, measure=measure or default)


def test_training_is_gradient_descent_on_the_robust_loss(tmp_path: Path) -> None:
    """Recorded at 0, 1, 2, 4 and 8 steps, for two seeds at once, against a loop written here."""
    found = _trained(tmp_path / "run", {"optim.lam": 0.3, "optim.lr": 0.5})["F"]
    net = training.network(load_config("jacobian_ntk", "tiny", SMALLEST))
    x, y = jnp.asarray(sets.sphere_net(4, 3), jnp.float32), np.array([1.0, -1.0, -1.0, 1.0])
    targets = make_targets(y, 3).astype(np.float32)
    slope = jax.jit(jax.grad(lambda p: robust_loss(net, p, x, targets, lam=0.3)))
    for seed in (0, 1):
        params = init(keys.named(jax.random.key(seed), "init"), net, 3, 8)
        for step in range(9):
            if step in training.recorded_steps(8):
                place = training.recorded_steps(8).index(step)
                np.testing.assert_allclose(found[place, seed], values(net, params, x), atol=2e-6)
            params = jax.tree.map(lambda p, g: p - 0.5 * g, params, slope(params))


def test_repeats_one_by_one_are_those_all_at_once(tmp_path: Path) -> None:
    together = _trained(tmp_path / "together", {})["F"]
    alone = _trained(tmp_path / "alone", {"optim.vectorise": 1})["F"]
    assert together.shape == (5, 2, 4, 4)
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_a_training_that_broke_off_goes_on_with_what_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _trained(tmp_path / "whole", {})["F"]
    keep = training._Watch._keep

    def break_off(self: Any, step: int, params: Any, start: Any) -> None:
        if step == 8:
            raise KeyboardInterrupt
        keep(self, step, params, start)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training._Watch, "_keep", break_off)
        _trained(tmp_path / "broken", {})
    seen: list[int] = []
    monkeypatch.setattr(
        training._Watch, "_keep", lambda self, step, *_: (seen.append(step), keep(self, step, *_))
    )
    assert np.array_equal(_trained(tmp_path / "broken", {})["F"], whole)
    assert seen == [8]  # from the checkpoint at step 4 on


@pytest.mark.parametrize(("steps", "expected"), [
    (1, (0, 1)), (2, (0, 1, 2)), (5, (0, 1, 2, 4, 5)), (64, (0, 1, 2, 4, 8, 16, 32, 64)),
])  # fmt: skip
def test_recorded_steps_are_powers_of_two_and_the_last(
    steps: int, expected: tuple[int, ...]
) -> None:
    assert training.recorded_steps(steps) == expected


# Own data.


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0", "1", "1", "0"], [-1, 1, 1, -1]),
        (["-1", "1", "1", "-1"], [-1, 1, 1, -1]),
        (["1", "2", "3", "4"], [-1.3416408, -0.4472136, 0.4472136, 1.3416408]),
    ],
)
def test_labels_of_your_own_are_signs_or_standardised(
    cells: list[str], expected: Any, tmp_path: Path
) -> None:
    path = tmp_path / "my.csv"
    path.write_text("a,y\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)))
    raw = rows.own(path)
    np.testing.assert_allclose(raw.y, expected, atol=1e-6)
    assert raw.columns == ("a",) and rows.binary(raw.y) == (set(expected) == {-1, 1})


def test_one_class_and_unknown_columns_are_refused_by_name(tmp_path: Path, csv: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("a,y\n1,3\n2,3\n")
    with pytest.raises(UserError, match="only the label 3 in column 'y'"):
        rows.own(path)
    with pytest.raises(UserError, match="no column 'clas'; there is class"):
        rows.own(csv, label="clas")


# Advice.


def _advise(*arguments: str) -> int:
    return execute(jacobian_ntk.main, jacobian_ntk.VERBS, ["advise", *arguments])


def test_advice_on_a_file_needs_no_run(
    csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    output = tmp_path / "advice.json"
    status = _advise(str(csv), "--positive", "fire", "--columns", "a, b,c", "--rows",
                     "12", "--lam", "0.5", "--output", str(output))  # fmt: skip
    text = capsys.readouterr().out
    assert status == 0
    assert "Recommended:" in text and "Smallest eigenvalues" in text and "Time scales" in text
    found = json.loads(output.read_text())
    assert found["d"] == 3 and found["rows"] == 20 and found["rows_used"] == 12
    assert found["lam"] == 0.5 and found["modes"] == 48
    best = [row for row in found["architectures"] if row["depth"] == found["depth"]
            and row["activation"] == found["activation"]]  # fmt: skip
    assert best[0]["resolved"] == found["full_rank"]
    assert 0 < found["fastest"] <= found["median"] <= found["slowest"]
    assert found["slope_end"] < found["slope_fitted"] < 1
    assert not list(tmp_path.glob("runs*"))


def test_rows_that_are_there_twice_are_said_to_make_the_kernel_singular() -> None:
    x = sets.unit_rows(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 4.0], [3.0, 6.0]]))
    assert advice.repeated(x) == 2  # the same directions
    assert advice.repeated(x[:2]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lam", "much"), "--lam='much' is not a number"),
        (("--lam", "0"), "--lam=0.0 must lie in"),
        (("--lam", "inf"), "--lam=inf must lie in"),
        (("--rows", "2.5"), "--rows=2.5 must be a whole number"),
        (("--rows", "1"), "--rows=1 must lie in [2"),
        (("--kappa", "-1"), "--kappa=-1.0 must lie in"),
        (("--kappa", "1e-200"), "--kappa=1e-200 must lie in [1e-12"),
        (("--workdir", "runs/x"), "advise works without a run"),
        (("--label", "clas"), "no column 'clas'"),
        (("--positive", ""), "if labels are words, say which one is positive"),
    ],
)
def test_wrong_flags_of_the_advice_end_in_one_line(
    arguments: tuple[str, str],
    message: str,
    csv: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert _advise(str(csv), *arguments) == 2
    assert message in capsys.readouterr().err
