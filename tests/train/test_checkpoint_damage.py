"""Checkpoints that are damaged, and writers that fail or are killed: found, named, survived."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rflib.core.errors import NoCheckpoint, RflibError, UserError
from rflib.train import manifest
from rflib.train.checkpoint import Checkpointer
from tests.places import open_to_others
from tests.spawn import python
from tests.train.checkpoints import (
    abstract,
    files,
    largest,
    names,
    restored,
    saved,
    small,
    truncate,
)


def test_one_flipped_bit_in_any_file_is_found_and_named(tmp_path):
    origin = saved(tmp_path / "origin", 1, 2)
    found = files(origin / "2")
    assert len(found) > 5
    for number, name in enumerate(found):
        copy = tmp_path / str(number)
        shutil.copytree(origin, copy)
        content = bytearray((copy / "2" / name).read_bytes())
        if not content:
            continue  # a marker without content has no bit
        content[len(content) * 2 // 3] ^= 4
        (copy / "2" / name).write_bytes(content)
        notes: list[str] = []
        assert restored(copy, notes) == 1
        assert names(copy) == {"1", "bad-2-0"}
        assert len(notes) == 1
        assert name in notes[0]
        assert (copy / "bad-2-0" / name).read_bytes() == content, "what is bad is kept as it is"


def empty(step: Path) -> str:
    shutil.rmtree(step)
    step.mkdir()
    return "no manifest.json"


def delete(step: Path) -> str:
    path = largest(step)
    path.unlink()
    return f"{path.name} is missing"


def without_manifest(step: Path) -> str:
    (step / manifest.NAME).unlink()
    return "no manifest.json"


def half_a_manifest(step: Path) -> str:
    path = step / manifest.NAME
    os.truncate(path, path.stat().st_size // 2)
    return "manifest.json cannot be read"


def forged_signature(step: Path) -> str:
    text = (step / manifest.NAME).read_text()
    (step / manifest.NAME).write_text(text.replace("float32[300]", "float32[301]"))
    return "manifest.json has changed"


def a_file_instead(step: Path) -> str:
    shutil.rmtree(step)
    step.write_text("not a directory")
    return "manifest.json"


DAMAGES = [
    empty,
    truncate,
    delete,
    without_manifest,
    half_a_manifest,
    forged_signature,
    a_file_instead,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_set_aside_and_walked_past(tmp_path, damage):
    saved(tmp_path, 1, 2, 3)
    said = damage(tmp_path / "3")
    notes: list[str] = []
    assert restored(tmp_path, notes) == 2
    assert said in notes[0]
    assert "bad-3-0" in notes[0]
    assert names(tmp_path) == {"1", "2", "bad-3-0"}
    saved(tmp_path, 3)
    assert restored(tmp_path) == 3


def test_no_good_step_left_is_an_error_every_time_and_deletes_nothing(tmp_path):
    saved(tmp_path, 1, 2)
    for step in ("1", "2"):
        truncate(tmp_path / step)
    before = len(files(tmp_path))
    for _ in range(2):
        with pytest.raises(NoCheckpoint, match="nothing was deleted") as error:
            restored(tmp_path)
        assert error.value.status == 5
    assert names(tmp_path) == {"bad-1-0", "bad-2-0"}
    assert len(files(tmp_path)) == before


def test_a_given_step_is_restored_or_refused(tmp_path):
    saved(tmp_path, 1, 2, 3)
    truncate(tmp_path / "2")
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.restore(abstract(small(0)), step=1)[0] == 1
        for step in (2, 7):
            with pytest.raises(NoCheckpoint, match=f"step {step} "):
                checkpoints.restore(abstract(small(0)), step=step)
    assert names(tmp_path) == {"1", "3", "bad-2-0"}


def test_set_aside_never_reuses_a_name(tmp_path):
    for _ in range(3):
        saved(tmp_path, 1)
        with Checkpointer(tmp_path) as checkpoints:
            checkpoints.set_aside(1, "its best view is lost")
    shutil.rmtree(tmp_path / "bad-1-0")
    saved(tmp_path, 1)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.set_aside(1, "again")
    assert names(tmp_path) == {"bad-1-0", "bad-1-1", "bad-1-2"}


def test_leftovers_of_a_killed_writer_are_no_steps_and_are_removed(tmp_path):
    saved(tmp_path, 1)
    for name in ("2.saving", "3.saving.orbax-checkpoint-tmp", "0.deleting"):
        shutil.copytree(tmp_path / "1", tmp_path / name)
    (tmp_path / "1e3").mkdir()
    (tmp_path / "007").mkdir()
    assert restored(tmp_path) == 1
    saved(tmp_path, 4)
    assert names(tmp_path) == {"1", "4", "1e3", "007"}


def test_only_leftovers_count_as_no_checkpoint_at_all(tmp_path):
    (tmp_path / "2.saving.orbax-checkpoint-tmp").mkdir()
    assert restored(tmp_path) is None


def test_killed_between_orbax_and_manifest_falls_back_to_the_step_before(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def die(*_: Any) -> None:
        raise SystemExit("killed")

    monkeypatch.setattr(manifest, "write", die)
    with Checkpointer(tmp_path) as checkpoints:
        monkeypatch.setattr(checkpoints, "_discard", lambda step: None)
        checkpoints.save(2, small(2))
        checkpoints._join()
    monkeypatch.undo()
    assert names(tmp_path) == {"1", "2.saving"}
    assert restored(tmp_path) == 1
    saved(tmp_path, 2)
    assert names(tmp_path) == {"1", "2"}


def test_a_manifest_vouches_for_all_files_and_itself(tmp_path):
    saved(tmp_path, 7)
    whole = json.loads((tmp_path / "7" / manifest.NAME).read_text())
    assert set(whole["content"]["files"]) == set(files(tmp_path / "7")) - {manifest.NAME}
    assert whole["content"]["signature"] == {"w": "float32[300]", "step": "int32[]"}
    assert manifest.verify(tmp_path / "7").step == 7


def test_saving_under_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    wrong = Checkpointer(tmp_path / "file" / "runs")
    with wrong, pytest.raises(UserError, match="Not a directory") as error:
        wrong.save(1, small(1))
    assert "step 1 was not saved" in str(error.value)


UNWRITABLE = """
    import os, sys
    from pathlib import Path
    import jax.numpy as jnp
    from rflib.train.checkpoint import Checkpointer
    from rflib.core.errors import UserError
    with Checkpointer(Path(sys.argv[2])) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(3)})  # whatever is imported late is imported here
    with Checkpointer(Path(sys.argv[1])) as checkpoints:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere
        try:
            checkpoints.save(2, {"w": jnp.ones(3)}, block=True)
        except UserError as error:
            print("ERROR", error)
