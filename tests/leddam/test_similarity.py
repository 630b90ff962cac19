"""Similarity of a trend and of a rest to the series they come from (Leddam's supplement)."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.methods.leddam.similarity import dtw, dtw_similarity, spectral_similarity


def by_recursion(a: np.ndarray, b: np.ndarray) -> float:
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0
    for i, j in itertools.product(range(len(a)), range(len(b))):
        before = min(table[i, j], table[i, j + 1], table[i + 1, j])
        table[i + 1, j + 1] = abs(a[i] - b[j]) + before
    return table[-1, -1]


def over_all_paths(a: np.ndarray, b: np.ndarray, i: int = 0, j: int = 0) -> float:
    """The definition: the least cost among all monotone paths, each one walked."""
    steps = [(i + 1, j), (i, j + 1), (i + 1, j + 1)]
    ahead = [over_all_paths(a, b, *s) for s in steps if s[0] < len(a) and s[1] < len(b)]
    return abs(a[i] - b[j]) + (min(ahead) if ahead else 0.0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (6, 1), (4, 6), (6, 3)])
def test_dtw_is_the_least_cost_over_all_monotone_paths(rows, columns):
    rng = np.random.default_rng(rows * columns)
    a, b = rng.normal(size=(3, rows)), rng.normal(size=(3, columns))
    result = jax.jit(dtw)(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    expected = [over_all_paths(x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_allclose([by_recursion(x, y) for x, y in zip(a, b, strict=True)], expected)


def test_dtw_of_long_batched_walks_equals_the_recursion():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 2, 3, 60)).cumsum(-1)
    result = np.asarray(dtw(a.astype(np.float32), b.astype(np.float32)))
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(result[place], by_recursion(a[place], b[place]), rtol=1e-5)


def test_dtw_similarity_is_1_for_a_warped_copy_and_falls_with_a_gap_of_c_to_1_over_1_plus_c():
    raw = np.array([0.0, 0, 1, 2, 2, 3, 1, 1], np.float32)
    warped = np.array([0.0, 1, 1, 1, 2, 3, 3, 1], np.float32)
    assert float(dtw_similarity(raw, warped)) == 1.0
    flat = np.full((2, 40), 3.0, np.float32)
    gap = flat + np.array([[0.5], [-2.0]], np.float32)
    np.testing.assert_allclose(dtw_similarity(flat, gap), [1 / 1.5, 1 / 3], rtol=1e-6)


def test_a_narrower_kernel_gives_a_trend_closer_to_the_series():
    raw = np.random.default_rng(1).normal(size=(4, 50)).cumsum(-1)
    trends = [
        np.stack(
            [np.convolve(np.pad(row, k // 2, "edge"), np.full(k, 1 / k), "valid") for row in raw]
        )
        for k in (1, 5, 25)
    ]
    stacked = np.stack(trends).astype(np.float32)
    scores = np.asarray(dtw_similarity(np.stack([raw] * 3).astype(np.float32), stacked))
    np.testing.assert_allclose(scores[0], 1, rtol=1e-6)
    assert (np.diff(scores, axis=0) < 0).all()


T = 64
TIME = 2 * np.pi * np.arange(T) / T


def test_spectral_similarity_ignores_mean_scale_and_phase():
    rng = np.random.default_rng(2)
    raw = rng.normal(size=(3, T)).astype(np.float32)
    moved = 0.01 * np.roll(raw, 7, -1) + 5
    np.testing.assert_allclose(spectral_similarity(raw, moved), np.ones(3), rtol=1e-4)
    np.testing.assert_allclose(spectral_similarity(raw, -raw), np.ones(3), rtol=1e-6)


def test_spectral_similarity_of_two_waves_of_which_one_is_kept_in_closed_form():
    slow, fast = 3.0 * np.sin(2 * TIME), 4.0 * np.cos(9 * TIME + 0.3)
    raw = (slow + fast + 10).astype(np.float32)
    kept = np.stack([slow, fast, slow + fast, 0.5 * slow + fast]).astype(np.float32)
    expected = [0.6, 0.8, 1.0, (0.5 * 9 + 16) / np.hypot(1.5, 4) / 5]
    np.testing.assert_allclose(spectral_similarity(np.stack([raw] * 4), kept), expected, rtol=1e-4)


@pytest.mark.parametrize(("length", "share", "count"), [(64, 0.25, 8), (9, 0.25, 1), (30, 0.5, 8)])
def test_only_the_strongest_share_of_the_frequencies_above_0_counts(length, share, count):
    rng = np.random.default_rng(length)
    raw, part = (rng.normal(size=(length,)) + 3 for _ in range(2))
    one, other = (np.abs(np.fft.rfft(x))[1:] for x in (raw, part))
    top = np.argsort(-one)[:count]
    expected = one[top] @ other[top] / np.linalg.norm(one[top]) / np.linalg.norm(other[top])
    result = spectral_similarity(raw.astype(np.float32), part.astype(np.float32), share)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_a_part_without_amplitude_has_similarity_0():
    raw = np.sin(3 * TIME).astype(np.float32)
    assert float(spectral_similarity(raw, np.zeros(T, np.float32))) == 0.0
    assert float(spectral_similarity(np.zeros(T, np.float32), raw)) == 0.0


def test_parts_of_another_shape_and_shares_out_of_range_are_refused():
    raw = np.zeros((2, 8), np.float32)
    with pytest.raises(UserError, match=r"\[2, 7\].*\[2, 8\]"):
        dtw_similarity(raw, raw[:, :7])
    with pytest.raises(UserError, match=r"\[8\].*\[2, 8\]"):
        spectral_similarity(raw, raw[0])
    with pytest.raises(UserError, match=r"\[2, 8\] and \[3, 8\]"):
        dtw(raw, np.zeros((3, 8), np.float32))
    with pytest.raises(UserError, match=r"share=0 must lie in \(0, 1\]"):
        spectral_similarity(raw, raw, 0)
