"""A study computes each cell once: by content, through kills, damage and several processes."""

import json
import math
import signal

import jax
import numpy as np
import pytest

from rflib.core.errors import DryRun, Stopped, UserError
from rflib.train.study import study
from rflib.train.task import Cell, Options, Study
from tests.spawn import PATIENCE, python, together, told


class Log:
    """A logger whose lines are files, so that they outlive a killed process."""

    def __init__(self, workdir, options=Options()):  # noqa: B008
        self.workdir, self.options, self.notes = workdir, options, []
        workdir.mkdir(parents=True, exist_ok=True)

    def _append(self, name, line):
        with open(self.workdir / name, "a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name="metrics.jsonl"):
        path = self.workdir / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self, step, metrics, *, phase="", seed=None):
        self._append("metrics.jsonl", {"step": step, "phase": phase, **metrics})

    def timing(self, step, values, *, phase=""):
        self._append("timing.jsonl", {"step": step, "phase": phase, **values})

    def cut(self, *, phase, step, lines):
        for name, keep in (("metrics.jsonl", lines), ("timing.jsonl", step)):
            kept = [line for line in self.lines(name) if line["phase"] != phase]
            kept += [line for line in self.lines(name) if line["phase"] == phase][:keep]
            (self.workdir / name).write_text("".join(json.dumps(line) + "\n" for line in kept))

    def logged(self, phase):
        return sum(line["phase"] == phase for line in self.lines())

    def progress(self, step, steps, metrics, rate, phase):
        self._append("progress.jsonl", {"step": step, "steps": steps, "rate": rate})

    def note(self, text):
        self.notes.append(text)


def cells(*sizes):
    return [Cell(f"size {size}", {"size": size, "nested": {"a": [1, 2.5]}}) for size in sizes]


class Counted:
    """A cell function that draws from its key and remembers which cells it was called for."""

    def __init__(self):
        self.calls = []

    def __call__(self, cell, key):
        self.calls.append(cell.name)
        draw = jax.random.normal(key, (cell.arguments["size"],))
        return {"mean": draw.mean(), "draw": draw, "count": np.int64(draw.size), "none": None}


def test_a_second_run_computes_nothing_and_gives_the_same_results_and_log(tmp_path):
    run, first, again = Log(tmp_path), Counted(), Counted()
    summaries = []
    results = study(Study(cells(1, 2, 3), first, summaries.append), run, seed=7)
    log = run.lines()
    assert list(results) == first.calls == [line["cell"] for line in log]
    assert [line["step"] for line in log] == [1, 2, 3]
    assert results["size 2"]["count"] == 2 and len(results["size 2"]["draw"]) == 2
    assert study(Study(cells(1, 2, 3), again, summaries.append), run, seed=7) == results
    assert again.calls == [] and run.lines() == log
    assert summaries == [results, results]


def test_changed_arguments_names_and_seeds_run_and_the_rest_is_reused(tmp_path):
    def fresh(cell_list, seed=0):
        counted = Counted()
        study(Study(cell_list, counted), Log(tmp_path), seed=seed)
        return counted.calls

    assert fresh(cells(1, 2)) == ["size 1", "size 2"]
    assert fresh(cells(2, 3, 1)) == ["size 3"]  # order and company do not matter
    assert fresh([Cell("size 1", {"size": 2, "nested": {"a": [1, 2.5]}})]) == ["size 1"]
    assert fresh([Cell("other", cells(1)[0].arguments)]) == ["other"]
    assert fresh([Cell("size 1", {"nested": {"a": (1, 2.5)}, "size": np.int32(1)})]) == []
    assert fresh(cells(1), seed=1) == ["size 1"]


