"""Devices as one mesh, arrays placed by rules, rows from every process, values back on the host.

Axes are always `AxisType.Auto`: with Explicit ones, jax.make_mesh's default, ordinary model code
raises ShardingTypeError (the gradient through `x @ w` with sharded rows, a reshape).
"""

import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rflib.core import trees
from rflib.core.checks import one_of
from rflib.core.errors import UserError

PyTree = Any
# What a rule says: a spec, or a function of (leaf with shape and dtype, mesh) that returns one.
Placement = PartitionSpec | Callable[[Any, Mesh], PartitionSpec]
Rules = Sequence[tuple[str, Placement]]


def make_mesh(axes: Mapping[str, int] | None = None) -> Mesh:
    """The mesh with these axis sizes; one may be -1: whatever is left. None: {"data": -1}.

    A mesh of fewer devices than there are takes the first ones (in a single process only). Put
    "data" first: it must be the axis that runs over the processes. Raises UserError if the sizes
    do not fit the devices.
    """
    axes = dict(axes or {"data": -1})
    said, count = f"mesh {_shown(axes)}", jax.device_count()
    free = [name for name, size in axes.items() if size == -1]
    known = math.prod(size for size in axes.values() if size != -1)
    if len(free) > 1 or any(size < 1 and size != -1 for size in axes.values()):
        raise UserError(f"{said}: sizes must be at least 1, and at most one of them -1")
    if known > count or (free and count % known):
        wanted = "divide" if free else "be at most"
        raise UserError(f"{said}: the product {known} must {wanted} the {count} devices")
    used = count if free else known
    if used < count and jax.process_count() > 1:
        raise UserError(f"{said} uses {used} of {count} devices: several processes must use all")
    sizes, types = [count // known if size == -1 else size for size in axes.values()], AxisType.Auto
    return jax.make_mesh(
        sizes, tuple(axes), axis_types=(types,) * len(axes), devices=jax.devices()[:used]
    )


def _shown(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items())


@functools.lru_cache
def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


@functools.lru_cache
def rows(mesh: Mesh, lead: int = 0) -> NamedSharding:
    """Rows spread over "data", after `lead` axes that are not; replicated without such an axis."""
    if "data" not in mesh.shape:
        return replicated(mesh)
    return NamedSharding(mesh, PartitionSpec(*(None,) * lead, "data"))


def fsdp(axis: str = "data", min_bytes: int = 4 << 20) -> Callable[[Any, Mesh], PartitionSpec]:
    """A rule: arrays of `min_bytes` or more are cut along their largest dimension that `axis`
    divides (the first of several equal ones); smaller ones, and others, are replicated.
    """

    def place(leaf: Any, mesh: Mesh) -> PartitionSpec:
        size = mesh.shape[one_of("fsdp axis", axis, mesh.axis_names)]
        fits = [dim for dim, length in enumerate(leaf.shape) if length % size == 0 and length]
        if trees.nbytes(leaf) < min_bytes or not fits:
            return PartitionSpec()
        best = max(fits, key=lambda dim: leaf.shape[dim])
        return PartitionSpec(*(None,) * best, axis)

    return place


def shardings(tree: PyTree, rules: Rules, mesh: Mesh) -> PyTree:
    """A NamedSharding for each leaf (concrete or abstract): the first rule whose regular
    expression is found in its name (`params/encoder/kernel`) decides; without one, replicated.

    Raises UserError naming leaf, shape, spec and mesh if a spec does not fit.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = trees.path_name(path)
        fits = (rule for rule in rules if re.search(rule[0], name))
        pattern, placement = next(fits, ("", PartitionSpec()))
        spec = placement(leaf, mesh) if callable(placement) else placement
        if reason := _misfit(leaf.shape, spec, mesh):
            raise UserError(
                f"rule {pattern!r} does not fit {name} of shape {tuple(leaf.shape)}: "
                f"{spec} on the mesh {_shown(mesh.shape)}: {reason}"
            )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(place, tree)


def _misfit(shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh) -> str | None:
    """Why an array of this shape cannot be cut so; None if it can."""
    if len(spec) > len(shape):
        return f"{len(spec)} entries for {len(shape)} dimensions"
    entries = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec]
    used = [name for entry in entries for name in entry]
    for name in used:
        if name not in mesh.shape:
            return f"there is no axis {name!r}"
        if used.count(name) > 1:
            return f"axis {name!r} is used twice"
    for dim, entry in enumerate(entries):
        if shape[dim] % (parts := math.prod(mesh.shape[name] for name in entry)):
            return f"dimension {dim} of length {shape[dim]} is not divisible by {parts}"
    return None


def place_rows(tree: PyTree, mesh: Mesh, lead: int = 0) -> PyTree:
    """Puts this process's rows of a batch on the devices, as `rows(mesh, lead)` says.

    The global batch has the rows of process 0, then those of process 1, and so on. Leaves with no
    row axis are replicated. Raises UserError naming the leaf if its rows do not divide evenly.
    """
    if mesh.size == 1 and all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(tree)):
        # Measured for two small arrays: device_put 50 us, the arguments of a compiled call 8 us.
        with jax.transfer_guard("allow"):
            return _taken_in(mesh)(tree)
    spread, whole = rows(mesh, lead), replicated(mesh)
    where = jax.tree.map(lambda leaf: spread if np.ndim(leaf) > lead else whole, tree)
    try:
        if jax.process_count() == 1:
            return jax.device_put(tree, where)
        _check_processes(mesh)
        return jax.tree.map(jax.make_array_from_process_local_data, where, tree)
    except ValueError:
        _explain_rows(tree, mesh, lead)
        raise


@functools.lru_cache
def _taken_in(mesh: Mesh) -> Callable[[PyTree], PyTree]:
    return jax.jit(lambda tree: tree, out_shardings=replicated(mesh))


@functools.lru_cache
def _check_processes(mesh: Mesh) -> None:
    """UserError unless each index of "data" belongs to one process, whose rows are its own."""
    if "data" not in mesh.shape:
        raise UserError("several processes need a mesh axis named 'data': each has its own rows")
    devices = np.moveaxis(mesh.devices, mesh.axis_names.index("data"), 0)
    for index in devices.reshape(len(devices), -1):
        if len(owners := {device.process_index for device in index}) > 1:
            raise UserError(
                f"mesh {_shown(mesh.shape)}: processes {sorted(owners)} would share rows; "
                "put 'data' first, with a size that the number of processes divides"
            )


def _explain_rows(tree: PyTree, mesh: Mesh, lead: int) -> None:
    """Raises UserError for the first leaf whose rows the data axis does not divide."""
    size, processes = mesh.shape.get("data", 1), jax.process_count()
    for name, leaf in trees.named_leaves(tree).items():
        if (shape := np.shape(leaf))[lead:] and shape[lead] * processes % size:
            each = f" in each of {processes} processes" if processes > 1 else ""
            raise UserError(
                f"batch leaf {name or '(itself)'} of shape {shape} has {shape[lead]} rows{each}: "
                f"the mesh axis data={size} does not divide them"
            ) from None


def host_value(tree: PyTree) -> PyTree:
    """NumPy values of global arrays, whole, on every process (PRNG keys: their integers).

    Where an array lies partly on other processes, all of them must make this call.
    """

    def local(leaf: Any) -> Any:
        leaf = trees.raw(leaf)
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)  # no need of the others
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(local, tree))


def initialize_distributed() -> None:
    """Joins the other processes, before anything touches a device; a second call does nothing.

    JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID say how;
    without them JAX finds out on TPU pods, Slurm, Open MPI and Kubernetes. UserError if it fails.
    """
    if jax.distributed.is_initialized():
        return
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = {name: os.environ[name] for name in names if os.environ.get(name)}
    if given and len(given) < len(names):
        missing = ", ".join(name for name in names if name not in given)
        raise UserError(f"{', '.join(given)} set, but not {missing}: set all three or none")
    try:
        count, index = (int(given[name]) if given else None for name in names[1:])
        jax.distributed.initialize(given.get(names[0]), num_processes=count, process_id=index)
    except (ValueError, RuntimeError) as error:
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(
            f"cannot join the other processes ({said or 'no cluster was recognised'}): {error}; "
            f"each process needs {', '.join(names)}"
        ) from error
