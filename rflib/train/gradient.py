"""`gradient_step`: the usual Step, one optimiser update of a Task's loss."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rflib.core import checks, keys, trees
from rflib.core.errors import UserError
from rflib.train.task import Aux, Batch, Key, Metrics, State, Step, Task

PyTree = Any
Trainable = str | Callable[[str], bool] | None


def gradient_step(
    task: Task,
    tx: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    accumulate_extra: bool = False,
    ema: float | None = None,
    trainable: Trainable = None,
    compute_dtype: Any = None,
    skip_nonfinite: int = 0,
) -> Step:
    """One optimiser update per step; its state is {"params", "extra", "opt", "ema", "skipped"}.

    Args:
      task: the learning problem. Its loss must average over `task.weight(batch)` examples.
      tx: the optimiser; clipping, schedules and decay are optax transformations inside it.
      accumulate: number of micro-batches the rows are cut into; the gradient equals that of the
        whole batch, for unequal weights too. Row r goes to micro-batch r mod `accumulate`.
      accumulate_extra: allow `accumulate > 1` for a task that updates `extra` (batch statistics);
        the statistics are then those of the micro-batches, one after the other.
      ema: decay in [0, 1) of the moving average of the parameters, ema <- decay*ema +
        (1 - decay)*params after each update, starting at the initial parameters; None for none.
      trainable: a regular expression searched in, or a predicate on, names like
        "encoder/kernel"; the other parameters keep their bits and have no optimiser state.
      compute_dtype: the loss sees parameters and floating-point rows in this dtype; gradients
        and master parameters keep the parameters' own.
      skip_nonfinite: how many updates with non-finite gradients may be left out in the whole run
        before one is let through, and so stops it.

    Returns:
      A Step whose metrics are "loss", "grad_norm", those of the loss, and with `skip_nonfinite`
      "skipped" (1 for a left-out update) and "skipped_total".

    Raises:
      UserError: on an argument out of range or a `trainable` that matches no parameter; at the
        first trace, on batch statistics with `accumulate > 1`.
    """
    checks.positive_int("accumulate", accumulate)
    checks.positive_int("skip_nonfinite", skip_nonfinite, zero=True)
    if ema is not None:
        checks.in_range("ema", ema, 0.0, 1.0, open_high=True)

    def init(key: Key) -> State:
        variables = task.init(key)
        params = variables["params"]
        learned, _ = _split(params, trainable)
        return {
            "params": params,
            "extra": variables.get("extra", {}),
            "opt": tx.init(learned),
            "ema": None if ema is None else jax.tree.map(jnp.copy, params),
            "skipped": jnp.zeros((), jnp.int32) if skip_nonfinite else None,
        }

    def gradients(state: State, batch: Batch, key: Key) -> tuple[Array, Aux, PyTree]:
        learned, frozen = _split(state["params"], trainable)

        def loss(learned: PyTree, extra: PyTree, batch: Batch, key: Key) -> tuple[Array, Aux]:
            params = _merge(learned, frozen)
            if compute_dtype is not None:
                params = trees.cast_floats(params, compute_dtype)
                batch = _map_rows(task, batch, lambda rows: trees.cast_floats(rows, compute_dtype))
            value, aux = task.loss({"params": params, "extra": extra}, batch, key)
            return value.astype(jnp.promote_types(value.dtype, jnp.float32)), aux

        grad = jax.value_and_grad(loss, has_aux=True)
        if accumulate == 1:
            (value, aux), grads = grad(learned, state["extra"], batch, key)
            return value, aux, grads
        return _accumulated(
            task, grad, learned, state["extra"], batch, key, accumulate, accumulate_extra
        )

    def update(state: State, batch: Batch, key: Key) -> tuple[State, Metrics]:
        value, aux, grads = gradients(state, batch, key)
        learned, frozen = _split(state["params"], trainable)
        updates, opt = tx.update(grads, state["opt"], learned)
        params = _merge(optax.apply_updates(learned, updates), frozen)
        extra = state["extra"] if aux.extra is None else aux.extra
        average = state["ema"]
        if ema is not None:
            decay = ema
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
        grad_norm = trees.global_norm(grads)
        new = {
            "params": params,
            "extra": extra,
            "opt": opt,
            "ema": average,
            "skipped": state["skipped"],
        }
        metrics = {"loss": value, "grad_norm": grad_norm, **aux.metrics}
        if not skip_nonfinite:
            return new, metrics
        finite = trees.all_finite((value, grads))
        skip = ~finite & (state["skipped"] < skip_nonfinite)
        new = jax.tree.map(lambda old, fresh: jnp.where(skip, old, fresh), state, new)
        new["skipped"] = state["skipped"] + skip
        return new, {**metrics, "skipped": skip, "skipped_total": new["skipped"]}

    def view(state: State) -> PyTree:
        return {name: state[name] for name in ("params", "extra", "ema")}

    def inspect(state: State, batch: Batch, key: Key) -> PyTree:
        return {"gradient": gradients(state, batch, key)[2]}

    return Step(init, update, view, inspect)


def _accumulated(
    task: Task,
    grad: Callable[..., Any],
    learned: PyTree,
    extra: PyTree,
    batch: Batch,
    key: Key,
    parts: int,
    accumulate_extra: bool,
) -> tuple[Array, Aux, PyTree]:
    """Weighted mean of loss, metrics and gradients over micro-batches of strided rows.

    Strided, since rows are sharded in contiguous blocks: each device cuts its own block.
    """

    def cut(rows: PyTree) -> PyTree:
        def one(leaf: Any) -> Array:
            if leaf.shape[0] % parts:
                raise UserError(f"accumulate={parts} does not divide the {leaf.shape[0]} rows")
            return jnp.swapaxes(leaf.reshape(-1, parts, *leaf.shape[1:]), 0, 1)

        return jax.tree.map(one, rows)

    if task.data is None:
        data, rows = None, cut(batch)
    else:
        data, rows = batch[0], cut(batch[1])

    def pair(part: PyTree) -> Batch:
        return part if data is None else (data, part)

    first = jax.tree.map(lambda leaf: leaf[0], rows)
    (loss_shape, aux_shape), grad_shape = jax.eval_shape(grad, learned, extra, pair(first), key)
    if aux_shape.extra is not None and not accumulate_extra:
        raise UserError(
            f"accumulate={parts} changes the batch statistics of this task, whose loss returns "
            "new `extra` variables; use accumulate=1, or accumulate_extra=True to accept it"
        )
    sums = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)),
        (loss_shape, dict(aux_shape.metrics), grad_shape),
    )

    def body(carry: PyTree, numbered: PyTree) -> tuple[PyTree, None]:
        sums, total, extra = carry
        number, part = numbered
        batch = pair(part)
        size = jax.tree.leaves(part)[0].shape[0]
        weight = jnp.asarray(size if task.weight is None else task.weight(batch), jnp.float32)
        (value, aux), grads = grad(learned, extra, batch, keys.named(key, number))
        new = (value, dict(aux.metrics), grads)
        # A micro-batch without examples may have an undefined mean: it must add nothing.
        sums = jax.tree.map(lambda s, x: s + jnp.where(weight > 0, weight * x, 0), sums, new)
        return (sums, total + weight, extra if aux.extra is None else aux.extra), None

    start = (sums, jnp.zeros((), jnp.float32), extra)
    numbers = jnp.arange(parts)
    (sums, total, new_extra), _ = jax.lax.scan(body, start, (numbers, rows))
    value, metrics, grads = jax.tree.map(
        lambda s, like: (s / total).astype(like.dtype),
        sums,
        (loss_shape, dict(aux_shape.metrics), grad_shape),
    )
    return value, Aux(metrics, None if aux_shape.extra is None else new_extra), grads


def _map_rows(task: Task, batch: Batch, change: Callable[[PyTree], PyTree]) -> Batch:
    return change(batch) if task.data is None else (batch[0], change(batch[1]))


def _split(params: PyTree, trainable: Trainable) -> tuple[PyTree, PyTree]:
    """(learned, frozen): copies of the tree in which the other part's leaves are None."""
    if trainable is None:
        return params, None
    if isinstance(trainable, str):
        try:
            pattern = re.compile(trainable)
        except re.error as error:
            raise UserError(f"trainable={trainable!r} is no regular expression: {error}") from error
        chosen = lambda name: pattern.search(name) is not None  # noqa: E731
    else:
        chosen = trainable
    mask = jax.tree_util.tree_map_with_path(lambda path, _: chosen(trees.path_name(path)), params)
    if not any(jax.tree.leaves(mask)):
        names = ", ".join(list(trees.named_leaves(params))[:8])
        raise UserError(f"trainable={trainable!r} matches no parameter; there are {names}")
    learned = jax.tree.map(lambda keep, leaf: leaf if keep else None, mask, params)
    frozen = jax.tree.map(lambda keep, leaf: None if keep else leaf, mask, params)
    return learned, frozen


def _merge(learned: PyTree, frozen: PyTree) -> PyTree:
    if frozen is None:
        return learned
    return jax.tree.map(
        lambda a, b: b if a is None else a, learned, frozen, is_leaf=lambda leaf: leaf is None
    )
