"""The loop against a plain Python loop, resumption, early stopping, evals, options."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rflib.core import errors, keys, trees
from rflib.core.errors import DryRun, Stopped, UserError
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.mesh import make_mesh
from rflib.train.study import study
from rflib.train.task import Cell, Checkpoint, EarlyStop, Eval, Hook, Options, Step, Study
from tests.train.problems import Recorder, regression, regression_step


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
    task = regression(noise=0.1)  # so that the key of each step matters
    step = gradient_step(task, optax.adam(1e-2))
    run = Recorder(tmp_path)
    result = fit(step, task.batch, run, data=task.data, steps=40, seed=3, mesh=mesh, log_every=10)
    state, losses = plain_loop(task, step, 40, 3)
    np.testing.assert_allclose(run.column("train/loss"), losses[9::10], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(result.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert result.step == 40 and result.reason == "steps"


def run_to(tmp_path, steps, mesh, *, options=Options(), seed=3, **kw):  # noqa: B008
    task, step = regression_step(**kw.pop("step", {}))
    run = kw.pop("run", None)
    run = Recorder(tmp_path, options) if run is None else run.reopened()
    arguments = {"log_every": 5, "evals": task.evals, "checkpoint": Checkpoint(every=10), **kw}
    result = fit(
        step, task.batch, run, data=task.data, steps=steps, seed=seed, mesh=mesh, **arguments
    )
    return run, result


class Halt(Exception):
    """Stands for the death of the process."""


def test_a_run_that_died_resumes_to_the_same_bits_and_lines(tmp_path, mesh):
    whole, expected = run_to(tmp_path / "a", 60, mesh)

    def die(info):
        if info.step == 35:
            raise Halt

    run = Recorder(tmp_path / "b")
    with pytest.raises(Halt):
        run_to(tmp_path / "b", 60, mesh, run=run, hooks=[Hook(die, 5)])
    run, result = run_to(tmp_path / "b", 60, mesh, run=run)
    assert trees.digest(result.state) == trees.digest(expected.state)
    assert trees.digest(result.best) == trees.digest(expected.best)
    assert run.lines == whole.lines
    assert result.metrics == expected.metrics
    assert any("resumed at step 30" in note for note in run.notes)


def test_a_finished_phase_comes_back_from_disk(tmp_path, mesh):
    evals = regression().evals | {"test": Eval(lambda view, key: {"mse": 0.5})}
    run, first = run_to(tmp_path, 40, mesh, evals=evals)
    lines = list(run.lines)
    assert lines[-1]["test/mse"] == 0.5
    run, again = run_to(tmp_path, 40, mesh, run=run, evals=evals)
    assert trees.digest(again.state) == trees.digest(first.state)
    assert trees.digest(again.best) == trees.digest(first.best)
    assert again.metrics == first.metrics and again.best_step == first.best_step
    assert run.lines == lines


def test_a_finished_phase_whose_last_checkpoint_is_damaged_is_finished_again(tmp_path, mesh):
    evals = regression().evals | {"test": Eval(lambda view, key: {"mse": 0.5})}
    run, first = run_to(tmp_path, 40, mesh, evals=evals)
    lines = list(run.lines)
    for file in (tmp_path / "phases/fit/checkpoints/40").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    run, again = run_to(tmp_path, 40, mesh, run=run, evals=evals)
    assert trees.digest(again.state) == trees.digest(first.state)
    assert again.metrics == first.metrics and run.lines == lines


@pytest.mark.parametrize("content", ["", '{"step": 40, "met'])
def test_a_torn_mark_of_the_end_is_written_anew(tmp_path, mesh, content):
    run, first = run_to(tmp_path, 40, mesh)
    lines, mark = list(run.lines), tmp_path / "phases/fit/done.json"
    mark.write_text(content)
    run, again = run_to(tmp_path, 40, mesh, run=run)
    assert trees.digest(again.state) == trees.digest(first.state) and run.lines == lines
    assert mark.read_text() != content and json.loads(mark.read_text())["step"] == 40


def test_scan_equals_single_calls(tmp_path, mesh):
    single, a = run_to(tmp_path / "a", 40, mesh, log_every=10)
    scanned, b = run_to(tmp_path / "b", 40, mesh, log_every=10, scan=10)
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(single.column("train/loss"), scanned.column("train/loss"), rtol=1e-6)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../other", "a\0b"])
def test_a_phase_has_the_name_of_a_directory_of_its_own(tmp_path, mesh, name):
    with pytest.raises(UserError, match="name="):
        run_to(tmp_path / "run", 10, mesh, name=name)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_key_can_have_is_refused(tmp_path, mesh, seed):
    with pytest.raises(UserError, match="seed="):
        run_to(tmp_path, 10, mesh, seed=seed)


def test_intervals_must_be_multiples_of_scan(tmp_path, mesh):
    with pytest.raises(UserError, match=r"scan=10.*log_every=5"):
        run_to(tmp_path, 40, mesh, scan=10)


def test_early_stop_keeps_the_best_view_and_stops_after_patience(tmp_path, mesh):
    values = [5.0, 4.0, 4.0, 4.5, 3.0, 3.5, 3.6, 9.0, 1.0]
    task, step = regression_step()
    seen = {}

    def run_eval(view, key):
        number = len(seen)
        seen[number] = trees.digest(view)
        return {"loss": values[number]}

    run = Recorder(tmp_path)
    result = fit(
        step, task.batch, run, data=task.data, steps=90, seed=0, mesh=mesh, log_every=10,
        evals={"valid": Eval(run_eval, every=10, best="min")},
        stop=EarlyStop("valid", patience=3),
    )  # fmt: skip
    assert result.reason == "early stop"
    assert (result.step, result.best_step, result.best_value) == (80, 50, 3.0)
    assert trees.digest(result.best) == seen[4]
    assert run.column("valid/loss") == values[:8]


@pytest.mark.parametrize(("ties", "best"), [(True, 30), (False, 20)])
def test_a_tie_is_an_improvement_only_if_told(tmp_path, mesh, ties, best):
    values = iter([5.0, 4.0, 4.0, 4.5])
    task, step = regression_step()
    evals = {"valid": Eval(lambda view, key: {"loss": next(values)}, every=10, best="min")}
    result = fit(
        step, task.batch, Recorder(tmp_path), data=task.data, steps=40, mesh=mesh, evals=evals,
        log_every=10, stop=EarlyStop("valid", patience=9, ties=ties),
    )  # fmt: skip
    assert result.best_step == best


def test_evals_at_the_end_see_the_best_view(tmp_path, mesh):
    values, seen = iter([2.0, 1.0, 3.0]), {}
    task, step = regression_step()

    def valid(view, key):
        value = next(values)
        seen[value] = trees.digest(view)
        return {"loss": value}

    def test(view, key):
        seen["test"] = trees.digest(view)
        return {"mse": 0.25}

    evals = {"valid": Eval(valid, every=10, best="min"), "test": Eval(test)}
    result = fit(
        step, task.batch, Recorder(tmp_path), data=task.data, steps=30, mesh=mesh, evals=evals,
        log_every=10,
    )  # fmt: skip
    assert seen["test"] == seen[1.0] and result.metrics == {"valid/loss": 3.0, "test/mse": 0.25}


@pytest.mark.parametrize("devices", [1, 8])
def test_seeds_in_one_program_equal_their_single_runs(tmp_path, mesh, devices):
    """Each with its own rows, best view and early stop; equal to 1e-4 after 60 steps."""
    seeds, singles = tuple(range(8)), []

    def early(task):
        # Held out: few rows, so that seeds stop at different steps.
        return {"valid": task.evals["valid"]._replace(every=5)}

    stop = EarlyStop("valid", patience=1, ties=False)
    task = regression()
    for seed in seeds:
        own = regression(seed=seed)
        step = gradient_step(own, optax.adam(5e-2))
        run = Recorder(tmp_path / f"single-{seed}")
        result = fit(
            step, own.batch, run, data=own.data, steps=60, seed=seed, mesh=mesh, log_every=5,
            evals=early(task), stop=stop,
        )  # fmt: skip
        singles.append((run, result))
    step = gradient_step(task, optax.adam(5e-2))
    together = Recorder(tmp_path / "together")
    result = fit(
        step, [regression(seed=s).batch for s in seeds], together, data=task.data, steps=60,
        seeds=seeds, mesh=make_mesh({"data": devices}), log_every=5, evals=early(task), stop=stop,
    )  # fmt: skip
    assert len({single.step for _, single in singles}) > 1, "the seeds must stop at different steps"
    assert result.step == max(single.step for _, single in singles)
    for i, (run, single) in enumerate(singles):
        np.testing.assert_allclose(together.column("train/loss", i), run.column("train/loss"), 1e-4)
        assert result.best_step[i] == single.best_step
        for a, b in ((result.state, single.state), (result.best, single.best)):
            for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
                np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-5)


def test_update_is_traced_once_and_never_transfers_implicitly(tmp_path, mesh):
    task, step = regression_step()
    traces = []

    def update(state, batch, key):
        traces.append(1)
        return step.update(state, batch, key)

    def guard(info):
        level = "allow" if info.step == 30 else "disallow"
        jax.config.update("jax_transfer_guard", level)

    fit(
        step._replace(update=update), task.batch, Recorder(tmp_path), data=task.data,
        steps=30, seed=1, mesh=mesh, log_every=10,
        hooks=[Hook(guard, 5)],
    )  # fmt: skip
    assert len(traces) == 1


def test_a_batch_of_another_shape_stops_the_run_with_the_difference(tmp_path, mesh):
    task, step = regression_step()
    batch = lambda i: task.batch(i)[: 8 if i == 12 else 16]  # noqa: E731
    with pytest.raises(errors.Retraced, match=r"rows: int32\[8\] where int32\[16\] is expected"):
        fit(step, batch, Recorder(tmp_path), data=task.data, steps=30, mesh=mesh)


def test_compile_stages_and_rates_are_logged_apart_from_metrics(tmp_path, mesh):
    run, _ = run_to(tmp_path, 40, mesh, flops=100.0)
    stages = {"trace_seconds", "lower_seconds", "compile_seconds"}
    assert any("first_call_seconds" in t for t in run.timings)
    assert stages <= run.timings[0].keys()
    rates = [t for t in run.timings if "steps_per_second" in t]
    assert all(t["examples_per_second"] == pytest.approx(16 * t["steps_per_second"]) for t in rates)
    assert all(t["flops_per_second"] == pytest.approx(1600 * t["steps_per_second"]) for t in rates)
    assert not any("second" in name for line in run.lines for name in line)


def test_dry_shows_table_memory_and_one_step_and_leaves_no_checkpoint(tmp_path, mesh):
    run = Recorder(tmp_path, Options(dry=True))
    with pytest.raises(DryRun):
        run_to(tmp_path, 40, mesh, run=run)
    text = "\n".join(run.notes)
    assert "params/hidden/kernel" in text and "memory" in text and "loss" in text
    assert not list(tmp_path.glob("phases/*/checkpoints/*")) and not run.lines


def test_profile_leaves_a_trace(tmp_path, mesh):
    run_to(tmp_path, 20, mesh, options=Options(profile=(5, 8)))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_steps_without_rows_and_steps_that_are_no_gradients(tmp_path, mesh):
    """A stream of simulations: any pytree of arrays, no batch."""
    step = Step(
        init=lambda key: {"total": jnp.zeros(()), "count": jnp.zeros((), jnp.int32)},
        update=lambda state, batch, key: (
            {
                "total": state["total"] + jax.random.normal(key),
                "count": state["count"] + 1,
            },
            {"mean": state["total"]},
        ),
    )
    result = fit(step, None, Recorder(tmp_path), steps=50, scan=10, log_every=10, mesh=mesh)
    assert int(result.state["count"]) == 50 and float(result.state["total"]) != 0
    many = fit(
        step, None, Recorder(tmp_path / "s"), steps=50, scan=10, log_every=10, seeds=(0, 5),
        mesh=mesh,
    )  # fmt: skip
    np.testing.assert_allclose(many.state["total"][0], result.state["total"], rtol=1e-6)


def test_more_steps_go_on_from_a_finished_phase(tmp_path, mesh):
    _, expected = run_to(tmp_path / "a", 60, mesh)
    run, _ = run_to(tmp_path / "b", 40, mesh)
    _, result = run_to(tmp_path / "b", 60, mesh, run=run)
    assert result.step == 60 and trees.digest(result.state) == trees.digest(expected.state)
    assert result.metrics == expected.metrics


def test_metrics_of_evals_before_a_stop_are_in_the_result_of_the_rest(tmp_path, mesh):
    evals = regression().evals | {"early": Eval(lambda view, key: {"one": 1.0}, every=30)}
    evals |= {"end": Eval(lambda view, key: {"two": 2.0})}
    halt = {"now": True}

    def end(view, key):
        if halt["now"]:
            raise Halt
        return {"two": 2.0}

    with pytest.raises(Halt):
        run_to(tmp_path, 40, mesh, evals=evals | {"end": Eval(end)})
    halt["now"] = False
    run = Recorder(tmp_path)
    run.lines = [{"phase": "fit"}] * 40  # as many as the first process wrote, or more
    _, result = run_to(tmp_path, 40, mesh, run=run, evals=evals | {"end": Eval(end)})
    assert set(result.metrics) == {"valid/loss", "early/one", "end/two"}


def test_fewer_steps_than_done_is_refused(tmp_path, mesh):
    run, _ = run_to(tmp_path, 40, mesh)
    (tmp_path / "phases/fit/done.json").unlink()
    with pytest.raises(UserError, match="steps=20 is less than the 40"):
        run_to(tmp_path, 20, mesh, run=run)


def test_a_changed_structure_is_a_readable_difference(tmp_path, mesh):
    run, _ = run_to(tmp_path, 20, mesh)
    with pytest.raises(UserError, match="ema/hidden/kernel"):
        run_to(tmp_path, 40, mesh, run=run, step={"ema": 0.9})


def test_a_damaged_best_view_sets_its_checkpoint_aside_too(tmp_path, mesh):
    evals = {"valid": Eval(lambda view, key: {"loss": 1.0}, every=10, best="max")}
    whole, expected = run_to(tmp_path / "a", 40, mesh, evals=evals, stop=EarlyStop("valid", 9))

    def die(info):
        if info.step == 35:
            raise Halt

    run = Recorder(tmp_path / "b")
    arguments = {"evals": evals, "stop": EarlyStop("valid", 9)}
    with pytest.raises(Halt):
        run_to(tmp_path / "b", 40, mesh, run=run, hooks=[Hook(die, 5)], **arguments)
    newest = max((tmp_path / "b/phases/fit/best").glob("[0-9]*"), key=lambda p: int(p.name))
    victim = max(newest.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    run, result = run_to(tmp_path / "b", 40, mesh, run=run, **arguments)
    assert any("best view, of step 30, is damaged" in note for note in run.notes)
    assert trees.digest(result.state) == trees.digest(expected.state)
    assert trees.digest(result.best) == trees.digest(expected.best)
    assert run.lines == whole.lines


@pytest.mark.parametrize("log_every", [7, 100])
def test_the_last_step_is_logged_whatever_the_interval(tmp_path, mesh, log_every):
    task = regression()
    step = gradient_step(task, optax.adam(1e-2))
    run = Recorder(tmp_path)
    fit(step, task.batch, run, data=task.data, steps=20, mesh=mesh, log_every=log_every, seed=3)
    steps = [line["step"] for line in run.lines if "train/loss" in line]
    assert steps == ([7, 14, 20] if log_every == 7 else [20])
    _, losses = plain_loop(task, step, 20, 3)
    np.testing.assert_allclose(run.column("train/loss"), [losses[i - 1] for i in steps], rtol=1e-5)


@pytest.mark.parametrize("halt", [None, 15, 20])
def test_the_step_of_an_early_stop_is_logged_also_if_its_eval_was_cut_off(tmp_path, mesh, halt):
    """SIGTERM within the eval of the step that turns out to be the last one."""
    values, halted = {10: 1.0, 20: 2.0}, []

    def valid(view, key):
        if halt == 20 and run.lines[-1]["step"] == 20 and not halted:
            halted.append(20)
            raise Stopped
        return {"loss": values[max(line["step"] for line in run.lines)]}

    def die(info):
        if halt == 15 and info.step == 15 and not halted:
            halted.append(15)
            raise Halt

    run = Recorder(tmp_path)
    arguments: dict[str, Any] = {
        "evals": {"valid": Eval(valid, every=10, best="min")}, "hooks": [Hook(die, 5)],
        "stop": EarlyStop("valid", 1), "log_every": 100, "checkpoint": Checkpoint(every=10),
    }  # fmt: skip
    if halt is not None:
        with pytest.raises((Halt, Stopped)):
            run_to(tmp_path, 90, mesh, run=run, **arguments)
    _, result = run_to(tmp_path, 90, mesh, run=run, **arguments)
    assert result.step == 20 and result.reason == "early stop"
    named = [(line["step"], "train/loss" in line) for line in run.lines]
    assert named == [(10, True), (10, False), (20, True), (20, False)]


def test_what_a_hook_logs_under_the_name_of_the_phase_survives_a_restart(tmp_path, mesh):
    def logging(last=None):
        def log(info):
            info.run.log(info.step, {"own": info.step}, phase="fit")
            if info.step == last:
                raise Halt

        return [Hook(log, 5)]

    whole, _ = run_to(tmp_path / "a", 40, mesh, hooks=logging())
    run = Recorder(tmp_path / "b")
    with pytest.raises(Halt):
        run_to(tmp_path / "b", 40, mesh, run=run, hooks=logging(35))
    run, _ = run_to(tmp_path / "b", 40, mesh, run=run, hooks=logging())
    assert run.lines == whole.lines


def test_a_second_phase_of_one_name_is_refused_and_a_resume_is_not(tmp_path, mesh):
    task, step = regression_step()
    run = Recorder(tmp_path)

    def go(run, steps, **more):
        return fit(step, task.batch, run, data=task.data, steps=steps, mesh=mesh, **more)

    go(run, 10)
    with pytest.raises(UserError, match="name='fit': this run has ended a phase of this name"):
        go(run, 10, seed=1)
    assert go(run, 20).step == 20  # goes on
    assert go(run, 10, name="other", seed=1).step == 10
    assert go(run.reopened(), 20).step == 20  # another session: told from disk
    table = Study([Cell("a", {})], lambda cell, key: {"x": 1.0})
    with pytest.raises(UserError, match="name='fit'"):
        study(table, run, name="fit", seed=0)
    study(table, run, seed=0)
    with pytest.raises(UserError, match="name='study'"):
        study(Study([Cell("b", {})], table.run), run, seed=0)
    study(Study([*table.cells, Cell("b", {})], table.run), run, seed=0)


@pytest.mark.parametrize("seeds", [None, (0, 1)])
def test_a_metric_that_is_no_number_is_named_with_its_shape(tmp_path, mesh, seeds):
    task, step = regression_step()

    def update(state, batch, key):
        state, metrics = step.update(state, batch, key)
        return state, {**metrics, "per_series": jnp.ones(3)}

    batch = task.batch if seeds is None else [task.batch] * 2
    said = r"metric 'per_series' of the step has the shape \(3,\)"
    with pytest.raises(UserError, match=said):
        fit(step._replace(update=update), batch, Recorder(tmp_path), data=task.data, steps=10,
            mesh=mesh, seeds=seeds)  # fmt: skip
    evals = {"valid": Eval(lambda view, key: {"mse": np.ones((2, 3))})}
    with pytest.raises(UserError, match=r"metric 'mse' of the eval 'valid' has the shape \(2, 3"):
        fit(step, batch, Recorder(tmp_path / "b"), data=task.data, steps=10, mesh=mesh,
            seeds=seeds, evals=evals)  # fmt: skip
