"""The command line, as a user meets it: exit status, the one line, the time it takes."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from rflib.core.errors import UserError
from rflib.run import REQUIRED, Verb
from rflib.run.cli import Program, resolve
from tests.run import project

TOY = "experiments.toy"
pytestmark = pytest.mark.filterwarnings("ignore:the load_module")  # ml_collections uses it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project.write(tmp_path)


@pytest.fixture
def program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(folder)
    flags = {"input": (REQUIRED, "a CSV file"), "output": ("out.csv", "where to")}
    pair = {"left": "a file", "right": "another"}
    verbs = {
        "predict": Verb(lambda *_: None, flags),
        "score": Verb(lambda *_: None),
        "compare": Verb(lambda *_: None, words=pair, needs_run=False),
    }
    return Program("toy", "python -m experiments.toy", "A toy.", folder, verbs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the tiny variant is done, in its default workdir."""
    folder = project.write(tmp_path_factory.mktemp("finished"))
    status, out, err = project.call(folder, TOY, "--config", "configs/toy.py:tiny")
    assert status == 0, err
    assert "fit 3/3  loss 0.3333  10 steps/s  0:00 left" in out.splitlines()
    assert "| C1    | the loss falls | 0.3333   | 0.5   | refuted |" in out
    assert out.splitlines()[-1] == "done: runs/toy-tiny/report.md"
    return folder


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config", "configs/toy.py:tny"], "did you mean 'tiny'?"),
        (["--config=configs/ty.py:tiny"], "does not exist; nearest: configs/toy.py"),
        (["--config"], "--config needs a file"),
        (["--config.modle.rate=1"], "config.modle.rate is no key"),
        (["--config.rate", "1"], "nearest: config.model.rate"),
        (["--noconfig.model.bais"], "nearest: config.model.bias"),
        (["--config.steps=1.5"], "config.steps='1.5' must be a whole number (now 100)"),
        (["--config.steps"], "Missing value for flag --config.steps"),
        (["--config.model.bias=maybe"], "config.model.bias='maybe' must be true or false"),
        (["--config.data.limit=x"], "config.data.limit='x' must be a whole number (now None)"),
        (["--config.model={'rate': 3.0}"], "a section must keep its keys"),
        (["--wrkdir", "x"], "unknown flag --wrkdir; nearest: --workdir"),
        (["--steps=3"], "unknown flag --steps; nearest: --config.steps"),
        (["--quiet=perhaps"], "--quiet=perhaps must be true or false"),
        (["--workdir"], "Missing value for flag --workdir"),
        (["predcit"], "'predcit' is no verb; nearest: predict"),
        (["tiny"], "nearest: --config configs/toy.py:tiny"),
        (["configs/toy.py:tiny"], "nearest: --config configs/toy.py:tiny"),
        (["steps=3"], "nearest: --config.steps=3"),
        (["--input=x"], "--input belongs to the verb predict, not to a run"),
        (["score", "--workdir", "x", "--input=x"], "--input belongs to the verb predict"),
        (["predict"], "predict needs --workdir"),
        (["predict", "--workdir", "runs/none"], "--workdir=runs/none is missing"),
        (["predict", "--workdir", "configs"], "is no run's directory"),
        (["predict", "--workdir", "x", "--dry"], "--dry belongs to a run"),
        (["predict", "--workdir", "x", "--config", "configs/toy.py"], "leave out --config"),
        (["compare"], "compare takes LEFT RIGHT: compare LEFT RIGHT [FLAGS]"),
        (["compare", "a", "b", "c"], "compare takes LEFT RIGHT, not a b c"),
        (["compare", "a", "b", "--workdir", "x"], "leave out --workdir"),
        (["compare", "a", "b", "--distributed"], "leave out --distributed"),
        (["compare", "a", "b", "--overwrite"], "--overwrite belongs to a run"),
        (["compare", "a", "b", "--config.steps=3"], "compare reads no config"),
        (["--replay", "runs/none"], "--replay=runs/none is missing"),
        (["--replay", "runs/none", "--config.steps=3"], "leave out --config"),
    ],
)
def test_a_mistake_is_one_line_with_what_was_probably_meant(
    program: Program, argv: list[str], message: str
) -> None:
    with pytest.raises(UserError) as error:
        resolve(program, argv)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("argv", "steps", "sizes"),
    [
        ([], 100, (1, 2)),
        (["--config.steps=5", "--config", "configs/toy.py:tiny"], 5, (1, 2)),
        (["--config.steps", "5", "--config.data.sizes=(4,)"], 5, (4,)),
        (["--config=configs/toy.py:tiny", "--noconfig.model.bias"], 3, (1, 2)),
    ],
)
def test_flags_and_config_keys_stand_in_any_order(
    program: Program, argv: list[str], steps: int, sizes: tuple[int, ...]
) -> None:
    call = resolve(program, argv)
    assert call is not None
    assert (call.config.steps, call.config.data.sizes) == (steps, sizes)
    assert call.config.model.bias is ("--noconfig.model.bias" not in argv)
    assert call.workdir == Path("runs") / ("toy-tiny" if "tiny" in str(argv) else "toy-default")


def test_a_verb_that_needs_no_run_takes_words_and_no_config(program: Program) -> None:
    call = resolve(program, ["compare", "a.csv", "--quiet", "b.csv"])
    assert call is not None and call.verb == "compare" and call.config is None
    assert call.words == {"left": "a.csv", "right": "b.csv"} and call.flags["quiet"].value


