"""States, directories and damages for the tests of the Checkpointer."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rflib.core import trees
from rflib.train import manifest
from rflib.train.checkpoint import Checkpointer


def abstract(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def small(value: float) -> dict[str, jax.Array]:
    return {"w": jnp.full((300,), float(value)), "step": jnp.asarray(int(value))}


def saved(directory: Path, *steps: int, keep: int = 0) -> Path:
    with Checkpointer(directory, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, small(step))
    return directory


def restored(directory: Path, notes: list[str] | None = None) -> int | None:
    """The step that comes back, its content checked."""
    note = (notes if notes is not None else []).append
    with Checkpointer(directory, note=note) as checkpoints:
        found = checkpoints.restore(abstract(small(0)))
    if found is None:
        return None
    assert trees.digest(found[1]) == trees.digest(small(found[0]))
    return found[0]


def files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def largest(step: Path) -> Path:
    """The largest file of orbax: an array's data."""
    data = [path for path in step.rglob("*") if path.is_file() and path.name != manifest.NAME]
    return max(data, key=lambda path: path.stat().st_size)


def truncate(step: Path) -> str:
    path = largest(step)
    os.truncate(path, path.stat().st_size // 2)
    return f"{path.name} has {path.stat().st_size} bytes where"
