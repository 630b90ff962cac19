"""Means over padded batches, one compilation, and the laws of a Task on a small one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rflib.core import errors
from rflib.core.errors import UserError
from rflib.train import compiled
from rflib.train.evaluation import Tracker, over_batches
from rflib.train.mesh import make_mesh
from rflib.train.task import EarlyStop, Eval
from tests import laws
from tests.train.problems import regression

KEY = jax.random.key(0)


def test_a_small_regression_obeys_the_laws_of_a_task():
    laws.verify_task(regression())


def test_the_laws_catch_tasks_that_break_them():
    task = regression()
    impure = iter(range(100))
    with pytest.raises(AssertionError):
        laws.verify_task(task._replace(batch=lambda step: task.batch(next(impure))))

    def summed(variables, batch, key):
        value, aux = task.loss(variables, batch, key)
        return value * len(batch[1]), aux

    with pytest.raises(AssertionError):
        laws.accumulation_is_exact(task._replace(loss=summed))


@pytest.mark.parametrize("batch", [1, 7, 37, 64])
@pytest.mark.parametrize("devices", [None, 1])
def test_the_mean_does_not_depend_on_the_batch_and_padding_never_leaks(batch, devices):
    x = np.random.default_rng(0).normal(size=37).astype(np.float32)
    x[0] = 3.0  # the row that pads

    def measure(view, rows):
        return {"square": view * rows["x"] ** 2, "inverse": 1 / rows["x"]}

    mesh = None if devices is None else make_mesh({"data": devices})
    run = over_batches(measure, {"x": x}, batch=batch, mesh=mesh)
    found = run(jnp.float32(2), KEY)
    assert found["square"] == pytest.approx(2 * np.mean(x.astype(np.float64) ** 2), rel=1e-6)
    assert found["inverse"] == pytest.approx(np.mean(1 / x.astype(np.float64)), rel=1e-5)


def test_rows_spread_over_eight_devices_give_the_same_mean():
    x = np.arange(37, dtype=np.float32)
    run = over_batches(lambda v, r: {"x": r[1] * r[0]}, x, batch=16, data=np.float32(3),
                       mesh=make_mesh({"data": 8}))  # fmt: skip
    assert run(None, KEY)["x"] == pytest.approx(54.0)


def test_measurements_must_be_one_value_a_row():
    run = over_batches(lambda view, rows: {"mean": jnp.mean(rows)}, np.ones(4), batch=2)
    with pytest.raises(UserError, match=r"'mean' has shape \(\)"):
        run(None, KEY)
    with pytest.raises(UserError, match="common length"):
        over_batches(lambda view, rows: {}, np.ones(0), batch=2)


def test_a_second_signature_is_an_error_that_shows_it():
    call = compiled.once("double", lambda x: 2 * x, argument_names=("x",))
    assert float(call(jnp.ones(()))) == 2
    with pytest.raises(errors.Retraced, match=r"double .*\n  x: float32\[3\] where float32\[\]"):
        call(jnp.ones(3))


def evaluated(tracker: Tracker, step: int, *values: float) -> list[bool]:
    return tracker.update(step, [{"valid/loss": value} for value in values]).tolist()


def test_tracker_follows_each_seed_and_survives_its_arrays():
    evals = {"valid": Eval(lambda view, key: {}, every=1, best="max")}
    tracker = Tracker(evals, EarlyStop("valid", patience=2, ties=False), seeds=2)
    assert evaluated(tracker, 1, 0.1, 0.5) == [True, True]
    assert evaluated(tracker, 2, 0.1, 0.6) == [False, True]
    copy = Tracker(evals, EarlyStop("valid", patience=2, ties=False), seeds=2)
    copy.load(tracker.arrays())
    for each in (tracker, copy):
        assert evaluated(each, 3, np.nan, 0.6) == [False, False]
        assert each.active.tolist() == [False, True]
        assert evaluated(each, 4, 9.0, 0.7) == [False, True], "a stopped seed has no new best"
        assert each.step.tolist() == [1, 4] and each.value.tolist() == [0.1, 0.7]


def test_tracker_arguments_are_checked():
    plain = Eval(lambda view, key: {}, every=1)
    with pytest.raises(UserError, match=r"stop\.eval='valid'"):
        Tracker({"valid": plain}, EarlyStop("valid", 3), 1)
    with pytest.raises(UserError, match="best='least'"):
        Tracker({"valid": plain._replace(best="least")}, None, 1)
    with pytest.raises(UserError, match="only one eval"):
        Tracker({n: plain._replace(best="min") for n in "ab"}, None, 1)
    with pytest.raises(UserError, match="not the metric 'valid/loss'"):
        Tracker({"valid": plain._replace(best="min")}, None, 1).update(1, [{"valid/mse": 1.0}])
