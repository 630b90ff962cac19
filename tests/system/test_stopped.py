"""SIGTERM: everything is saved, the run leaves with status 4 and says how it goes on, and does."""

import re

import pytest

from tests.system.starting import CONFIG, EVERY_STEP, assert_same, checkpoints, ended, lines, start

pytestmark = pytest.mark.multiprocess


def stopped_at(text, processes):
    """The step at which all processes left; each has said in one line how to go on."""
    said = [line for line in text.splitlines() if line.startswith("stopped by SIGTERM")]
    assert len(said) == processes, text
    steps = {int(re.search(r"saved at step (\d+)/\d+ of fit", line)[1]) for line in said}
    assert len(steps) == 1, f"they left at different steps:\n{text}"
    assert all(f"python -m tests.system.job --config={CONFIG}" in line for line in said)
    assert "Traceback" not in text
    return steps.pop()


def interrupt(workdir, *flags, processes):
    """SIGTERM from outside, in the middle, to the last of the processes; where they left."""
    before = checkpoints(workdir)[-1:]
    jobs = start(workdir, *flags, processes=processes, pace=0.2 if processes > 1 else 0.01)
    if processes > 1:  # the lock of the first process holds the directory for all
        jobs[0].until((workdir / "lock").exists, "a lock")
        refused = ended(start(workdir, *flags), 2)
        assert f"is in use by process {jobs[0].process.pid} on" in refused
    jobs[0].until(lambda: checkpoints(workdir)[-1:] > before, "a new checkpoint")
    jobs[-1].process.terminate()
    return stopped_at(ended(jobs, 4), len(jobs))


@pytest.mark.parametrize(
    ("processes", "scan", "moment"),
    [(0, 1, "compile"), (0, 10, "eval"), (1, 1, "eval"), (1, 10, "compile")],
)
def test_one_process_stops_in_compile_or_an_eval_and_then_anywhere(
    tmp_path, undisturbed, processes, scan, moment
):
    """The same run is stopped twice; nothing of it shows in its bits and lines.

    With processes=1 it has called jax.distributed, whose notifier hears the signal instead.
    """
    flags, workdir = [f"--config.scan={scan}"], tmp_path / "run"
    jobs = start(workdir, *flags, processes=processes, sigterm_in=moment)
    first = stopped_at(ended(jobs, 4), 1)
    assert checkpoints(workdir)[-1] == first
    if not processes:  # at once; JAX's notifier takes a moment longer
        assert first == {"compile": 0, "eval": 20}[moment]
        assert not any("valid/loss" in line for line in lines(workdir)), "the eval was cut short"
    assert first < interrupt(workdir, *flags, processes=processes) < 200
    ended(start(workdir, *flags, processes=processes), 0)
    assert_same(workdir, undisturbed(*flags))


def test_two_processes_stop_at_one_step_when_one_of_them_is_told(tmp_path, undisturbed):
    workdir = tmp_path / "run"
    assert 20 <= interrupt(workdir, *EVERY_STEP, processes=2) < 100
    ended(start(workdir, *EVERY_STEP, processes=2), 0)
    assert_same(workdir, undisturbed(*EVERY_STEP, processes=2))


def test_two_processes_with_ten_steps_a_call_stop_when_one_is_told_in_an_eval(
    tmp_path, undisturbed
):
    flags, workdir = ["--config.scan=10", "--config.steps=100"], tmp_path / "run"
    jobs = start(workdir, *flags, processes=2, sigterm_in=["", "eval"])
    step = stopped_at(ended(jobs, 4), 2)
    assert checkpoints(workdir)[-1] == step and 20 <= step < 100
    ended(start(workdir, *flags, processes=2), 0)
    assert_same(workdir, undisturbed(*flags, processes=2))
