"""SIGKILL at random moments: the run ends bit by bit as if it had never been killed."""

import random
import time

import pytest

from tests.system.starting import assert_same, checkpoints, ended, lines, noted, results, start

pytestmark = pytest.mark.multiprocess


def kill_one(workdir, *flags, generator, resuming, **settings):
    """Kills a new start some time after its first checkpoint, or after it went on from one."""
    before, starts = checkpoints(workdir)[-1:], noted(workdir, "resumed at step")
    (job,) = start(workdir, *flags, pace=0.01, **settings)
    if resuming:
        job.until(lambda: noted(workdir, "resumed at step") > starts, "it went on")
    else:
        job.until(lambda: checkpoints(workdir)[-1:] > before, "a new checkpoint")
    time.sleep(generator.uniform(0, 0.4))
    assert job.kill() == -9, job.text
    assert checkpoints(workdir) and not (workdir / "DONE").exists()


@pytest.mark.parametrize(
    ("variant", "scan", "kills"), [("default", 1, 4), ("stopping", 10, 3)], ids=["steps", "early"]
)
def test_a_run_killed_again_and_again_equals_an_undisturbed_one(
    tmp_path, undisturbed, variant, scan, kills
):
    """Same bits of the last state and the best view, same lines, same last step."""
    flags, generator = [f"--config.scan={scan}"], random.Random(scan)
    reference, workdir = undisturbed(*flags, variant=variant), tmp_path / "run"
    for kill in range(kills):
        kill_one(workdir, *flags, generator=generator, resuming=kill % 2, variant=variant)
    ended(start(workdir, *flags, variant=variant), 0)
    assert_same(workdir, reference)
    assert noted(workdir, "taken over") == kills, "the lock of a dead process holds nobody up"
    if variant == "stopping":
        assert results(workdir)["metrics"]["ended"].startswith("early stop")
        assert lines(workdir)[-1]["step"] < 1000
