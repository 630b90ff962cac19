"""A planted NaN or infinity: the exact step and leaf are named, the evidence reproduces it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.core.errors import DryRun, NotFinite, UserError
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.mesh import make_mesh
from rflib.train.task import Checkpoint, Options, Step
from tests.train.problems import Recorder, planted, regression, regression_step


def go(tmp_path, step, *, task=None, options=Options(), run=None, **arguments):  # noqa: B008
    task, run = task or regression(), run or Recorder(tmp_path, options)
    arguments = {"steps": 60, "log_every": 10, "checkpoint": Checkpoint(every=10), **arguments}
    fit(step, task.batch, run, data=task.data, mesh=make_mesh({"data": 1}), **arguments)
    return run


@pytest.mark.parametrize(
    ("scan", "where", "value"),
    [
        (1, "loss", np.inf),
        (10, "loss", np.nan),
        (1, "hidden/kernel", np.nan),
        (10, "hidden/kernel", np.inf),
    ],
)
def test_step_and_leaf_are_named_and_the_last_good_checkpoint_stays(tmp_path, where, scan, value):
    _, step = regression_step()
    bad = planted(step, 37, where, value)
    leaf = "metrics/loss" if where == "loss" else "state/params/hidden/kernel"
    run = Recorder(tmp_path)
    with pytest.raises(NotFinite, match=rf"step 37 is not finite: {leaf}.*step 30 is kept"):
        go(tmp_path, bad, scan=scan, run=run)
    record = json.loads((tmp_path / "phases/fit/nonfinite/record.json").read_text())
    assert record["step"] == 37 and leaf in record["leaves"]
    # The next start goes on from step 30 with mended code.
    go(tmp_path, step, scan=scan, run=run)
    assert any("resumed at step 30" in note for note in run.notes)


@pytest.mark.parametrize("scan", [1, 5])
def test_before_the_first_checkpoint(tmp_path, scan):
    _, step = regression_step()
    with pytest.raises(NotFinite, match=r"step 3 is not finite: metrics/loss; none is saved yet"):
        go(tmp_path, planted(step, 3, "loss"), scan=scan)
    assert not list(tmp_path.glob("phases/fit/checkpoints/[0-9]*"))


def poisoned(where: str, at: int):
    """A loss whose gradient in one leaf only is NaN at one step; the loss itself stays finite."""
    task = regression()

    @jax.custom_jvp
    def poison(x, hit):
        return x

    @poison.defjvp
    def _(primals, tangents):
        x, hit = primals
        return x, tangents[0] * jnp.where(hit, jnp.nan, 1.0)

    def loss(variables, batch, key):
        data, rows = batch
        layer, name = where.split("/")
        params = jax.tree.map(lambda x: x, variables["params"])
        params[layer][name] = poison(params[layer][name], rows["hit"])
        return task.loss({**variables, "params": params}, (data, rows["index"]), key)

    def batch(step):
        return {"index": task.batch(step), "hit": np.asarray(step == at)}

    return task._replace(loss=loss, batch=batch)


@pytest.mark.parametrize("scan", [1, 10])
def test_the_one_bad_gradient_leaf_is_named_even_behind_global_clipping(tmp_path, scan):
    task = poisoned("out/kernel", 23)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    with pytest.raises(NotFinite, match=r"step 23 is not finite: gradient/out/kernel, metrics/"):
        go(tmp_path, gradient_step(task, tx), task=task, scan=scan)


def test_replay_reproduces_from_what_the_run_wrote_and_says_when_it_is_mended(tmp_path):
    _, step = regression_step()
    with pytest.raises(NotFinite):
        go(tmp_path, planted(step, 37, "hidden/kernel"))
    for checkpoint in tmp_path.glob("phases/fit/checkpoints/*"):
        checkpoint.rename(tmp_path / checkpoint.name)  # the evidence alone is enough
    with pytest.raises(NotFinite, match=r"step 37 again gives state/params/hidden/kernel"):
        go(tmp_path, planted(step, 37, "hidden/kernel"), options=Options(replay=True))
    with pytest.raises(DryRun, match="step 37 is finite now"):
        go(tmp_path, step, options=Options(replay=True))


def counting(state, metrics):
    """A Step that counts in state["x"] and has the given further leaves and metrics."""

    def update(old, rows, key):
        return {**old, "x": old["x"] + 1}, metrics(old["x"])

    return Step(init=lambda key: {"x": jnp.zeros(()), **state()}, update=update)


def test_replay_takes_back_a_state_of_any_type(tmp_path):
    def state():
        keys = {"own": jax.random.key(3, impl="rbg"), "usual": jax.random.key(3)}
        return keys | {"low": jnp.full(3, 0.1, jnp.bfloat16), "none": None, "no": jnp.zeros((0, 4))}

    step = counting(state, lambda x: {"m": jnp.where(x == 12, jnp.nan, 1.0)})
    settings = {"steps": 20, "log_every": 10, "mesh": make_mesh({"data": 1})}
    with pytest.raises(NotFinite, match="step 12 is not finite: metrics/m"):
        fit(step, None, Recorder(tmp_path), **settings)
    with pytest.raises(NotFinite, match="step 12 again gives metrics/m"):
        fit(step, None, Recorder(tmp_path, Options(replay=True)), **settings)


def test_a_bad_metric_after_the_last_line_and_the_last_save_is_found(tmp_path):
    """The end need not be a multiple of any interval, and the state may never show it."""
    step = counting(dict, lambda x: {"m": jnp.where(x == 13, jnp.nan, 1.0)})
    with pytest.raises(NotFinite, match=r"step 13 is not finite: metrics/m; .* of step 12"):
        fit(
            step, None, Recorder(tmp_path), steps=15, log_every=10, mesh=make_mesh({"data": 1}),
            checkpoint=Checkpoint(every=4),
        )  # fmt: skip


def test_replay_without_a_record_or_of_other_code_is_an_error(tmp_path):
    _, step = regression_step()
    with pytest.raises(UserError, match="no non-finite step is recorded"):
        go(tmp_path, step, options=Options(replay=True))
    with pytest.raises(NotFinite):
        go(tmp_path, planted(step, 7, "loss"))
    _, other = regression_step(ema=0.5)
    with pytest.raises(UserError, match="ema/hidden/kernel"):
        go(tmp_path, other, options=Options(replay=True))


def test_skipped_updates_do_not_stop_a_run_until_their_bound(tmp_path):
    task = poisoned("out/kernel", 23)
    step = gradient_step(task, optax.adam(1e-2), skip_nonfinite=1)
    run = go(tmp_path / "a", step, task=task)
    assert run.lines[-1]["train/skipped_total"] == 1
    twice = task._replace(batch=lambda s: {**task.batch(s), "hit": np.asarray(s in (23, 41))})
    with pytest.raises(NotFinite, match="step 41 is not finite: gradient/out/kernel"):
        go(tmp_path / "b", gradient_step(twice, optax.adam(1e-2), skip_nonfinite=1), task=twice)


def test_a_state_that_overflows_without_a_metric_is_found(tmp_path):
    """A Step whose metrics never show the trouble: the state itself is looked at."""
    step = Step(
        init=lambda key: {"x": jnp.ones(()), "y": jnp.ones(3)},
        update=lambda state, rows, key: ({"x": state["x"] * 1e3, "y": state["y"]}, {"m": 1.0}),
    )
    with pytest.raises(NotFinite, match="step 12 is not finite: state/x"):  # 1e39 > 3.4e38
        fit(
            step, None, Recorder(tmp_path), steps=40, mesh=make_mesh({"data": 1}), log_every=10,
            checkpoint=Checkpoint(every=10),
        )  # fmt: skip


def test_one_bad_seed_is_found_among_many(tmp_path):
    _, step = regression_step()
    bad = planted(step, 17, "hidden/bias")

    def only_seed_two(state, batch, key):
        new, metrics = bad.update(state, batch, key)
        good, _ = step.update(state, batch, key)
        second = state["skipped"]
        return jax.tree.map(lambda a, b: jnp.where(second == 2, a, b), new, good), metrics

    def init(key):
        return {**step.init(key), "skipped": jnp.zeros((), jnp.int32)}

    def numbered(state, batch, key):
        data, rows = batch
        new, metrics = only_seed_two({**state, "skipped": rows["seed"]}, (data, rows["i"]), key)
        return {**new, "skipped": state["skipped"]}, metrics

    def batch(seed):
        return lambda s: {"i": regression().batch(s), "seed": np.asarray(seed, np.int32)}

    with pytest.raises(NotFinite, match="step 17 is not finite: state/"):
        fit(
            step._replace(init=init, update=numbered, inspect=None), [batch(s) for s in range(4)],
            Recorder(tmp_path), data=regression().data, steps=40, seeds=range(4), log_every=10,
            mesh=make_mesh({"data": 1}), checkpoint=Checkpoint(every=10),
        )  # fmt: skip