@pytest.mark.parametrize(
    "argv",
    [
        ["--config", "configs/toy.py:tny"],
        ["--config.model.rte=1"],
        ["--no_such_flag"],
        ["--workdir", "configs/toy.py/run"],
        ["--profile=9:3"],
    ],
)
def test_a_mistake_exits_with_status_2_within_3_seconds(folder: Path, argv: list[str]) -> None:
    start = time.monotonic()
    status, out, err = project.call(folder, TOY, *argv)
    assert (status, out) == (2, "") and time.monotonic() - start < 3
    assert err.startswith("error: ") and err.count("\n") == 1


def test_help_shows_words_variants_keys_flags_and_verbs(folder: Path) -> None:
    status, out, _ = project.call(folder, TOY, "--help", "--config", "configs/toy.py:tiny")
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "Fits a line; a toy.",
        "--config configs/toy.py:tiny 3 steps, seconds",
        "--config.steps=3 updates",
        "--config.model.rate=0.1 learning rate, > 0",
        "--config.data.sizes=(1, 2) any",
        "--profile ... first:last, the steps of a profiler trace (workdir/profile)",
        "Verb predict: forecasts a file",
        "--input a CSV file (required)",
        "--output where to (default: out.csv)",
    ):
        assert line in lines
    keys = [line.split("=")[0] for line in out.splitlines() if line.startswith("  --config.")]
    assert keys[:3] == ["  --config.seed", "  --config.steps", "  --config.trouble"]


def test_a_finished_run_is_not_run_again_but_reported(finished: Path) -> None:
    run = finished / "runs" / "toy-tiny"
    before = (run / "metrics.jsonl").read_text()
    report = (run / "report.md").read_text()
    (run / "report.md").unlink()  # it can be made again from the rest
    status, out, _ = project.call(finished, TOY, "--config", "configs/toy.py:tiny")
    assert status == 0 and "is done" in out and "the loss falls" in out and "## Metrics" in out
    assert (run / "metrics.jsonl").read_text() == before
    assert (run / "report.md").read_text() == report


def test_another_config_in_the_workdir_exits_with_status_2_and_the_difference(
    finished: Path,
) -> None:
    arguments = ("--config", "configs/toy.py:tiny", "--config.steps=4")
    status, _, err = project.call(finished, TOY, *arguments)
    assert status == 2 and "steps: 3 there, 4 here" in err and "--overwrite" in err


def test_the_record_of_the_run_is_enough_for_a_verb_whose_flags_stand_anywhere(
    finished: Path,
) -> None:
    arguments = ("--input", "configs/toy.py", "predict", "--workdir", "runs/toy-tiny")
    status, out, err = project.call(finished, TOY, *arguments)
    assert status == 0, err
    flags = {"input": "configs/toy.py", "output": "out.csv"}
    assert out == f"rate 0.1 sizes (1, 2) flags {flags}\n"


def test_a_verb_names_its_missing_flag_and_its_missing_file(finished: Path) -> None:
    status, _, err = project.call(finished, TOY, "predict", "--workdir", "runs/toy-tiny")
    assert (status, err) == (2, "error: predict needs --input (a CSV file)\n")
    arguments = ("predict", "--workdir", "runs/toy-tiny", "--input", "no.csv")
    status, _, err = project.call(finished, TOY, *arguments)
    assert (status, err) == (2, "error: cannot use no.csv: no such file or directory\n")


@pytest.mark.parametrize(
    ("trouble", "status", "last"),
    [("crash", 1, "error: RuntimeError: boom"), ("nan", 3, "error: loss is NaN at step 1")],
)
def test_a_failing_run_has_its_exit_status_and_the_traceback_in_FAILED(
    folder: Path, trouble: str, status: int, last: str
) -> None:
    found, _, err = project.call(folder, TOY, f"--config.trouble={trouble}")
    assert found == status and err.splitlines()[-1].startswith(last)
    failed = (folder / "runs/toy-default/FAILED").read_text()
    assert failed.startswith("Traceback") and last.split(": ")[-1] in failed
    assert json.loads((folder / "runs/toy-default/report.json").read_text())["status"] == "failed"


def test_sigterm_exits_with_status_4_and_the_command_that_resumes(folder: Path) -> None:
    arguments = ("--config.trouble=slow", "--overwrite", "--workdir", "my run")
    process = project.start(folder, TOY, *arguments)
    for _ in range(600):
        if (folder / "my run" / "metrics.jsonl").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    command = "python -m experiments.toy --config.trouble=slow --workdir 'my run'"
    assert err.splitlines()[-1].endswith(f"resume with: {command}")


def test_dry_leaves_nothing_and_passes_the_wish_on(folder: Path) -> None:
    status, out, err = project.call(folder, TOY, "--dry", "--config.steps=1")
    assert status == 0 and "fit 1/1" in out, err
    assert not (folder / "runs").exists()


def test_replay_takes_the_config_of_the_run_and_changes_nothing(finished: Path) -> None:
    run = shutil.copytree(finished / "runs" / "toy-tiny", finished / "runs" / "copy")
    status, out, err = project.call(finished, TOY, "--replay", "runs/copy")
    assert (status, out) == (2, "") and "runs/copy has recorded no non-finite step" in err
    record = run / "phases" / "fit" / "nonfinite" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, out, err = project.call(finished, TOY, "--replay", "runs/copy")
    assert status == 2 and "fit 3/3" in out and "nothing to replay" in err, err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
