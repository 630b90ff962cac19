"""One live writer for each run directory."""

import json

import pytest

from tests.system.starting import assert_same, checkpoints, ended, noted, start

pytestmark = pytest.mark.multiprocess


def test_a_run_in_progress_refuses_every_other_process(tmp_path, undisturbed):
    """One more process, two of jax.distributed: refused, and the run itself feels nothing of it.

    That a lock of two processes refuses too is in test_stopped.py, that the lock of a dead one is
    taken over in test_killed.py.
    """
    flags, workdir = ["--config.steps=100"], tmp_path / "run"
    (holder,) = start(workdir, *flags, pace=2.0, pace_from=20)
    holder.until(lambda: checkpoints(workdir), "a checkpoint")
    for processes in (0, 2):
        text = ended(start(workdir, *flags, processes=processes), 2)
        assert f"is in use by process {holder.process.pid} on" in text
        assert "Traceback" not in text
    assert json.loads((workdir / "lock").read_text())["pid"] == holder.process.pid
    holder.process.terminate()
    ended([holder], 4)
    assert not (workdir / "lock").exists()
    ended(start(workdir, *flags), 0)
    assert noted(workdir, "taken over") == 0
    assert_same(workdir, undisturbed(*flags))
