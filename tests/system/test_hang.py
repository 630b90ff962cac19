"""A step that never ends: status 6 with the stacks of all threads, and the run can go on."""

import pytest

from tests.system.starting import assert_same, checkpoints, ended, start

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize(
    ("trouble", "place"),
    [("batch_hangs_at", "in batch"), ("callback_hangs_at", "in <lambda>")],
    ids=["batch", "callback"],
)
def test_a_run_that_hangs_leaves_with_its_stacks_and_goes_on(tmp_path, undisturbed, trouble, place):
    """In Python code, or in a callback of the compiled step while the main thread waits for it."""
    flags, workdir = ["--config.steps=100", "--config.hang=3"], tmp_path / "run"
    text = ended(start(workdir, *flags, **{trouble: 50}), 6)
    report = (workdir / "phases/fit/hang.txt").read_text()
    assert report.startswith("hung: no step for ") and "hung: no step for " in text
    assert place in report and "job.py" in report and "in fit" in report
    assert checkpoints(workdir)[-1] == 40
    ended(start(workdir, *flags), 0)
    assert_same(workdir, undisturbed("--config.steps=100"))
