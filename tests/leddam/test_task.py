"""The forecasting Task (squared error of Leddam and its competitors) obeys the laws of a Task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.forecasting import models
from rflib.data import shuffled, windows
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.model import Leddam
from tests import laws

SIZES = {"n_series": 3, "seq_len": 12, "pred_len": 6}


def problem(module, loss="mse"):
    series = np.random.default_rng(0).normal(size=(80, 3)).cumsum(0).astype(np.float32) / 4
    batch = shuffled(60, 8, seed=3)
    return models.task(module, loss=loss, series=jnp.asarray(series), batch=batch)


@pytest.mark.parametrize("decompose_on", ["embedding", "series"])
def test_leddam(decompose_on):
    """Its BatchNorm makes the loss depend on the batch as a whole."""
    module = Leddam(
        **SIZES, d_model=16, period=8, n_layers=1, kernel_size=5, decompose_on=decompose_on
    )
    laws.verify_task(problem(module), batch_statistics=True)


def test_training_moves_the_running_statistics_and_a_forecast_only_reads_them():
    module = Leddam(**SIZES, d_model=16, period=8, n_layers=1, kernel_size=5)
    task, key = problem(module), jax.random.key(0)
    values, rows = task.init(key), task.batch(0)
    _, aux = task.loss(values, (task.data, rows), key)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), aux.extra, values["extra"])
    assert all(jax.tree.leaves(changed["batch_stats"]))
    # At the start the heads are flat, and the mean of what LayerNorm gives is 0: blocks are unseen.
    draw = np.random.default_rng(1).normal
    params = jax.tree.map(lambda leaf: leaf + 0.3 * draw(size=leaf.shape), values["params"])
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    view = {"params": params, "extra": aux.extra}
    x, _ = windows(task.data, rows, 12, 6)
    together = models.forecast(module, view, x)
    alone = jnp.concatenate([models.forecast(module, view, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_dlinear():
    laws.verify_task(problem(DLinear(**SIZES)))


def test_itransformer():
    module = ITransformer(**SIZES, d_model=16, d_ff=16, n_heads=2, n_layers=1, dropout=0.0)
    laws.verify_task(problem(module))
