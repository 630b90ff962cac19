"""A run's directory: what it holds, whom it refuses, how it ends and goes on."""

import csv
import json
import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rflib.core.errors import Stopped, UserError
from rflib.run import Run, claims, files, lines, record
from rflib.train.task import Options

CONFIG = {"seed": 7, "steps": 3, "model": {"sizes": (1, 2), "limit": math.inf, "name": None}}


def opened(folder: Path, config: Any = CONFIG, **options: Any) -> Run:
    return Run.open(folder, config, experiment="toy", variant="tiny", quiet=True, **options)


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_the_report_has_every_field_and_what_the_run_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log(1, {"loss": np.float32(0.1)}, phase="fit")
        run.log(2, {"loss": math.nan, "accuracy": 0.5}, phase="fit", seed=3)
        run.progress(2, 2, {"loss": 0.1}, 20.0, "fit")
        run.table("rows", [{"a": 1, "b": 0.1}], "some rows")
        run.array("kernel", np.arange(3))
        run.metric("score", 4)
        run.claim("C1", "it holds", measured=0.5, unit="MSE", paper=0.4, verdict="holds")
        run.claim("C2", "who knows", measured=None, verdict="undecided", reason="too small")
    found = report(tmp_path)
    assert found["experiment"], found["variant"] == ("toy", "tiny")
    assert (found["status"], found["seed"]) == ("done", 7)
    assert record.decode(found["config"]) == CONFIG
    assert [claim["verdict"] for claim in found["claims"]] == ["holds", "undecided"]
    assert set(found["claims"][0]) == {
        *("id", "text", "measured", "unit", "paper", "verdict", "reason")
    }
    assert found["tables"] == [{"name": "rows", "file": "tables/rows.csv", "caption": "some rows"}]
    assert found["figures"] == []
    assert found["metrics"]["fit/loss"] == float(np.float32(0.1))
    assert found["metrics"]["fit/seed3/accuracy"] == 0.5 and found["metrics"]["score"] == 4
    assert {"jax", "python", "devices", "platform"} <= found["environment"].keys()
    assert found["wall_seconds"] > 0 and found["steps_per_second"] == 20.0
    text = (tmp_path / "report.md").read_text()
    assert "| C2    | who knows |" in text and "undecided (too small)" in text
    assert (tmp_path / "DONE").exists() and not (tmp_path / "lock").exists()