def test_a_cells_draws_depend_on_its_content_study_and_seed_alone(tmp_path):
    def draw(directory, cell_list, name="study", seed=0):
        log = Log(tmp_path / directory)
        return study(Study(cell_list, Counted()), log, name=name, seed=seed)["size 3"]["draw"]

    alone = draw("a", cells(3))
    assert draw("b", cells(5, 1, 3)) == alone
    others = [draw("c", cells(3), seed=1), draw("d", cells(3), name="audit")]
    others.append(draw("e", [Cell("size 3", {"size": 3})]))
    assert all(other != alone for other in others)


def test_floats_nan_and_infinity_come_back_exactly(tmp_path):
    metrics = {
        "third": 1 / 3,
        "f32": np.float32(0.1),
        "tiny": 5e-324,
        "inf": -math.inf,
        "nan": math.nan,
    }
    table = Study([Cell("a", {})], lambda cell, key: metrics)
    fresh = study(table, Log(tmp_path), seed=0)["a"]
    kept = study(Study(table.cells, Counted()), Log(tmp_path), seed=0)["a"]
    for result in (fresh, kept):
        np.testing.assert_array_equal(list(result.values()), [float(v) for v in metrics.values()])


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other json", "no text"])
def test_a_damaged_cell_is_set_aside_named_and_computed_again(tmp_path, damage):
    results = study(Study(cells(4, 5), Counted()), Log(tmp_path), seed=0)
    directory = tmp_path / "phases" / "study" / "cells"
    path = next(p for p in directory.iterdir() if "size 4" in p.read_text())
    good = path.read_bytes()
    flipped = good.replace(b'"count": 4', b'"count": 5')
    bad = {"truncated": good[:40], "flipped": flipped, "empty": b"", "other json": b"[1]"}
    path.write_bytes(bad.get(damage, b"\xff\xfe"))
    run, counted = Log(tmp_path), Counted()
    assert study(Study(cells(4, 5), counted), run, seed=0) == results
    assert counted.calls == ["size 4"]
    aside = list(directory.glob("bad-*"))
    assert [p.read_bytes() for p in aside] == [bad.get(damage, b"\xff\xfe")]
    assert len(run.notes) == 1 and "size 4" in run.notes[0] and aside[0].name in run.notes[0]


def test_a_finished_study_leaves_the_lines_of_later_phases_behind_its_own(tmp_path):
    run = Log(tmp_path)
    study(Study(cells(1, 2), Counted()), run, name="first", seed=0)
    run.log(9, {"loss": 1.0}, phase="second")
    log = run.lines()
    study(Study(cells(1, 2), Counted()), run, name="first", seed=0)
    assert run.lines() == log


def test_sigterm_lets_the_cell_finish_and_the_next_run_does_the_rest(tmp_path):
    class Stopping(Counted):
        def __call__(self, cell, key):
            metrics = super().__call__(cell, key)
            if cell.arguments["size"] == 2:
                signal.raise_signal(signal.SIGTERM)
            return metrics

    whole = Log(tmp_path / "whole")
    results = study(Study(cells(1, 2, 3), Counted()), whole, seed=0)
    for last in ((1, 2, 3), (1, 2)):  # also when it comes within the last cell
        run, stopping, rest = Log(tmp_path / f"of {len(last)}"), Stopping(), Counted()
        with pytest.raises(Stopped):
            study(Study(cells(*last), stopping), run, seed=0)
        assert stopping.calls == ["size 1", "size 2"]
        found = study(Study(cells(*last), rest), run, seed=0)
        assert rest.calls == [f"size {size}" for size in last[2:]]
        assert found == {name: results[name] for name in found}
    assert Log(tmp_path / "of 3").lines() == whole.lines()


def test_two_cells_of_one_name_are_refused(tmp_path):
    with pytest.raises(UserError, match="size 2"):
        study(Study(cells(1, 2, 2), Counted()), Log(tmp_path), seed=0)


def test_values_that_json_cannot_hold_are_named_with_their_cell(tmp_path):
    with pytest.raises(UserError, match=r"arguments of cell 'odd'.*function"):
        study(Study([Cell("odd", {"f": cells})], Counted()), Log(tmp_path), seed=0)
    with pytest.raises(UserError, match=r"metrics of cell 'odd'.*complex"):
        study(Study([Cell("odd", {})], lambda cell, key: {"z": 1j}), Log(tmp_path), seed=0)
    assert not list(tmp_path.glob("phases/*/cells/*"))


