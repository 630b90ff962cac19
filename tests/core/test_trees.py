"""Trees by name: paths, digests that see every bit, sizes, norms and readable differences."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import trees


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


@pytest.fixture
def tree():
    return {
        "params": {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.zeros(3)}},
        "opt": Pair(jnp.int32(4), [jnp.ones(2, jnp.bfloat16), jnp.array([True, False])]),
        "key": jax.random.key(1),
        "z": jnp.array([3 + 4j], jnp.complex64),
    }


def test_every_leaf_has_its_slash_separated_path_in_tree_order(tree):
    named = trees.named_leaves(tree)
    assert list(named) == [
        "key",
        "opt/first",
        "opt/second/0",
        "opt/second/1",
        "params/dense/bias",
        "params/dense/kernel",
        "z",
    ]
    assert all(a is b for a, b in zip(named.values(), jax.tree.leaves(tree), strict=True))


def test_a_digest_is_the_same_for_the_same_bits_wherever_they_lie(tree):
    copies = jax.tree.map(jnp.copy, tree)
    sharded = jax.device_put(tree, jax.devices()[-1])
    assert trees.digest(tree) == trees.digest(copies) == trees.digest(sharded)
    nan = {"x": np.array([np.nan, 1.0])}
    assert trees.digest(nan) == trees.digest({"x": np.array([np.nan, 1.0])})


def test_a_digest_sees_every_single_bit_of_an_array():
    array = np.array([1.5, -2.0], np.float32)
    seen = {trees.digest({"x": array})}
    for bit in range(64):
        flipped = np.frombuffer(array.tobytes(), np.uint64) ^ np.uint64(1 << bit)
        seen.add(trees.digest({"x": flipped.view(np.float32)}))
    assert len(seen) == 65


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": np.zeros(2)}, {"x": -np.zeros(2)}),
        ({"x": np.zeros(2)}, {"y": np.zeros(2)}),
        ({"x": np.zeros(2)}, {"x": np.zeros((2, 1))}),
        ({"x": np.zeros(2, np.int32)}, {"x": np.zeros(2, np.float32)}),
        ({"x": np.zeros(1)}, {"x": np.zeros(1), "y": np.zeros(0)}),
        ({"x": jax.random.key(0)}, {"x": jax.random.key(1)}),
    ],
    ids=["sign of zero", "name", "shape", "dtype", "an empty leaf", "key"],
)
def test_a_digest_tells_trees_apart_that_compare_equal_or_nearly_so(one, other):
    assert trees.digest(one) != trees.digest(other)


def test_a_digest_reads_transposed_views_by_their_values():
    array = np.arange(6.0).reshape(2, 3)
    assert trees.digest(array.T) == trees.digest(np.ascontiguousarray(array.T))


def test_sizes_and_bytes_of_real_and_abstract_trees_agree(tree):
    shapes = jax.eval_shape(lambda: tree)
    real = [trees.raw(leaf) for leaf in jax.tree.leaves(tree)]
    assert trees.nbytes(tree) == trees.nbytes(shapes) == sum(leaf.nbytes for leaf in real)
    assert trees.size(tree) == trees.size(shapes) == 6 + 3 + 1 + 2 + 2 + 1 + 1
    assert trees.size({}) == trees.nbytes({}) == 0


def test_kinds_of_leaves(tree):
    named = trees.named_leaves(tree)
    assert [name for name in named if trees.is_key(named[name])] == ["key"]
    floats = {"opt/second/0", "params/dense/bias", "params/dense/kernel", "z"}
    assert {name for name in named if trees.is_float(named[name])} == floats
    assert not trees.is_key(3) and not trees.is_float("text")


def test_the_global_norm_is_that_of_all_floats_laid_end_to_end(tree):
    flat = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree) if trees.is_float(leaf)]
    expected = np.linalg.norm(np.concatenate([leaf.astype(np.complex128) for leaf in flat]))
    np.testing.assert_allclose(trees.global_norm(tree), expected, rtol=1e-6)
    assert trees.global_norm({"count": jnp.int32(3)}) == 0


def test_the_global_norm_of_bfloat16_is_summed_in_float32():
    ones = {"x": jnp.ones(100_000, jnp.bfloat16)}  # a bfloat16 sum stops growing at 256
    norm = trees.global_norm(ones)
    assert norm.dtype == jnp.float32
    np.testing.assert_allclose(norm, np.sqrt(1e5), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_entry_in_any_float_leaf_makes_a_tree_not_finite(tree, value):
    assert trees.all_finite(tree) and trees.all_finite({})
    for name, leaf in trees.named_leaves(tree).items():
        if trees.is_float(leaf):
            planted = jax.tree_util.tree_map_with_path(
                lambda path, x, name=name: (
                    x.at[(-1,) * x.ndim].set(value) if trees.path_name(path) == name else x
                ),
                tree,
            )
            assert not trees.all_finite(planted), name


def test_casting_touches_real_floats_only(tree):
    before, after = trees.signature(tree), trees.signature(trees.cast_floats(tree, jnp.bfloat16))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"params/dense/bias", "params/dense/kernel"}
    assert after["params/dense/kernel"] == "bfloat16[2,3]"
    assert trees.cast_floats({"rate": 0.1}, jnp.bfloat16) == {"rate": 0.1}


def test_signatures_and_their_differences_read_well(tree):
    here = trees.signature(tree)
    assert here["params/dense/kernel"] == "float32[2,3]" and here["opt/first"] == "int32[]"
    assert here == trees.signature(jax.eval_shape(lambda: tree))
    assert trees.difference(here, here) == []
    other = dict(here) | {"new": "int32[]", "opt/first": "int32[2]"}
    del other["z"]
    assert trees.difference(here, other) == [
        "new: int32[] is not expected",
        "opt/first: int32[2] where int32[] is expected",
        "z: complex64[1] is missing",
    ]