def test_a_line_of_metrics_has_step_and_time_and_names_in_sorted_order(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log(4, {"b": np.int32(2), "a": np.float64(1.5)}, phase="fit", seed=0)
        with pytest.raises(UserError, match="'time' is reserved"):
            run.log(4, {"time": 1.0})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert list(json.loads(line)) == ["step", "time", "phase", "seed", "a", "b"]


def test_cut_keeps_the_metric_lines_asked_for_and_the_timing_up_to_the_step(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for phase in ("first", "second"):
            for step in range(1, 5):
                run.log(step, {"loss": 1.0}, phase=phase)
                run.timing(step, {"rate": 1.0}, phase=phase)
        assert (run.logged("second"), run.logged("third")) == (4, 0)
        run.cut(phase="second", step=3, lines=2)
        assert run.logged("second") == 2

    def steps(name: str, phase: str) -> list[int]:
        return [r["step"] for r in lines.each(tmp_path / name) if r["phase"] == phase]

    assert steps("metrics.jsonl", "second") == [1, 2]
    assert steps("timing.jsonl", "second") == [1, 2, 3]
    assert steps("metrics.jsonl", "first") == steps("timing.jsonl", "first") == [1, 2, 3, 4]


def test_an_exception_leaves_its_traceback_and_the_next_session_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path) as run:
        run.log(1, {"loss": 1.0})
        run.claim("C1", "old words", measured=1, verdict="holds")
        raise ZeroDivisionError("planted")
    assert "ZeroDivisionError: planted" in (tmp_path / "FAILED").read_text()
    assert report(tmp_path)["status"] == "failed" and not (tmp_path / "DONE").exists()
    with opened(tmp_path) as run:
        assert not (tmp_path / "FAILED").exists()
        run.log(1, {"loss": 1.0})
        run.claim("C1", "new words", measured=1, verdict="holds")
    assert [claim["text"] for claim in report(tmp_path)["claims"]] == ["new words"]
    assert len(lines.read(tmp_path / "metrics.jsonl")) == 1


def test_a_stopped_run_is_neither_done_nor_failed(tmp_path: Path) -> None:
    with pytest.raises(Stopped), opened(tmp_path):
        raise Stopped("SIGTERM")
    assert report(tmp_path)["status"] == "stopped"
    assert not (tmp_path / "DONE").exists() and not (tmp_path / "FAILED").exists()


def test_a_run_of_another_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log(1, {"loss": 1.0})
    other = {"seed": 7, "steps": 4, "model": {"sizes": (1, 3), "limit": math.inf, "extra": 1}}
    with pytest.raises(UserError) as error:
        opened(tmp_path, other)
    for part in (
        "steps: 3 there, 4 here",
        "model.sizes: (1, 2) there, (1, 3) here",
        "model.name: None there, missing here",
        "model.extra: missing there, 1 here",
        "--overwrite",
    ):
        assert part in str(error.value)
    assert report(tmp_path)["config"]["steps"] == 3
    opened(tmp_path, CONFIG).close()


def test_a_run_goes_on_with_another_mesh(tmp_path: Path) -> None:
    with pytest.raises(Stopped), opened(tmp_path, {"steps": 3, "mesh": {"data": 8}}) as run:
        run.log(1, {"loss": 1.0})
        raise Stopped("SIGTERM")
    with opened(tmp_path, {"steps": 3, "mesh": {"data": 4, "model": 2}}) as run:
        run.log(2, {"loss": 0.5})
    assert report(tmp_path)["status"] == "done"


def test_a_config_that_failed_before_anything_was_computed_may_be_mended(tmp_path: Path) -> None:
    with pytest.raises(UserError), opened(tmp_path):
        raise UserError("data is missing")
    with opened(tmp_path, CONFIG | {"steps": 5}):
        assert record.required(tmp_path).config["steps"] == 5


def test_overwrite_removes_what_rflib_wrote_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log(1, {"loss": 1.0})
        run.array("old", np.ones(1))
    (tmp_path / "mine.csv").write_text("kept")
    with opened(tmp_path, CONFIG | {"steps": 5}, overwrite=True):
        assert lines.read(tmp_path / "metrics.jsonl") == []
    assert not (tmp_path / "arrays" / "old.npz").exists()
    assert (tmp_path / "mine.csv").read_text() == "kept"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "config.json").write_text('{"theirs": 1}')
    (tmp_path / "figures").mkdir()
    with pytest.raises(UserError, match="is no run's directory and not empty"):
        opened(tmp_path, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "figures"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_the_names_of_a_run_but_no_record_is_refused_too(
    tmp_path: Path, overwrite: bool
) -> None:
    """A paper's folder has its own "figures" and "tables"."""
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_text("precious")
    with pytest.raises(UserError, match=r"is no run's directory and not empty \(figures\)"):
        opened(tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.rglob("*")] == ["figures", "mine.png"]


def test_overwriting_that_was_cut_off_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as run:
        run.array("old", np.ones(1))

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, CONFIG | {"steps": 5}, overwrite=True)
    with opened(tmp_path, CONFIG | {"steps": 5}, overwrite=True):
        assert not (tmp_path / "arrays").exists()


