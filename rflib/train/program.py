"""What `fit` executes on the devices: the carry, its shardings, and the compiled update."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rflib.core import checks, keys, trees
from rflib.core.errors import UserError
from rflib.train import mesh as meshes
from rflib.train.compiled import Compiled
from rflib.train.task import Step

PyTree = Any


class Carry(NamedTuple):
    """What one call hands to the next.

    state: the Step's state; with seeds, stacked in front.
    step: int32 scalar, updates done.
    bad: int32, one a seed, the first step whose metrics were not finite; -1 while there is none.
    active: bool, one a seed; a seed that has stopped keeps its state.
    """

    state: PyTree
    step: Array
    bad: Array
    active: Array


class Program:
    """A Step bound to its data, seeds, mesh and number of steps a call.

    The root key of a seed is `jax.random.key(seed)`; initialisation, update k and each eval use
    keys folded from it by name and step, so nothing random has to be stored.
    """

    def __init__(
        self,
        step: Step,
        batch: Callable[[int], PyTree] | Sequence[Callable[[int], PyTree]] | None,
        *,
        data: PyTree,
        seeds: Sequence[int],
        stacked: bool,
        mesh: Mesh,
        rules: meshes.Rules,
        scan: int,
    ):
        self.step, self.seeds, self.stacked, self.scan, self.mesh = step, seeds, stacked, scan, mesh
        self._batch = batch
        self._everywhere = meshes.replicated(mesh)
        self.data = self.put(data)
        roots = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
        self.keys = self.put(roots if stacked else roots[0])
        shapes = jax.eval_shape(self._init, self.keys)
        state = meshes.shardings(shapes.state, rules, mesh)
        if stacked:
            state = jax.tree.map(lambda _: self._seed_sharding(), shapes.state)
        rest = jax.tree.map(lambda _: self._everywhere, shapes)
        self.shardings: Carry = rest._replace(state=state)
        self.abstract: Carry = jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
            shapes,
            self.shardings,
        )
        self.init = jax.jit(self._init, out_shardings=self.shardings)
        self.view = jax.jit(jax.vmap(step.view) if stacked else step.view)
        self.finite = jax.jit(trees.all_finite)

    def _seed_sharding(self) -> NamedSharding:
        """Seeds are spread over the data axis where it divides them, else held everywhere."""
        size = self.mesh.shape.get("data", 1)
        spread = len(self.seeds) % size == 0
        return NamedSharding(self.mesh, PartitionSpec("data" if spread and size > 1 else None))

    def _init(self, root: Array) -> Carry:
        def one(key: Array) -> PyTree:
            return self.step.init(keys.named(key, "init"))

        count = len(self.seeds)
        return Carry(
            state=jax.vmap(one)(root) if self.stacked else one(root),
            step=jnp.zeros((), jnp.int32),
            bad=jnp.full(count, -1, jnp.int32),
            active=jnp.ones(count, bool),
        )

    def update(self, state: PyTree, data: PyTree, rows: PyTree, root: Array, step: Array) -> Any:
        """One update of one seed: (state, metrics, whether the metrics are finite)."""
        key = keys.named(root, "update", step)
        state, metrics = self.step.update(state, rows if data is None else (data, rows), key)
        for name, value in metrics.items():
            check_number(f"metric {name!r} of the step", value)
        excused = jnp.asarray(metrics.get("skipped", False)).astype(bool)
        return state, dict(metrics), trees.all_finite(metrics) | excused

    def call(self, carry: Carry, data: PyTree, rows: PyTree, root: Array) -> tuple[Carry, PyTree]:
        """`scan` updates of all seeds; returns the metrics of the last one."""

        def one(carry: Carry, rows: PyTree) -> tuple[Carry, PyTree]:
            state, metrics, ok = self.updated(carry, data, rows, root)
            bad = jnp.where((carry.bad < 0) & ~jnp.atleast_1d(ok), carry.step, carry.bad)
            return Carry(state, carry.step + 1, bad, carry.active), metrics

        if self.scan == 1:
            carry, metrics = one(carry, rows)
        else:
            carry, stacked = jax.lax.scan(one, carry, rows, length=self.scan)
            metrics = jax.tree.map(lambda leaf: leaf[-1], stacked)
        return carry, {"metrics": metrics, "bad": carry.bad}

    def updated(self, carry: Carry, data: PyTree, rows: PyTree, root: Array) -> Any:
        """One update of all seeds: (state, metrics, finite or not). A stopped seed stands still."""
        if not self.stacked:
            return self.update(carry.state, data, rows, root, carry.step)

        def one(state: PyTree, rows: PyTree, root: Array, active: Array) -> Any:
            new, metrics, ok = self.update(state, data, rows, root, carry.step)
            new = jax.tree.map(lambda a, b: jnp.where(active, a, b), new, state)
            return new, metrics, ok | ~active

        return jax.vmap(one)(carry.state, rows, root, carry.active)

    def compile(self, first: int) -> Compiled:
        """Compiles `call` for the rows of step `first`; arguments (carry, data, rows, keys)."""
        return Compiled(
            "update",
            self.call,
            (self.abstract, self.data, self.rows(first), self.keys),
            argument_names=("carry", "data", "rows", "key"),
            donate=(0,),
            out_shardings=(self.shardings, self._everywhere),
        )

    def host_rows(self, step: int) -> PyTree:
        """The rows of one update as the task gives them; with seeds, stacked in front."""
        if self._batch is None:
            return np.zeros(len(self.seeds), np.int8) if self.stacked else None
        if not self.stacked:
            return self._batch(step)  # type: ignore[operator]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(b(step) for b in self._batch))  # type: ignore[union-attr]

    def rows(self, step: int) -> PyTree:
        """The rows of the next call, placed: those of `scan` updates stacked in front."""
        if self.scan == 1:
            host = self.host_rows(step)
        else:
            each = [self.host_rows(step + i) for i in range(self.scan)]
            host = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        if self.stacked:
            return self.put(host)
        return meshes.place_rows(host, self.mesh, lead=int(self.scan > 1))

    def examples(self) -> int:
        """Global number of rows one update sees, over all seeds; 0 without a batch."""
        leaves = jax.tree.leaves(self.host_rows(0))
        if self._batch is None or not leaves or not np.ndim(leaves[0]):
            return 0
        if self.stacked:
            return int(np.prod(leaves[0].shape[:2])) if leaves[0].ndim > 1 else len(self.seeds)
        return leaves[0].shape[0] * jax.process_count()

    def eval_key(self, seed: int, name: str, step: int) -> Array:
        """The key of one eval of one seed (by position) at one step."""
        return keys.named(jax.random.key(self.seeds[seed]), "eval", name, step)

    def put(self, tree: PyTree) -> PyTree:
        """Values that all processes have alike, as global arrays that every device holds whole."""
        if jax.process_count() == 1:
            return jax.device_put(tree, self._everywhere)

        def one(leaf: Any) -> Array:
            # device_put refuses keys here, and compares all others between the processes.
            host = np.asarray(trees.raw(leaf))
            whole = jax.make_array_from_callback(host.shape, self._everywhere, host.__getitem__)
            if not trees.is_key(leaf):
                return whole
            return jax.random.wrap_key_data(whole, impl=jax.random.key_impl(leaf))

        return jax.tree.map(one, tree)


def check_number(what: str, value: Any) -> None:
    """Raises a UserError unless `value` is one number; arrays of one element count as one."""
    if np.size(value) != 1:
        raise UserError(f"{what} has the shape {np.shape(value)}; a metric is one number")


def check_arguments(
    name: str,
    batch: Any,
    seeds: Sequence[int] | None,
    seed: int,
    scan: int,
    intervals: dict[str, int],
) -> None:
    """The name is one of a directory, batch functions match the seeds, and every interval of host
    work ends between two calls."""
    if not name or set(name) & {"/", "\\", "\0"} or name in (".", ".."):
        raise UserError(f"name={name!r} must be the name of a directory of its own")
    checks.positive_int("scan", scan)
    for name, value in intervals.items():
        checks.positive_int(name, value, zero=name not in ("steps", "log_every"))
    wrong = [f"{name}={value}" for name, value in intervals.items() if value % scan]
    if wrong:
        raise UserError(
            f"scan={scan} steps are one call, so {', '.join(wrong)} must be "
            f"{'a multiple' if len(wrong) == 1 else 'multiples'} of {scan}"
        )
    if seeds is None:
        if batch is not None and not callable(batch):
            raise UserError("batch must be one function of the step; a sequence goes with seeds")
    elif not seeds or (batch is not None and (callable(batch) or len(batch) != len(seeds))):
        raise UserError(f"seeds={tuple(seeds)} needs at least one seed and a batch function each")
    for each in (seed,) if seeds is None else seeds:
        checks.in_range("seed", checks.positive_int("seed", each, zero=True), 0, 2**32 - 1)
