"""Laws of the Checkpointer: what it gives back is what was saved; what it keeps and refuses."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.train import manifest
from rflib.train.checkpoint import Checkpointer
from rflib.train.mesh import make_mesh, replicated
from tests.spawn import together
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
    outs = together(AGREE, tmp_path)
    for out in outs:
        assert "STEP 1 [0.0, 0.0, 1.0, 1.0]" in out
        assert out.count("NONE no checkpoint in") == 1
    assert [out.count("NOTE") for out in outs] == [2, 0]
