"""The loop against a plain Python loop, resumption, early stopping, evals, options."""

import jax
import numpy as np
import optax
import pytest

from rflib.core import keys, trees
from rflib.core.errors import DryRun, UserError
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.mesh import make_mesh
from rflib.train.task import Checkpoint, EarlyStop, Eval, Hook, Options, Step
from tests.train.problems import Recorder, regression, regression_step

ONE = {"mesh": None}


@pytest.fixture
def mesh():
    return make_mesh({"data": 1})


def plain_loop(task, step: Step, steps: int, seed: int):
    """What fit must equal: init and updates with keys folded by name and step."""
    root = jax.random.key(seed)
    state = jax.jit(step.init)(keys.named(root, "init"))
    update = jax.jit(step.update)
    losses = []
    for i in range(steps):
        batch = (task.data, task.batch(i))
        state, metrics = update(state, batch, keys.named(root, "update", i))
        losses.append(float(metrics["loss"]))
    return state, losses


def test_fit_equals_a_plain_loop(tmp_path, mesh):
    task, step = regression_step()
    run = Recorder(tmp_path)
    result = fit(step, task.batch, run, data=task.data, steps=40, seed=3, mesh=mesh, log_every=10)
    state, losses = plain_loop(task, step, 40, 3)
    np.testing.assert_allclose(run.column("train/loss"), losses[9::10], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(result.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert result.step == 40 and result.reason == "steps"
