"""The tables of a dry run say what the arrays and programs really hold."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rflib.core import trees
from rflib.train.dry import human_bytes, memory_estimate, parameter_table


@pytest.fixture
def state():
    return {
        "params": {"kernel": jnp.ones((16, 24)), "bias": jnp.ones((3,), jnp.bfloat16)},
        "count": jnp.int32(0),
        "key": jax.random.key(0),
    }


def test_one_line_a_leaf_and_the_totals_of_all(state):
    lines = parameter_table(jax.eval_shape(lambda: state)).splitlines()
    assert len(lines) == 2 + len(jax.tree.leaves(state)) + 1
    rows = {line.split()[0]: line for line in lines}
    assert "float32[16,24]" in rows["params/kernel"] and "384" in rows["params/kernel"]
    assert "1.5 KiB" in rows["params/kernel"] and "6 B" in rows["params/bias"]
    assert f"{trees.size(state):,}" in rows["total"]
    assert human_bytes(trees.nbytes(state)) in rows["total"]


def test_with_shardings_the_total_is_what_one_device_holds(state):
    mesh = Mesh(jax.devices(), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda leaf: everywhere, state)
    shardings["params"]["kernel"] = NamedSharding(mesh, PartitionSpec(None, "data"))
    placed = jax.device_put(state, shardings)
    arrays = [trees.raw(leaf) for leaf in jax.tree.leaves(placed)]
    held = sum(array.addressable_shards[0].data.nbytes for array in arrays)
    lines = parameter_table(state, shardings).splitlines()
    assert lines[-1].endswith(f"{human_bytes(held)} a device")
    assert held < trees.nbytes(state)
    kernel = next(line for line in lines if line.startswith("params/kernel"))
    assert kernel.endswith("(None, 'data')")


def test_columns_line_up(state):
    header, _, *rows, _ = parameter_table(state).splitlines()
    start, end = header.index("array"), header.index("scalars") + len("scalars")
    for (name, leaf), row in zip(trees.named_leaves(state).items(), rows, strict=True):
        assert row[start:].startswith(trees.signature(leaf)[""]) and row[:start].strip() == name
        assert row[:end].endswith(f" {trees.size(leaf):,}")


def test_an_empty_tree_has_a_total_of_nothing():
    assert parameter_table({}).splitlines()[-1].split() == ["total", "0", "0", "B"]


def test_donated_arguments_are_not_counted_twice():
    array = jax.ShapeDtypeStruct((1024, 256), jnp.float32)  # 1 MiB

    def estimate(**donation):
        return memory_estimate(jax.jit(lambda x: x + 1, **donation).lower(array).compile())

    assert estimate().startswith("memory a device: 2.0 MiB = arguments 1.0 MiB + outputs 1.0 MiB")
    donated = estimate(donate_argnums=0)
    assert donated.startswith("memory a device: 1.0 MiB = arguments 1.0 MiB + outputs 0 B")


def test_a_backend_without_an_estimate_is_no_error(monkeypatch):
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    monkeypatch.setattr(type(compiled), "memory_analysis", lambda self: None)
    assert "no estimate" in memory_estimate(compiled)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_bytes_in_the_largest_unit_that_fits(count, text):
    assert human_bytes(count) == text
