"""A disk that is full or read-only, at the start and in the middle of a run."""

import pytest

from tests.places import open_to_others
from tests.system.starting import CONFIG, assert_same, checkpoints, command_line, ended, start

pytestmark = pytest.mark.multiprocess

WIDE = ("--config.width=20000", "--config.steps=60")  # 1.2 MB of state


def failed(workdir, *flags, **job):
    """Runs into the trouble of `job` after step 30; the one line in which the run says so.

    (Around it, tensorstore's own threads may show that they found no one to tell.)
    """
    text = ended(start(workdir, *flags, **job), 2)
    said = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, text
    return said[0]


def test_a_full_disk_ends_the_run_and_with_room_again_it_goes_on(tmp_path, undisturbed):
    """No file may grow past 100 kB from step 30 on: lines still fit, checkpoints do not."""
    workdir = tmp_path / "run"
    said = failed(workdir, *WIDE, disk_full_at=30, largest_file=100_000)
    assert said.startswith("error: step 40 was not saved in ") and "(File too large" in said
    assert "the newest good step is 20" in said
    assert checkpoints(workdir) == [20] and not (workdir / "DONE").exists()
    names = {path.name for path in (workdir / "phases/fit/checkpoints").iterdir()}
    assert names == {"20"}, "what could not be written whole is gone: it took room"
    ended(start(workdir, *WIDE), 0)
    assert_same(workdir, undisturbed(*WIDE))


def test_a_directory_that_becomes_read_only_ends_the_run_with_the_last_checkpoint(
    tmp_path, undisturbed
):
    flags, workdir = ["--config.steps=100"], tmp_path / "run"
    open_to_others(tmp_path)
    said = failed(workdir, *flags, disk_read_only_at=30)
    (workdir / "phases/fit/checkpoints").chmod(0o755)
    assert said.startswith("error: step 40 was not saved in ") and "(Permission denied" in said
    assert "the newest good step is 20" in said and checkpoints(workdir) == [20]
    ended(start(workdir, *flags), 0)
    assert_same(workdir, undisturbed(*flags))


def test_a_workdir_that_cannot_be_made_is_refused_at_once(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    command_line(f"--config={CONFIG}", f"--workdir={tmp_path / 'file' / 'run'}", status=2)
    assert f"error: cannot write {tmp_path / 'file' / 'run'}: not a directory" in (
        capfd.readouterr().err
    )
