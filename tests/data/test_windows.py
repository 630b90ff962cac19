"""Windows, parts and standardisation against slicing by hand."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rflib.core.errors import UserError
from rflib.data import (
    Part,
    at_rows,
    by_share,
    fit_standardiser,
    random_split,
    starts,
    window_count,
    windows,
)

STREAM = np.random.default_rng(0)


def test_windows_equal_slices_by_hand_in_and_outside_jit():
    series = STREAM.normal(size=(50, 3)).astype(np.float32)
    first = np.array([0, 7, 33, 7, 38], np.int32)  # 38 is the last possible
    for cut in (windows, jax.jit(windows, static_argnums=(2, 3))):
        x, y = cut(jax.numpy.asarray(series), first, 8, 4)
        assert (x.shape, y.shape) == ((5, 8, 3), (5, 4, 3))
        for row, start in enumerate(first):
            np.testing.assert_array_equal(x[row], series[start : start + 8])
            np.testing.assert_array_equal(y[row], series[start + 8 : start + 12])


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20))
def test_window_count_is_the_number_of_slices_that_fit(rows, seq_len, pred_len):
    fitting = sum(start + seq_len + pred_len <= rows for start in range(rows))
    if fitting:
        assert window_count(rows, seq_len, pred_len) == fitting
    else:
        with pytest.raises(UserError, match=f"{rows} rows are too few.*need {seq_len + pred_len}"):
            window_count(rows, seq_len, pred_len)


def test_starts_cover_a_part_and_nothing_else():
    first = starts(Part(10, 30), 8, 4)
    np.testing.assert_array_equal(first, np.arange(10, 19))
    assert first[-1] + 8 + 4 == 30


@settings(deadline=None)
@given(st.integers(30, 5000), st.integers(0, 20))
def test_shares_of_a_series_are_consecutive_with_look_back_and_use_every_row(length, look_back):
    parts = by_share(length, look_back)
    assert parts.train == Part(0, int(length * 0.7))
    assert parts.valid.start == parts.train.stop - look_back
    assert parts.test.start == parts.valid.stop - look_back
    assert parts.test.stop == length
    assert length - parts.valid.stop == int(length * 0.2)


def test_parts_that_make_no_sense_are_refused():
    for call, message in [
        (lambda: at_rows(5, 5, 9, 2), "train=5, valid=5, test=9"),
        (lambda: at_rows(5, 7, 9, 6), "look_back=6"),
        (lambda: by_share(100, 2, train=0.9, test=0.2), "train=0.9"),
        (lambda: window_count(10, 0, 1), "seq_len=0"),
    ]:
        with pytest.raises(UserError, match=message):
            call()


def test_random_parts_are_disjoint_whole_and_of_the_asked_sizes():
    parts = random_split(103, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(103))
    assert [len(part) for part in parts.values()] == [82, 11, 10]
    again = random_split(103, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=0)
    other = random_split(103, {"train": 0.8, "valid": 0.1, "test": 0.1}, seed=1)
    np.testing.assert_array_equal(parts["test"], again["test"])
    assert not np.array_equal(parts["test"], other["test"])
    for shares, message in [({"a": 0.5, "b": 0.6}, "sum to 1"), ({"a": 0.999, "b": 0.001}, "'b'")]:
        with pytest.raises(UserError, match=message):
            random_split(10, shares, seed=0)


def test_standardised_training_rows_have_mean_0_and_population_deviation_1():
    rows = STREAM.normal(5, 3, size=(200, 4))
    standardiser = fit_standardiser(rows)
    result = standardiser.apply(rows)
    np.testing.assert_allclose(result.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose((result**2).sum(axis=0) / 200, 1, rtol=1e-12)  # ddof 0


def test_inverting_gives_back_batches_of_numpy_and_jax():
    standardiser = fit_standardiser(STREAM.normal(5, 3, size=(200, 4)))
    batch = STREAM.normal(size=(2, 6, 4)).astype(np.float32)
    np.testing.assert_allclose(standardiser.invert(standardiser.apply(batch)), batch, atol=1e-12)
    there = jax.jit(standardiser.apply)(jax.numpy.asarray(batch))
    np.testing.assert_allclose(standardiser.invert(there), batch, atol=2e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1])
def test_a_constant_channel_becomes_0_and_stays_finite(value):
    rows = np.column_stack([np.full(1001, value), STREAM.normal(size=1001)])
    result = fit_standardiser(rows).apply(rows)
    np.testing.assert_allclose(result[:, 0], 0, atol=0)
    assert np.isfinite(result).all()


def test_a_small_deviation_on_a_small_mean_is_no_constant():
    rows = 1e-9 * STREAM.normal(size=(100, 1))
    np.testing.assert_allclose(fit_standardiser(rows).apply(rows).std(), 1, rtol=1e-9)
