"""Laws of the Checkpointer: what it gives back is what was saved, or it says why not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rflib.core import trees
from rflib.core.errors import NoCheckpoint, RflibError, UserError
from rflib.train import manifest
from rflib.train.checkpoint import Checkpointer
from rflib.train.mesh import make_mesh, replicated
from tests.places import open_to_others


class Moments(NamedTuple):
    mean: Any
    count: Any
    unused: Any = None


def example(mesh, seed: int = 0) -> dict[str, Any]:
    """A state with everything that a state may have: keys, NamedTuples, odd dtypes, no elements."""
    everywhere = replicated(mesh)
    spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    keys = jax.random.split(jax.random.key(seed), 8)
    values = jax.random.normal(keys[0], (16, 4))
    odd = [jnp.float16, jnp.bfloat16, jnp.complex64, jnp.int8, jnp.uint32, jnp.bool_, jnp.int4]
    return {
        "params": {"dense": {"kernel": jax.device_put(values, spread)}},
        "opt": (Moments(jax.device_put(values**2, spread), jax.device_put(seed, everywhere)), ()),
        "odd": [jax.device_put((values * 3).astype(dtype), everywhere) for dtype in odd],
        "special": jax.device_put(jnp.array([jnp.nan, -0.0, jnp.inf]), everywhere),
        "keys": jax.device_put(keys, spread),
        "other key": jax.device_put(jax.random.key(seed, impl="rbg"), everywhere),
        "empty": jax.device_put(jnp.zeros((0, 3)), everywhere),
        "none": None,
    }


def abstract(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def small(value: float) -> dict[str, jax.Array]:
    return {"w": jnp.full((300,), float(value)), "step": jnp.asarray(int(value))}


def saved(directory: Path, *steps: int, keep: int = 0) -> Path:
    with Checkpointer(directory, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, small(step))
    return directory


def restored(directory: Path, notes: list[str] | None = None) -> int | None:
    """The step that comes back, its content checked."""
    note = (notes if notes is not None else []).append
    with Checkpointer(directory, note=note) as checkpoints:
        found = checkpoints.restore(abstract(small(0)))
    if found is None:
        return None
    assert trees.digest(found[1]) == trees.digest(small(found[0]))
    return found[0]


def files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def python(code: str, *arguments: object, **environment: str) -> subprocess.Popen:
    """A process of one CPU device that can import rflib, with `python` code of its own."""
    root = Path(__file__).parents[2]
    variables = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(root)} | environment
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_every_kind_of_leaf_comes_back_bitwise_with_its_sharding(tmp_path):
    state = example(make_mesh())
    with Checkpointer(tmp_path / "new" / "deep") as checkpoints:
        assert checkpoints.restore(abstract(state)) is None
        checkpoints.save(3, state)
        step, back = checkpoints.restore(abstract(state))  # waits for the save by itself
    assert step == 3
    assert trees.digest(back) == trees.digest(state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for want, have in zip(jax.tree.leaves(state), jax.tree.leaves(back), strict=True):
        assert have.sharding.is_equivalent_to(want.sharding, want.ndim)
        assert have.dtype == want.dtype
    assert jax.random.uniform(back["other key"]) == jax.random.uniform(state["other key"])


@pytest.mark.parametrize(
    ("axes", "spec"),
    [({"data": 1}, PartitionSpec("data")), ({"data": 4, "model": 2}, PartitionSpec("model"))],
)
def test_restores_onto_another_topology(tmp_path, axes, spec):
    state, mesh = example(make_mesh()), make_mesh(axes)
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=NamedSharding(mesh, spec)
            if leaf.shape[:1] in ((16,), (8,))
            else replicated(mesh),
        ),
        state,
    )
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state, block=True)
        _, back = checkpoints.restore(target)
    assert trees.digest(back) == trees.digest(state)
    for want, have in zip(jax.tree.leaves(target), jax.tree.leaves(back), strict=True):
        assert have.sharding.is_equivalent_to(want.sharding, want.ndim)


def test_without_a_sharding_leaves_go_to_one_device(tmp_path):
    saved(tmp_path, 4)
    plain = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), small(0))
    with Checkpointer(tmp_path) as checkpoints:
        _, back = checkpoints.restore(plain)
    assert trees.digest(back) == trees.digest(small(4))


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    state = jax.device_put({"w": jnp.arange(500_000.0)}, replicated(make_mesh()))
    before, target = trees.digest(state), abstract(state)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda w: w * 0 - 1, tree), donate_argnums=0)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        for _ in range(3):
            state = overwrite(state)
        jax.block_until_ready(state)
        _, back = checkpoints.restore(target)
    assert trees.digest(back) == before


def test_works_under_a_transfer_guard(tmp_path):
    state = example(make_mesh())
    target = abstract(state)
    with jax.transfer_guard("disallow"), Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state, block=True)
        found = checkpoints.restore(target)
    assert trees.digest(found[1]) == trees.digest(state)


def test_keep_retains_the_newest_and_zero_all(tmp_path):
    assert names(saved(tmp_path / "two", 1, 2, 5, 9, keep=2)) == {"5", "9"}
    assert names(saved(tmp_path / "all", 1, 2, 5, 9, keep=0)) == {"1", "2", "5", "9"}
    # An earlier step, after a restore of an even earlier one, is never what `keep` deletes.
    assert names(saved(tmp_path / "all", 3, keep=2)) == {"3", "9"}


def test_retain_deletes_the_good_steps_that_are_not_named(tmp_path):
    saved(tmp_path, 1, 2, 3, 4)
    (tmp_path / "4" / manifest.NAME).unlink()
    with Checkpointer(tmp_path, keep=0) as checkpoints:
        assert checkpoints.good_steps() == [1, 2, 3]
        checkpoints.retain({2, 7})
        assert checkpoints.good_steps() == [2]
    assert names(tmp_path) == {"2", "4"}, "a damaged step is evidence, not rubbish"


def test_saving_a_step_again_changes_nothing_unless_it_is_damaged(tmp_path):
    saved(tmp_path, 1)
    before = (tmp_path / "1").stat().st_ino
    for _ in range(2):
        with Checkpointer(tmp_path) as checkpoints:
            checkpoints.save(1, small(1), block=True)
            checkpoints.save(1, small(1), block=True)
    assert (tmp_path / "1").stat().st_ino == before
    largest(tmp_path / "1").write_bytes(b"")
    saved(tmp_path, 1)
    assert names(tmp_path) == {"1", "bad-1-0"}
    assert restored(tmp_path) == 1


def test_replace_puts_a_new_state_in_the_place_of_a_good_one(tmp_path):
    saved(tmp_path, 1, 2)
    other = {"w": jnp.zeros(300), "step": jnp.asarray(5)}
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(2, other, replace=True)
        _, back = checkpoints.restore(abstract(other))
    assert trees.digest(back) == trees.digest(other)
    assert names(tmp_path) == {"1", "2"}


def largest(step: Path) -> Path:
    """The largest file of orbax: an array's data."""
    data = [path for path in step.rglob("*") if path.is_file() and path.name != manifest.NAME]
    return max(data, key=lambda path: path.stat().st_size)


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


