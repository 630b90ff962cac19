"""What people see: a bar on a terminal, a line for each log interval elsewhere, or nothing."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rflib.run import Run
from rflib.run.progress import clock


def two_phases(run: Run) -> None:
    for phase in ("first", "second"):
        for step in (50, 100):
            metrics = {"accuracy": 0.5, "loss": np.float32(1 / step), "curve": np.ones(3)}
            run.progress(step, 100, metrics, 10.0, phase)
    run.note("a word [to] you")


def test_each_log_interval_is_one_plain_line_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.open(tmp_path, {}) as run:
        two_phases(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "first 50/100  loss 0.02 accuracy 0.5  10 steps/s  0:05 left"
    assert len(lines) == 5 and lines[-1] == "a word [to] you"
    assert (tmp_path / "log.txt").read_text().endswith(" a word [to] you\n")


def test_a_terminal_shows_one_bar_and_what_earlier_phases_ended_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with Run.open(tmp_path, {}) as run:
        two_phases(run)
    shown = capsys.readouterr().out
    assert "first 100/100  loss 0.01 accuracy 0.5  10 steps/s" in shown
    assert "a word [to] you" in shown and "100/100" in shown.rpartition("second")[2]


def test_quiet_shows_nothing_and_keeps_the_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.open(tmp_path, {}, quiet=True) as run:
        two_phases(run)
    assert capsys.readouterr().out == ""
    assert "a word [to] you" in (tmp_path / "log.txt").read_text()


def test_scalars_go_to_tensorboard_by_phase_and_seed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with Run.open(tmp_path, {}, quiet=True) as run:
        for seed in (None, 3):
            run.log(1, {"loss": 1.0, "nothing": float("nan")}, phase="fit", seed=seed)
    for name in ("fit", "fit-seed3"):
        (events,) = (tmp_path / "tensorboard" / name).iterdir()
        assert b"loss" in events.read_bytes() and b"nothing" not in events.read_bytes()


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "0:05"), (125, "2:05"), (3725, "1:02:05")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
