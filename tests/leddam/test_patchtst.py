"""PatchTST (Nie et al., ICLR 2023) against an independent numpy forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.patchtst import PatchTST, patches
from tests.leddam.forecasters import (
    FAST,
    draws,
    dropout_is_drawn_by_key,
    follows_scale_and_shift,
    initial,
    lin,
    shaken,
    shapes,
    silent_parameters,
    wide,
    windows,
)

# T = 13 with patches of 4 every 3: (13 + 3 - 4) / 3 + 1 = 5 patches, the last one over the end.
SMALL = PatchTST(3, 13, 5, d_model=8, d_ff=12, n_heads=2, n_layers=1, patch_len=4, stride=3)


def layer_norm(p: dict, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * wide(p["scale"]) + wide(p["bias"])


def numpy_layer(p: dict, x: np.ndarray, heads: int) -> np.ndarray:
    """x: [patches, D] of one series."""
    maps, feed_forward = p["attention"], p["feed_forward"]
    query, key, value = (lin(maps[name], x) for name in ("query", "key", "value"))
    width, mixed = x.shape[-1] // heads, np.zeros_like(x)
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        weights = np.exp(query[:, part] @ key[:, part].T / np.sqrt(width))
        mixed[:, part] = weights / weights.sum(-1, keepdims=True) @ value[:, part]
    x = layer_norm(p["attention_norm"], x + lin(maps["output"], mixed))
    hidden = lin(feed_forward["expand"], x)
    hidden = 0.5 * hidden * (1 + erf(hidden / 2**0.5))
    return layer_norm(p["output_norm"], x + lin(feed_forward["contract"], hidden))


def numpy_tokens(module: PatchTST, p: dict, series: np.ndarray) -> np.ndarray:
    """The encoder's tokens before the last BatchNorm, from one normalised series [T]."""
    padded = np.concatenate([series, np.full(module.stride, series[-1])])
    starts = range(0, len(padded) - module.patch_len + 1, module.stride)
    tokens = np.stack([padded[s : s + module.patch_len] for s in starts])
    tokens = tokens @ wide(p["embedding"]).T
    for t in range(tokens.shape[0]):
        for d in range(module.d_model):
            angle = t / 10000 ** ((d - d % 2) / module.d_model)
            tokens[t, d] += np.cos(angle) if d % 2 else np.sin(angle)
    for i in range(module.n_layers):
        tokens = numpy_layer(p[f"layers_{i}"], tokens, module.n_heads)
    return tokens


def numpy_patchtst(module: PatchTST, v: dict, x: np.ndarray, train: bool) -> np.ndarray:
    p, x = v["params"], x.astype(np.float64)
    mean, std = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
    normal = (x - mean) / std
    tokens = np.stack(
        [[numpy_tokens(module, p, normal[b, :, n]) for n in range(x.shape[2])] for b in range(4)]
    )
    stats = v["extra"]["batch_stats"]["norm"]
    centre = tokens.mean((0, 1, 2)) if train else wide(stats["mean"])
    spread = tokens.var((0, 1, 2)) if train else wide(stats["var"])
    tokens = (tokens - centre) / np.sqrt(spread + 1e-5)
    tokens = tokens * wide(p["norm"]["scale"]) + wide(p["norm"]["bias"])
    forecast = lin(p["head"], tokens.reshape(*tokens.shape[:2], -1))
    return forecast.transpose(0, 2, 1) * std + mean


@pytest.mark.parametrize("train", [False, True])
def test_patchtst_equals_the_equations_in_numpy_and_drops_out_in_training_only(train):
    module = SMALL.clone(dropout=0.0, n_layers=2) if train else SMALL
    assert module.dropout == (0.0 if train else 0.1)
    v, x = shaken(module), windows(module)
    got, extra = FAST(module, v, x, train=train)
    expected = numpy_patchtst(module, v, x, train)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())
    moved = np.abs(extra["batch_stats"]["norm"]["mean"] - v["extra"]["batch_stats"]["norm"]["mean"])
    assert (moved.min() > 0) if train else (moved.max() == 0)