def truncate(step: Path) -> str:
    path = largest(step)
    os.truncate(path, path.stat().st_size // 2)
    return f"{path.name} has {path.stat().st_size} bytes where"


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


def test_a_reader_changes_nothing(tmp_path):
    saved(tmp_path, 1, 2)
    truncate(tmp_path / "2")
    (tmp_path / "3.saving.orbax-checkpoint-tmp").mkdir()
    before, notes = files(tmp_path), []
    with Checkpointer(tmp_path, readonly=True, note=notes.append) as checkpoints:
        assert checkpoints.restore(abstract(small(0)))[0] == 1
        with pytest.raises(UserError, match="read-only"):
            checkpoints.save(9, small(9))
    assert "passing over" in notes[0]
    assert files(tmp_path) == before
    assert names(tmp_path) == {"1", "2", "3.saving.orbax-checkpoint-tmp"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"w": "bfloat16[300]", "step": "int32[]"}, "w: float32[300] where bfloat16[300]"),
        ({"w": "float32[3,100]", "step": "int32[]"}, "w: float32[300] where float32[3,100]"),
        ({"w": "float32[300]"}, "step: int32[] is not expected"),
        (
            {"w": "float32[300]", "step": "int32[]", "ema/w": "float32[2]"},
            "ema/w: float32[2] is missing",
        ),
    ],
)
def test_another_tree_shape_or_dtype_is_a_readable_difference(tmp_path, target, said):
    saved(tmp_path, 1, 2)
    tree: dict[str, Any] = {}
    for name, kind in target.items():
        dtype, shape = kind[:-1].split("[")
        dims = tuple(int(dim) for dim in shape.split(",") if dim)
        tree[name] = jax.ShapeDtypeStruct(dims, dtype)
    with Checkpointer(tmp_path) as checkpoints, pytest.raises(UserError) as error:
        checkpoints.restore(tree)
    assert said in str(error.value)
    assert str(tmp_path / "2") in str(error.value)
    assert error.value.status == 2
    assert names(tmp_path) == {"1", "2"}, "other code is no damage"


