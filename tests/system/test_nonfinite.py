"""A NaN in a whole run: status 3, the step and the leaf named, reproduced, mended, gone on from."""

import pytest

from tests.system.starting import assert_same, checkpoints, command_line, here, noted

pytestmark = pytest.mark.multiprocess

ONE = {"mesh": {"data": 1}}


@pytest.mark.parametrize(
    ("scan", "where", "leaf"),
    [(1, "loss", "metrics/loss"), (10, "hidden/kernel", "state/params/hidden/kernel")],
)
def test_a_nan_ends_the_run_and_replay_reproduces_it(tmp_path, capfd, scan, where, leaf):
    flags, workdir = [f"--config.scan={scan}", "--config.steps=100"], tmp_path / "run"
    bad = {"nan at": 57, "nan in": where}
    here(workdir, *flags, status=3, **ONE, **bad)
    said = capfd.readouterr().err
    assert f"step 57 is not finite: {leaf}" in said and "step 40 is kept" in said
    assert "NotFinite" in (workdir / "FAILED").read_text()
    assert checkpoints(workdir)[-1] == 40

    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    command_line(f"--replay={workdir}", status=3, **ONE, **bad)
    assert f"step 57 again gives {leaf}" in capfd.readouterr().err
    command_line(f"--replay={workdir}", **ONE)  # mended code
    assert "step 57 is finite now" in capfd.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*")} == before

    here(workdir, *flags, **ONE)
    assert noted(workdir, "resumed at step 40") == 1 and not (workdir / "FAILED").exists()
    assert_same(workdir, here(tmp_path / "whole", *flags, **ONE))
