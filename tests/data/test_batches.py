"""Batches as functions of (seed, step): laws over epochs, processes, padding."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rflib.core.errors import UserError
from rflib.data import in_order, masked_mean, pad_rows, permutation, shuffled

ONE = {"process": 0, "processes": 1}


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_only():
    first = permutation(1000, seed=3, epoch=5)
    np.testing.assert_array_equal(np.sort(first), np.arange(1000))
    np.testing.assert_array_equal(first, permutation(1000, seed=3, epoch=5))
    for other in (permutation(1000, seed=4, epoch=5), permutation(1000, seed=3, epoch=6)):
        assert np.mean(first == other) < 0.02


def test_orders_are_uniform_over_all_permutations():
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        order = tuple(permutation(4, seed=0, epoch=epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    chi_squared = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_squared < 49.7  # the 0.1 % point for 23 degrees of freedom


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_every_epoch_shows_each_example_at_most_once_and_wrapping_shows_all(
    count, batch, seed, drop_last
):
    if drop_last and batch > count:
        with pytest.raises(UserError, match=f"batch={batch}.*{count} examples.*drop_last"):
            shuffled(count, batch, seed=seed, drop_last=drop_last, **ONE)
        return
    rows = shuffled(count, batch, seed=seed, drop_last=drop_last, **ONE)
    stream = np.concatenate([rows(step) for step in range(3 * count)])
    assert stream.shape == (3 * count * batch,)
    seen = count // batch * batch if drop_last else count
    for epoch in range(3):
        np.testing.assert_array_equal(
            stream[epoch * seen : (epoch + 1) * seen],
            permutation(count, seed=seed, epoch=epoch)[:seen],
        )


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_shares_of_all_processes_joined_are_the_batch_of_one_process(drop_last, processes):
    whole = shuffled(101, 16, seed=7, drop_last=drop_last, **ONE)
    shares = [
        shuffled(101, 16, seed=7, drop_last=drop_last, process=process, processes=processes)
        for process in range(processes)
    ]
    for step in [0, 1, 5, 6, 7, 12, 100, 31]:  # also backwards: no cursor anywhere
        joined = np.concatenate([share(step) for share in shares])
        np.testing.assert_array_equal(joined, whole(step))


def test_a_far_step_is_the_one_that_counting_arrives_at():
    rows = shuffled(1000, 32, seed=1, **ONE)
    counted = [rows(step).copy() for step in range(200)]
    fresh = shuffled(1000, 32, seed=1, **ONE)
    np.testing.assert_array_equal(fresh(199), counted[199])
    begin = time.perf_counter()
    fresh(10**12)
    assert time.perf_counter() - begin < 0.05


def test_a_batch_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        shuffled(10, 5, seed=0, **ONE)(0)[0] = 3


def test_a_batch_takes_at_most_40_microseconds():
    rows = shuffled(8449, 128, seed=0, **ONE)  # the training windows of ETTh1

    def once() -> float:
        begin = time.perf_counter()
        for step in range(660):
            rows(step)
        return (time.perf_counter() - begin) / 660

    assert min(once() for _ in range(5)) < 40e-6


def test_sizes_and_places_that_do_not_fit_are_named():
    for arguments, message in [
        ({"count": 10, "batch": 3, "processes": 2, "process": 0}, "batch=3 .*processes=2"),
        ({"count": 10, "batch": 2, "processes": 2, "process": 2}, "process=2"),
        ({"count": 0, "batch": 2}, "count=0"),
        ({"count": 10, "batch": 0}, "batch=0"),
        ({"count": 10, "batch": 2, "seed": -1}, "seed=-1"),
    ]:
        with pytest.raises(UserError, match=message):
            shuffled(**{"seed": 0, **arguments})


@pytest.mark.parametrize("batch", [1, 7, 10, 16])
def test_evaluation_batches_have_one_shape_and_count_each_example_once(batch):
    rows = list(in_order(10, batch, **ONE))
    assert {row.indices.shape for row in rows} == {row.mask.shape for row in rows} == {(batch,)}
    np.testing.assert_array_equal(
        np.concatenate([row.indices[row.mask] for row in rows]), np.arange(10)
    )
    assert all(row.indices.min() >= 0 and row.indices.max() < 10 for row in rows)


def test_evaluation_can_drop_the_last_batch_and_follow_given_indices():
    order = np.array([5, 3, 9, 1, 0])
    rows = list(in_order(order, 2, drop_last=True, **ONE))
    np.testing.assert_array_equal(np.concatenate([row.indices for row in rows]), order[:4])
    assert all(row.mask.all() for row in rows)
    with pytest.raises(UserError, match="nothing to evaluate"):
        list(in_order(0, 4, **ONE))


def test_evaluation_shares_joined_are_the_whole():
    whole = list(in_order(11, 4, **ONE))
    halves = [list(in_order(11, 4, process=process, processes=2)) for process in (0, 1)]
    for all_rows, left, right in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(all_rows.indices, [*left.indices, *right.indices])
        np.testing.assert_array_equal(all_rows.mask, [*left.mask, *right.mask])


def test_nan_in_padding_reaches_neither_the_mean_nor_its_gradient():
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    padded, mask = pad_rows({"x": values}, 8, fill=np.nan)
    assert np.isnan(padded["x"][5:]).all()
    np.testing.assert_allclose(masked_mean(padded["x"], mask), values.mean(axis=0), rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(masked_mean(x, mask)))(jnp.asarray(padded["x"]))
    np.testing.assert_allclose(gradient, np.where(mask[:, None], 0.2, 0) * np.ones((8, 3)))


def test_padding_repeats_the_last_row_and_keeps_types():
    tree = {"x": np.arange(6.0, dtype=np.float32).reshape(3, 2), "y": np.array([1, 2, 3])}
    padded, mask = pad_rows(tree, 5)
    np.testing.assert_array_equal(padded["y"], [1, 2, 3, 3, 3])
    np.testing.assert_array_equal(mask, [True, True, True, False, False])
    assert padded["x"].dtype == np.float32
    assert pad_rows(tree, 3)[0]["x"].shape == (3, 2)
    for rows in (2, 0):
        with pytest.raises(UserError, match=f"rows={rows}"):
            pad_rows(tree, rows)
