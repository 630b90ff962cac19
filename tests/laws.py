"""Laws that every Task obeys, as one verifier."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rflib.core import keys, trees
from rflib.train import mesh as meshes
from rflib.train.gradient import gradient_step
from rflib.train.task import Task

SEED = 11


def verify_task(task: Task, *, batch_statistics: bool = False, random: bool = False) -> None:
    """Raises AssertionError unless `task` obeys the laws of a Task.

    batch_statistics: the loss depends on the batch as a whole, so that the laws about single rows
    (their order, their division into micro-batches) do not hold for it.
    random: the loss draws random numbers by position, which the order of rows would change.
    """
    key = jax.random.key(SEED)
    task = task._replace(init=jax.jit(task.init))
    variables = task.init(key)
    batch = _batch(task, 0)
    init_is_a_function_of_the_key(task, variables)
    batch_is_a_function_of_the_step(task)
    loss_is_finite_and_equal_under_jit(task, variables, batch, key)
    gradient_equals_central_differences(task, variables, batch, key)
    one_trace_serves_all_steps(task)
    devices_do_not_matter(task)
    scan_equals_single_updates(task)
    if not batch_statistics and not random:
        order_of_rows_does_not_matter(task, variables, key)
        accumulation_is_exact(task)


def _batch(task: Task, step: int, change: Any = lambda rows: rows) -> Any:
    rows = change(task.batch(step))
    return _paired(task, rows)


def _paired(task: Task, rows: Any) -> Any:
    return rows if task.data is None else (jax.tree.map(jnp.asarray, task.data), rows)


def init_is_a_function_of_the_key(task: Task, variables: Any) -> None:
    assert trees.digest(task.init(jax.random.key(SEED))) == trees.digest(variables)
    assert trees.digest(task.init(jax.random.key(SEED + 1))) != trees.digest(variables)
    assert set(variables) <= {"params", "extra"}


def batch_is_a_function_of_the_step(task: Task) -> None:
    first, later = trees.digest(task.batch(0)), trees.digest(task.batch(5))
    assert trees.digest(task.batch(0)) == first
    assert trees.digest(task.batch(5)) == later
    assert first != later


def loss_is_finite_and_equal_under_jit(task: Task, variables: Any, batch: Any, key: Any) -> None:
    eager, aux = task.loss(variables, batch, key)
    jitted, jitted_aux = jax.jit(task.loss)(variables, batch, key)
    assert eager.shape == () and np.isfinite(eager)
    np.testing.assert_allclose(eager, jitted, rtol=1e-4)
    for name, value in aux.metrics.items():
        np.testing.assert_allclose(value, jitted_aux.metrics[name], rtol=1e-3, err_msg=name)


def gradient_equals_central_differences(task: Task, variables: Any, batch: Any, key: Any) -> None:
    """Along three random directions, in double precision."""
    with jax.enable_x64(True):
        variables = trees.cast_floats(variables, jnp.float64)
        batch = jax.tree.map(jnp.asarray, trees.cast_floats(batch, np.float64))
        params, extra = variables["params"], variables.get("extra", {})

        @jax.jit
        def loss(params: Any) -> Any:
            return task.loss({"params": params, "extra": extra}, batch, key)[0]

        gradient = jax.jit(jax.grad(loss))(params)
        for number in range(3):
            direction = _direction(params, keys.named(key, "direction", number))
            slope = sum(
                float(jnp.vdot(g, d))
                for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
            )
            step = 1e-5
            ahead, behind = (
                loss(jax.tree.map(lambda p, d, s=s: p + s * d, params, direction))
                for s in (step, -step)
            )
            np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-7)


def _direction(params: Any, key: Any) -> Any:
    leaves, structure = jax.tree.flatten(params)
    parts = jax.random.split(key, len(leaves))
    noise = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(parts, leaves, strict=True)]
    length = trees.global_norm(noise)
    return jax.tree.unflatten(structure, [x / length for x in noise])


def one_trace_serves_all_steps(task: Task) -> None:
    step = gradient_step(task, optax.sgd(1e-3))
    chex.clear_trace_counter()
    update = jax.jit(chex.assert_max_traces(step.update, n=1))
    state = step.init(jax.random.key(SEED))
    for number in range(2):
        state, _ = update(state, _batch(task, number), jax.random.key(number))


def devices_do_not_matter(task: Task) -> None:
    """The loss on rows spread over all devices that divide them equals that on one device."""
    rows = task.batch(0)
    size = min(len(leaf) for leaf in jax.tree.leaves(rows))
    count = max(n for n in (1, 2, 4, 8) if n <= jax.device_count() and size % n == 0)
    losses = []
    for devices in (1, count):
        mesh = meshes.make_mesh({"data": devices})
        placed = meshes.place_rows(rows, mesh)
        data = jax.device_put(task.data, meshes.replicated(mesh))
        variables = jax.device_put(task.init(jax.random.key(SEED)), meshes.replicated(mesh))
        batch = placed if task.data is None else (data, placed)
        losses.append(jax.jit(task.loss)(variables, batch, jax.random.key(SEED))[0])
    np.testing.assert_allclose(*map(np.asarray, losses), rtol=1e-5)


def scan_equals_single_updates(task: Task) -> None:
    step = gradient_step(task, optax.sgd(1e-2))
    key = jax.random.key(SEED)
    rows = [task.batch(number) for number in range(3)]

    def body(state: Any, numbered: Any) -> Any:
        number, rows = numbered
        batch = _paired(task, rows)
        state, metrics = step.update(state, batch, keys.named(key, number))
        return state, metrics["loss"]

    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    _, together = jax.jit(lambda s, r: jax.lax.scan(body, s, (jnp.arange(3), r)))(
        step.init(key), stacked
    )
    state, single, call = step.init(key), [], jax.jit(body)
    for number, each in enumerate(rows):
        state, loss = call(state, (jnp.asarray(number), each))
        single.append(loss)
    np.testing.assert_allclose(together, np.stack(single), rtol=1e-5)


def order_of_rows_does_not_matter(task: Task, variables: Any, key: Any) -> None:
    order = np.random.default_rng(SEED).permutation(len(jax.tree.leaves(task.batch(0))[0]))
    turned = _batch(task, 0, lambda rows: jax.tree.map(lambda leaf: leaf[order], rows))
    call = jax.jit(task.loss)
    losses = [call(variables, batch, key)[0] for batch in (_batch(task, 0), turned)]
    np.testing.assert_allclose(*map(np.asarray, losses), rtol=1e-5)


def accumulation_is_exact(task: Task) -> None:
    size = len(jax.tree.leaves(task.batch(0))[0])
    parts = max(n for n in (1, 2, 4) if size % n == 0)
    assert parts > 1, "a batch of an even number of rows is needed"
    norms = []
    for accumulate in (1, parts):
        step = gradient_step(task, optax.sgd(1e-2), accumulate=accumulate)
        state = step.init(jax.random.key(SEED))
        _, metrics = jax.jit(step.update)(state, _batch(task, 0), jax.random.key(SEED))
        norms.append(np.asarray([metrics["loss"], metrics["grad_norm"]]))
    np.testing.assert_allclose(*norms, rtol=1e-5)