@pytest.mark.parametrize(
    ("length", "size", "stride", "count"),
    [(96, 16, 8, 12), (103, 16, 8, 12), (10, 16, 8, 1), (5, 2, 3, 3), (1, 1, 1, 2)],
)
def test_patches_are_the_windows_that_fit_in_the_series_continued_by_stride_last_values(
    length, size, stride, count
):
    series = np.random.default_rng(0).normal(size=(2, length)).astype(np.float32)
    padded = np.pad(series, ((0, 0), (0, stride)), mode="edge")
    expected = np.lib.stride_tricks.sliding_window_view(padded, size, -1)[:, ::stride]
    assert expected.shape[1] == count == int((length - size) / stride + 2)
    got = jax.jit(patches, static_argnums=(1, 2))(jnp.asarray(series), size, stride)
    np.testing.assert_array_equal(got, expected)


def test_patchtst_forecasts_each_series_from_itself_alone_and_by_the_same_weights():
    v, x = shaken(SMALL), windows(SMALL)
    whole = np.asarray(FAST(SMALL, v, x)[0])
    poisoned = x.copy()
    poisoned[:, :, 1] = np.nan
    got = np.asarray(FAST(SMALL, v, poisoned)[0])
    assert np.isnan(got[:, :, 1]).all()
    np.testing.assert_array_equal(got[:, :, [0, 2]], whole[:, :, [0, 2]])
    order = np.array([2, 0, 1])
    permuted = FAST(SMALL, v, x[:, :, order])[0]
    np.testing.assert_allclose(permuted, whole[:, :, order], rtol=1e-5, atol=1e-5)


def test_patchtst_follows_scale_and_shift_of_each_series():
    assert follows_scale_and_shift(SMALL)
    assert not follows_scale_and_shift(SMALL.clone(instance_norm=False))


def test_patchtst_reads_the_last_value_even_where_it_only_pads():
    # T = 12: the last patch (9, 10, 11, then one repeated value) sees x_T twice.
    module = SMALL.clone(seq_len=12, instance_norm=False)
    v, x = shaken(module), windows(module)
    v["params"]["embedding"] = v["params"]["embedding"].at[:, :-1].set(0.0)
    base = np.asarray(FAST(module, v, x)[0])
    last, unread = x.copy(), x.copy()
    last[:, -1] += 1
    unread[:, -2] += 1  # no patch ends there: they end at 3, 6, 9 and 12, counted from 0
    assert np.abs(FAST(module, v, last)[0] - base).max() > 1e-3
    np.testing.assert_array_equal(FAST(module, v, unread)[0], base)


@pytest.mark.parametrize("n_series", [1, 7])
def test_patchtst_has_the_parameters_of_its_formula_for_any_number_of_series(n_series):
    module = PatchTST(n_series, 96, 96, n_layers=1, n_heads=2)
    d, ff = 512, 2048
    layer = 4 * (d * d + d) + (d * ff + ff) + (ff * d + d) + 2 * 2 * d
    count = 16 * d + layer + 2 * d + (12 * d + 1) * 96
    assert trees.size(shapes(module)["params"]) == count == 3751520
    assert trees.size(shapes(module)["extra"]) == 2 * d


def test_patchtst_starts_its_embedding_within_1_over_sqrt_of_the_patch_length():
    embedding = initial(SMALL)["params"]["embedding"]
    assert embedding.shape == (8, 4)
    assert 0.35 < float(np.abs(embedding).max()) <= 0.5


def test_patchtst_trains_every_parameter_and_traces_once():
    # A bias of the keys adds the same to all scores of a query, and the BatchNorm that follows the
    # last layer takes that layer's bias off again: their gradients are 0, or rounding.
    layer = "['layers_0']"
    cancelled = {f"{layer}['attention']['key']['bias']", f"{layer}['output_norm']['bias']"}
    assert set(silent_parameters(SMALL)) <= cancelled


def test_patchtst_drops_out_by_key_and_entries_of_the_forecast_which_become_the_mean():
    module = SMALL.clone(dropout=0.5)
    dropout_is_drawn_by_key(module)
    v, x = shaken(module), windows(module, batch=4)
    got = FAST(module, v, x, train=True, key=draws(0))[0]
    dropped = np.isclose(got, np.broadcast_to(x.mean(1, keepdims=True), got.shape), atol=1e-5)
    assert 0.3 < dropped.mean() < 0.7


def test_patchtst_refuses_impossible_sizes_when_it_is_made():
    for change, words in [
        ({"d_model": 30}, "d_model=30 must be a multiple of n_heads=8"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"stride": 0}, "stride=0"),
        ({"patch_len": 21}, "patch_len=21 must be at most seq_len \\+ stride = 20"),
    ]:
        with pytest.raises(UserError, match=words):
            PatchTST(3, 12, 7, **change)