def test_another_key_implementation_is_a_difference(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"key": jax.random.key(0, impl="rbg")}, block=True)
        with pytest.raises(UserError, match=r"key: key<rbg>\[\] where key<fry>\[\]"):
            checkpoints.restore(abstract({"key": jax.random.key(0)}))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": 1.5}, "a=1.5 is no jax.Array"),
        ({"a": np.ones(3)}, "is no jax.Array"),
        ({}, "nothing to save"),
        ({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, "one name"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, tree, said):
    with Checkpointer(tmp_path / "new") as checkpoints, pytest.raises(UserError, match=said):
        checkpoints.save(1, tree)
    assert not (tmp_path / "new").exists()


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


def test_saving_a_small_state_blocks_well_under_100_ms(tmp_path):
    everywhere = replicated(make_mesh())
    state = {f"w{i}": jax.device_put(jnp.ones(64), everywhere) for i in range(60)}
    blocked = []
    with Checkpointer(tmp_path) as checkpoints:
        for step in range(6):
            checkpoints.wait()
            start = time.perf_counter()
            checkpoints.save(step, state)
            blocked.append(time.perf_counter() - start)
    assert min(blocked) < 0.1, blocked


AGREE = """
    import os, sys
    from pathlib import Path
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec
    from rflib.core.errors import NoCheckpoint
    from rflib.train.checkpoint import Checkpointer
    from rflib.train import mesh as meshes
    meshes.initialize_distributed()
    mesh, index, where = meshes.make_mesh(), jax.process_index(), Path(sys.argv[1])
    rows = meshes.place_rows({"x": np.full((2, 3), index, np.float32)}, mesh)
    state = rows | {"step": jax.device_put(np.int32(1), meshes.replicated(mesh))}
    target = jax.eval_shape(lambda: state)
    target = jax.tree.map(lambda a, x: a.update(sharding=x.sharding), target, state)
    with Checkpointer(where, note=lambda text: print("NOTE", text)) as checkpoints:
        assert checkpoints.restore(target) is None
        for step in (1, 2):
            checkpoints.save(step, state)
            checkpoints.save(step, state)
        checkpoints.wait()
        if index == 0:
            (where / "2" / "manifest.json").unlink()
        step, back = checkpoints.restore(target)
        print("STEP", step, meshes.host_value(back)["x"][:, 0].tolist())
        if index == 0:
            (where / "1" / "manifest.json").unlink()
        try:
            checkpoints.restore(target)
        except NoCheckpoint as error:
            print("NONE", error)
"""


@pytest.mark.multiprocess
def test_two_processes_agree_on_the_step(tmp_path):
    port = str(20000 + os.getpid() % 20000)
    children = [
        python(
            AGREE,
            tmp_path,
            JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(index),
        )
        for index in range(2)
    ]
    try:
        outs = [child.communicate(timeout=120)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    for child, out in zip(children, outs, strict=True):
        assert child.returncode == 0, out
        assert "STEP 1 [0.0, 0.0, 1.0, 1.0]" in out
        assert out.count("NONE no checkpoint in") == 1
    assert [out.count("NOTE") for out in outs] == [2, 0]