def test_an_unwritable_place_and_a_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file is a file"):
        opened(tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot write .*not a directory"):
        opened(tmp_path / "file" / "run")


def test_a_full_disk_is_named_and_whole_lines_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.log(1, {"loss": 1.0})
        size = (tmp_path / "metrics.jsonl").stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            with pytest.raises(UserError, match=r"cannot write .*metrics.jsonl: file too large"):
                run.log(2, {"loss": 1.0})
            with pytest.raises(UserError, match=r"cannot write .*results.json"):
                run.claim("C1", "a" * 1000, measured=1, verdict="holds")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [line["step"] for line in lines.read(tmp_path / "metrics.jsonl")] == [1]
    assert not list(tmp_path.glob(".*partial"))


def test_a_table_is_exact_in_csv_and_readable_in_markdown(tmp_path: Path) -> None:
    rows = [{"name": "a|b", "value": 1 / 3}, {"name": "c", "more": np.int64(2)}]
    with opened(tmp_path) as run:
        run.table("rows", rows)
    with open(tmp_path / "tables" / "rows.csv") as file:
        found = list(csv.DictReader(file))
    assert float(found[0]["value"]) == 1 / 3 and found[1] == {
        "name": "c",
        "value": "",
        "more": "2",
    }
    assert (tmp_path / "tables" / "rows.md").read_text().splitlines() == [
        "| name | value  | more |",
        "|------|--------|------|",
        "| a\\|b | 0.3333 |      |",
        "| c    |        | 2    |",
    ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_for_a_screen_fits_it_and_loses_no_word(width: int) -> None:
    rows = [{"claim": "C1", "text": "word " * 30 + "end", "verdict": "undecided (too few seeds)"}]
    lines = claims.markdown_table(rows, width).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines[0]) <= width
    assert " ".join(lines).count("word") == 30


def test_arrays_come_back_exactly_and_figures_are_saved_and_closed(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    value = np.random.default_rng(0).normal(size=(2, 3))
    with opened(tmp_path) as run:
        run.array("both", first=value, second=value.T)
        figure, axes = plt.subplots()
        axes.plot([1, 2])
        number = figure.number
        run.figure("line", figure, "a line")
        run.figure("drawn", lambda: plt.figure(figsize=(1, 1)))
    assert number not in plt.get_fignums()
    with np.load(tmp_path / "arrays" / "both.npz", allow_pickle=False) as found:
        assert (found["first"] == value).all() and (found["second"] == value.T).all()
    for name in ("line", "drawn"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".hidden"])
def test_a_name_cannot_leave_the_run(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as run, pytest.raises(UserError, match="name="):
        run.array(name, np.ones(1))


@pytest.mark.parametrize(
    ("verdict", "reason", "message"),
    [("true", "", "verdict='true' is not one of 'holds'"), ("undecided", "", "say why")],
)
def test_a_claim_needs_a_known_verdict_and_an_undecided_one_a_reason(
    tmp_path: Path, verdict: str, reason: str, message: str
) -> None:
    with opened(tmp_path) as run, pytest.raises(UserError, match=message):
        run.claim("C1", "words", measured=1, verdict=verdict, reason=reason)


@pytest.mark.parametrize("options", [Options(dry=True), Options(replay=True)])
def test_dry_and_replay_leave_the_directory_as_it_was(tmp_path: Path, options: Options) -> None:
    with opened(tmp_path) as run:
        run.log(1, {"loss": 1.0})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with opened(tmp_path, CONFIG | {"steps": 9}, options=options) as run:
        run.log(1, {"loss": 2.0})
        run.table("rows", [{"a": 1}])
        run.cut(phase="", step=0, lines=0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    st.lists(st.one_of(st.integers(), st.floats()), max_size=3).map(tuple),
)
KEYS = st.text("abcdefgh", min_size=1, max_size=6)


@settings(deadline=None)
@given(config=st.dictionaries(KEYS, st.one_of(LEAVES, st.dictionaries(KEYS, LEAVES, max_size=3))))
def test_the_record_of_a_config_is_strict_json_and_exactly_invertible(
    config: dict[str, Any],
) -> None:
    text = json.dumps(record.encode(config), allow_nan=False)
    found = record.decode(json.loads(text))
    assert repr(found) == repr(config)
    assert not record.difference(found, config)


def test_a_config_value_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(UserError, match=r"config\.model\.x=.* is a object"):
        record.encode({"model": {"x": object()}})


def test_files_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match="no space left on device"):
        files.write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
