"""Evaluation: means over batches with a padded last one, the best view, and early stopping."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.train import compiled, preemption
from rflib.train import mesh as meshes
from rflib.train.program import Program, check_number
from rflib.train.task import EarlyStop, Eval, Key, Metrics

PyTree = Any


def over_batches(
    measure: Callable[[PyTree, Any], Mapping[str, Array]],
    rows: PyTree,
    *,
    batch: int,
    data: PyTree = None,
    mesh: Mesh | None = None,
) -> Callable[[PyTree, Key], Metrics]:
    """An `Eval.run`: the mean of per-row measurements over all of `rows`, in fixed-size batches.

    Args:
      measure: (view, rows) -> name -> values [batch]; with `data`, its second argument is the
        pair (data, rows). Compiled once: the last batch is padded with copies of the first row,
        whose values are masked out, so the result does not depend on `batch`.
      rows: arrays [M, ...], the same in every process, M >= 1.
      batch: rows a call; with a mesh, its data axis must divide it.
      data: arrays that stay on the device.
      mesh: spreads the rows over its data axis; None computes them replicated.

    SIGTERM is noticed between two batches.
    """
    checks.positive_int("batch", batch)
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(rows)}
    if len(sizes) != 1 or 0 in sizes:
        raise UserError(f"rows must be arrays with one common length of at least 1, not {sizes}")
    count = sizes.pop()

    def sums(view: PyTree, data: PyTree, part: PyTree, mask: Array) -> dict[str, Array]:
        values = measure(view, part if data is None else (data, part))
        for name, value in values.items():
            if value.shape != mask.shape:
                raise UserError(
                    f"measurement {name!r} has shape {value.shape}; one value a row, "
                    f"{mask.shape}, is expected"
                )
        return {name: jnp.sum(jnp.where(mask, value, 0)) for name, value in values.items()}

    call = compiled.once("eval", sums, argument_names=("view", "data", "rows", "mask"))
    placed = [] if data is None else [data]

    def run(view: PyTree, key: Key) -> Metrics:
        del key  # the measurements here are deterministic
        if placed and mesh is not None:
            placed[0] = jax.device_put(placed[0], meshes.replicated(mesh))
        totals = []
        for start in range(0, count, batch):
            index = np.arange(start, start + batch)
            mask = index < count
            part = jax.tree.map(lambda leaf: leaf[np.where(mask, index, 0)], rows)  # noqa: B023
            if mesh is not None:
                part, mask = meshes.place_rows(_own_share((part, mask)), mesh)
            totals.append(call(view, placed[0] if placed else None, part, mask))
            preemption.check()
        host = jax.device_get(totals)
        return {name: float(sum(float(t[name]) for t in host)) / count for name in host[0]}

    return run


def run(
    evals: Mapping[str, Eval], view: PyTree, program: Program, step: int
) -> list[dict[str, float]]:
    """Runs `evals` for each seed; returns "name/metric" -> value, one dictionary a seed."""
    found: list[dict[str, float]] = []
    for i in range(len(program.seeds)):
        one = jax.tree.map(lambda x, i=i: x[i], view) if program.stacked else view
        found.append({})
        for name, each in evals.items():
            metrics = each.run(one, program.eval_key(i, name, step))
            for metric, value in metrics.items():
                check_number(f"metric {metric!r} of the eval {name!r}", value)
            found[i] |= {f"{name}/{metric}": float(value) for metric, value in metrics.items()}
    return found


@functools.partial(jax.jit, static_argnames="stacked")
def keep_better(improved: Array, new: PyTree, old: PyTree, stacked: bool) -> PyTree:
    """The new view where its seed improved ([seeds] bool), in buffers of its own."""
    if old is None:
        return jax.tree.map(jnp.copy, new)

    def one(a: Array, b: Array) -> Array:
        mask = improved.reshape(-1, *[1] * (a.ndim - 1)) if stacked else improved[0]
        return jnp.where(mask, a, b)

    return jax.tree.map(one, new, old)


def _own_share(rows: PyTree) -> PyTree:
    """This process's contiguous part of rows that every process holds."""
    count, index = jax.process_count(), jax.process_index()
    return jax.tree.map(
        lambda leaf: leaf[len(leaf) * index // count : len(leaf) * (index + 1) // count], rows
    )


class Tracker:
    """The best value of one eval so far, for each seed, and when to stop. Lives in checkpoints."""

    def __init__(self, evals: Mapping[str, Eval], stop: EarlyStop | None, seeds: int):
        kept = [name for name, each in evals.items() if each.best is not None]
        if len(kept) > 1:
            raise UserError(f"only one eval can keep the best view; best is set on {kept}")
        for name in kept:
            checks.one_of(f"evals[{name!r}].best", evals[name].best, ("min", "max"))
            checks.positive_int(f"evals[{name!r}].every", evals[name].every)
        if stop is not None:
            checks.positive_int("stop.patience", stop.patience)
            checks.one_of("stop.eval", stop.eval, kept)
        self.eval = kept[0] if kept else None
        self._column = f"{kept[0]}/{evals[kept[0]].metric}" if kept else ""
        self._sign = -1.0 if kept and evals[kept[0]].best == "max" else 1.0
        self._stop = stop
        self.value = np.full(seeds, np.nan)
        self.step = np.full(seeds, -1, np.int64)
        self.stale = np.zeros(seeds, np.int64)
        self.active = np.ones(seeds, bool)
        self.running = True  # some seed is active; asked at every step
        self.saved = -1  # the step under which the best view was last saved
        self.evaluated = 0  # the last step whose evals are complete

    def update(self, step: int, metrics: Sequence[Metrics]) -> np.ndarray:
        """Takes the eval's metrics of each seed; returns which seeds improved. [seeds] bool."""
        for each in metrics:
            if self._column not in each:
                raise UserError(
                    f"eval {self.eval!r} gives {sorted(each)}, not the metric "
                    f"{self._column!r} that `best` asks for"
                )
        new, old = (
            self._sign * np.asarray(v, float)
            for v in ([float(each[self._column]) for each in metrics], self.value)
        )
        ties = self._stop is not None and self._stop.ties
        better = (new <= old) if ties else (new < old)
        improved = self.active & np.isfinite(new) & (np.isnan(old) | better)
        self.stale = np.where(improved, 0, self.stale + self.active)
        self.value = np.where(improved, self._sign * new, self.value)
        self.step = np.where(improved, step, self.step)
        if self._stop is not None:
            self.active = self.active & (self.stale < self._stop.patience)
            self.running = bool(self.active.any())
        if improved.any():
            self.saved = step
        return improved

    def arrays(self) -> dict[str, np.ndarray]:
        """The state to save. float64 values travel as their bits, since jax may not hold them."""
        return {
            "value_bits": self.value.astype(np.float64).view(np.uint32).reshape(-1, 2),
            "step": self.step.astype(np.int32),
            "stale": self.stale.astype(np.int32),
            "active": self.active,
            "saved": np.asarray(self.saved, np.int32),
            "evaluated": np.asarray(self.evaluated, np.int32),
        }

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Takes back what `arrays` gave."""
        host = {name: np.asarray(value) for name, value in arrays.items()}
        self.value = np.ascontiguousarray(host["value_bits"]).view(np.float64).reshape(-1).copy()
        self.step = host["step"].astype(np.int64)
        self.stale = host["stale"].astype(np.int64)
        self.active = host["active"].astype(bool)
        self.running = bool(self.active.any())
        self.saved = int(host["saved"])
        self.evaluated = int(host["evaluated"])