"""


def test_an_unwritable_directory_is_one_clear_error(tmp_path):
    directory = saved(tmp_path / "runs", 1)
    open_to_others(tmp_path)
    directory.chmod(0o555)
    child = python(UNWRITABLE, directory, tmp_path / "scratch")
    out, _ = child.communicate(timeout=60)
    directory.chmod(0o755)
    assert child.returncode == 0, out
    assert out.count("ERROR") == 1
    assert "Permission denied" in out
    assert "the newest good step is 1" in out
    assert "Traceback" not in out
    assert restored(directory) == 1


DISK_FULL = """
    import resource, sys
    from pathlib import Path
    import jax, jax.numpy as jnp
    from rflib.train.checkpoint import Checkpointer
    from rflib.core.errors import UserError
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = lambda seed: {"w": jax.random.normal(jax.random.key(seed), (200_000,))}
    with Checkpointer(Path(sys.argv[1])) as checkpoints:
        checkpoints.save(1, noise(1), block=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        checkpoints.save(2, noise(2))
        try:
            checkpoints.wait()
        except UserError as error:
            print("ERROR", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        print("GOOD", checkpoints.good_steps(), sorted(p.name for p in Path(sys.argv[1]).iterdir()))
        checkpoints.save(3, noise(3), block=True)
        print("GOOD", checkpoints.good_steps())
"""


def test_a_write_that_fails_is_one_clear_error_and_costs_no_checkpoint(tmp_path):
    child = python(DISK_FULL, tmp_path)
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 0, out
    assert out.count("ERROR step 2 was not saved") == 1
    assert "File too large" in out
    assert "the newest good step is 1" in out
    assert "Traceback" not in out
    assert "GOOD [1] ['1']" in out, "the failed save leaves nothing behind"
    assert "GOOD [1, 3]" in out


KILLED = """
    import itertools, sys
    from pathlib import Path
    import jax.numpy as jnp
    from rflib.train.checkpoint import Checkpointer
    with Checkpointer(Path(sys.argv[1]), keep=2) as checkpoints:
        for step in itertools.count(int(sys.argv[2])):
            checkpoints.save(step, {"w": jnp.full((300,), float(step)), "step": jnp.asarray(step)})
"""


def test_sigkill_at_any_moment_leaves_a_usable_directory(tmp_path):
    random, newest = np.random.default_rng(0), 0
    for _ in range(4):
        child = python(KILLED, tmp_path, newest + 1)
        while (
            not (tmp_path / str(newest + 1)).exists() and not (tmp_path / str(newest + 2)).exists()
        ):
            assert child.poll() is None, child.communicate()[0]
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        with Checkpointer(tmp_path) as checkpoints:
            good = checkpoints.good_steps()
        notes: list[str] = []
        step = restored(tmp_path, notes)
        assert step == good[-1]
        assert step > newest
        assert notes == [], "a kill is no damage"
        newest = step


def test_an_error_on_its_way_is_not_hidden_by_a_failed_save(tmp_path):
    notes: list[str] = []

    def note(text: str) -> None:  # writes where nothing can be written any more
        notes.append(text)
        raise UserError("log.txt cannot be written")

    with pytest.raises(KeyError), Checkpointer(tmp_path, note=note) as checkpoints:
        checkpoints.save(1, small(1), block=True)
        shutil.rmtree(tmp_path)
        tmp_path.write_text("the disk is gone")
        with pytest.raises(UserError):
            checkpoints.save(2, small(2))
        checkpoints._error = RflibError("late")
        checkpoints._pending = type("Done", (), {"join": lambda self: None})()
        raise KeyError("the cause")
    assert len(notes) == 1
    assert "late" in notes[0]
