"""Naive forecasts: their definitions, and their known errors, which pin the whole data protocol."""

from functools import partial

import jax
import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.data import in_order
from rflib.methods.leddam.data import load
from rflib.methods.leddam.naive import naive_errors, naive_forecasts, repeat_season


def noise(rows: int, channels: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, channels)).round(4)


NAIVE = {  # mean squared error: repeat last, window mean, zero, repeat the last day
    ("ETTh1", 96): (1.2944, 0.7008, 1.1099, 0.5122),
    ("ETTh1", 720): (1.3351, 0.7116, 1.0972, 0.6554),
    ("ETTh2", 96): (0.4317, 0.3530, 3.1560, 0.3905),
    ("ETTh2", 720): (0.5945, 0.4510, 3.1127, 0.5255),
}
NAIVE_MAE = {("ETTh1", 96): 0.7132, ("ETTh2", 96): 0.4216}


def errors(data, batch: int = 256) -> dict:
    measure = partial(
        naive_errors, seq_len=data.seq_len, pred_len=data.pred_len, season=data.season, batch=batch
    )
    return jax.jit(measure)(jax.numpy.asarray(data.series), data.starts("test"))


@pytest.mark.parametrize(("name", "pred_len"), list(NAIVE))
def test_naive_forecasts_have_the_known_errors(data_file, name, pred_len):
    path = data_file(f"leddam/{name}.csv.gz")
    found = errors(load(name, path=path, pred_len=pred_len))
    names = ("repeat last", "window mean", "zero", "repeat season")
    for forecast, expected in zip(names, NAIVE[name, pred_len], strict=True):
        assert float(found[forecast]["mse"]) == pytest.approx(expected, abs=1e-3)
    if (name, pred_len) in NAIVE_MAE:
        expected = NAIVE_MAE[name, pred_len]
        assert float(found["repeat last"]["mae"]) == pytest.approx(expected, abs=1e-3)


def test_errors_do_not_depend_on_the_batch_size_but_on_dropped_windows():
    data = load("synthetic", rows=700, seq_len=24, pred_len=12, seed=1)
    first, series = data.starts("test"), jax.numpy.asarray(data.series)
    reference = errors(data, len(first))
    for batch in (1, 7, 128):
        for name, found in errors(data, batch).items():
            for metric, value in found.items():
                assert float(value) == pytest.approx(float(reference[name][metric]), rel=1e-6)
    # Dropping the last test batch, as older code bases do, loses windows and changes the number.
    batches = in_order(first, 128, drop_last=True, process=0, processes=1)
    kept = np.concatenate([rows.indices for rows in batches])
    assert len(kept) == 128 < len(first)
    dropped = naive_errors(series, kept, seq_len=24, pred_len=12, season=24)
    assert abs(dropped["zero"]["mse"] - reference["zero"]["mse"]) > 1e-3


def test_naive_forecasts_equal_their_definitions():
    x = noise(10 * 6, 2).reshape(6, 10, 2).astype(np.float32)
    table = naive_forecasts(10, 4)
    for name, expected in {
        "repeat last": np.repeat(x[:, 9:], 7, axis=1),
        "window mean": np.repeat(x.mean(axis=1, keepdims=True), 7, axis=1),
        "zero": np.zeros((6, 7, 2)),
        "repeat season": x[:, [6, 7, 8, 9, 6, 7, 8]],
    }.items():
        np.testing.assert_allclose(table[name](jax.numpy.asarray(x), 7), expected, atol=1e-6)
    assert "repeat season" not in naive_forecasts(10, 11)
    with pytest.raises(UserError, match="season=11"):
        repeat_season(jax.numpy.asarray(x), 7, 11)


def test_repeating_the_season_is_exact_for_a_periodic_series():
    series = np.tile(noise(12, 2).astype(np.float32), (20, 1))
    found = naive_errors(
        jax.numpy.asarray(series), np.arange(100), seq_len=24, pred_len=30, season=12, batch=32
    )
    assert float(found["repeat season"]["mse"]) == 0
    assert float(found["repeat last"]["mse"]) > 0.1