def test_dry_counts_the_cells_and_runs_none(tmp_path):
    run, counted = Log(tmp_path, Options(dry=True)), Counted()
    with pytest.raises(DryRun):
        study(Study(cells(1, 2, 3), counted), run, seed=0)
    assert counted.calls == [] and "3 cells" in run.notes[0]


def test_progress_ends_at_the_number_of_cells_with_a_rate(tmp_path):
    run = Log(tmp_path)
    study(Study(cells(1, 2, 3), Counted()), run, seed=0)
    last = run.lines("progress.jsonl")[-1]
    assert last["step"] == last["steps"] == 3 and last["rate"] > 0
    assert [line["step"] for line in run.lines("timing.jsonl")] == [1, 2, 3]


KILLED = """
import os, signal, sys
from pathlib import Path
from rflib.train.study import study
from rflib.train.task import Study
from tests.train.test_study import Counted, Log, cells

workdir, deadly = Path(sys.argv[1]), sys.argv[2]

class Run(Log):
    def log(self, step, metrics, **where):
        if deadly == f"log {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        super().log(step, metrics, **where)

class Traced(Counted):
    def __call__(self, cell, key):
        with open(workdir / "calls", "a") as file:
            file.write(cell.name + "\\n")
        if deadly == cell.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(cell, key)

study(Study(cells(1, 2, 3, 4), Traced()), Run(workdir), seed=3)
"""


@pytest.mark.multiprocess
def test_killed_studies_run_only_the_rest_and_end_with_the_log_of_an_unbroken_one(tmp_path):
    whole, broken = Log(tmp_path / "whole"), Log(tmp_path / "broken")
    results = study(Study(cells(1, 2, 3, 4), Counted()), whole, seed=3)
    for deadly in ("size 2", "log 3", "size 4"):
        child = python(KILLED, broken.workdir, deadly)
        text, _ = child.communicate(timeout=PATIENCE)
        assert child.returncode == -signal.SIGKILL, text
    rest = Counted()
    assert study(Study(cells(1, 2, 3, 4), rest), broken, seed=3) == results
    assert rest.calls == ["size 4"]
    # size 3 was kept although its line was not written yet; 2 and 4 died within
    calls = (broken.workdir / "calls").read_text().splitlines()
    assert calls == ["size 1", "size 2", "size 2", "size 3", "size 4"]
    assert (broken.workdir / "metrics.jsonl").read_bytes() == (
        whole.workdir / "metrics.jsonl"
    ).read_bytes()


TOGETHER = """
import json, sys
from pathlib import Path
import jax
from rflib.train.mesh import initialize_distributed
from rflib.train.study import study
from rflib.train.task import Study
from tests.train.test_study import Counted, Log, cells

initialize_distributed()
run = Log(Path(sys.argv[1]) / str(jax.process_index()))  # 1 sees nothing of what 0 kept
first, second = Counted(), Counted()
study(Study(cells(1, 2), first), run, seed=0)
results = study(Study(cells(1, 2, 3), second), run, seed=0)
kept = [str(path) for path in run.workdir.glob("phases/*/cells/*.json")]
print(json.dumps([first.calls, second.calls, results, len(kept)]))
jax.distributed.shutdown()
"""


@pytest.mark.multiprocess
def test_two_processes_agree_on_what_process_0_kept(tmp_path):
    outputs = [json.loads(told(text, "[[")) for text in together(TOGETHER, tmp_path)]
    for first, second, results, _ in outputs:
        assert first == ["size 1", "size 2"] and second == ["size 3"]
        assert results == outputs[0][2] and list(results) == ["size 1", "size 2", "size 3"]
    assert [kept for *_, kept in outputs] == [3, 0]
