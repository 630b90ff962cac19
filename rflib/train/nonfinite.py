"""Non-finite values: find the exact step, name the leaves, keep the evidence, reproduce it."""

import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rflib.core import keys, trees
from rflib.core.errors import DryRun, NotFinite, UserError
from rflib.train import mesh as meshes
from rflib.train.program import Carry, Program

PyTree = Any


class Finding(NamedTuple):
    """The first bad step, the leaves it spoilt, and everything that went into it (host arrays)."""

    step: int
    leaves: list[str]
    state: PyTree
    rows: PyTree


def bad_leaves(tree: PyTree) -> list[str]:
    """Names of the floating-point leaves that hold a NaN or an infinity, in tree order."""
    named = {name: leaf for name, leaf in trees.named_leaves(tree).items() if trees.is_float(leaf)}
    flags = jax.device_get(_flags(list(named.values()))) if named else []
    return [name for name, ok in zip(named, flags, strict=True) if not ok]


@jax.jit
def _flags(leaves: list[Any]) -> list[Any]:
    return [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]


def search(program: Program, carry: Carry, until: int) -> Finding | None:
    """Repeats the steps from a good `carry`, one by one, until one gives a non-finite leaf.

    Batch and key are functions of the step, so this is the same computation; None if every step
    before `until` is finite here.
    """
    examine = _examiner(program)
    for step in range(int(carry.step), until):
        rows = _placed(program, program.host_rows(step))
        after, report = examine(carry, program.data, rows, program.keys)
        leaves = bad_leaves(report)
        if leaves:
            return Finding(
                step,
                leaves,
                meshes.host_value(jax.tree.map(trees.raw, carry.state)),
                meshes.host_value(rows),
            )
        carry = after
    return None


def _examiner(program: Program) -> Any:
    """One update that keeps its input and reports everything worth inspecting."""

    def examine(carry: Carry, data: PyTree, rows: PyTree, root: Any) -> tuple[Carry, PyTree]:
        state, metrics, ok = program.updated(carry, data, rows, root)
        report: dict[str, PyTree] = {}
        if program.step.inspect is not None and not program.stacked:
            key = keys.named(root, "update", carry.step)
            batch = rows if data is None else (data, rows)
            report = dict(program.step.inspect(carry.state, batch, key))
        # A skipped update excuses its metrics and gradients, never its state.
        mend = jnp.all(ok)
        report = {**report, "metrics": metrics}
        report = jax.tree.map(
            lambda x: jnp.where(mend, jnp.zeros_like(x), x) if trees.is_float(x) else x, report
        )
        return carry._replace(state=state, step=carry.step + 1), {**report, "state": state}

    return jax.jit(examine)


def _placed(program: Program, rows: PyTree) -> PyTree:
    return program.put(rows) if program.stacked else meshes.place_rows(rows, program.mesh)


def write(directory: Path, finding: Finding, *, seeds: list[int]) -> None:
    """Keeps state, rows and names as one npz of named arrays and one json. Process 0 writes."""
    if jax.process_index():
        return
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{part}:{name}": np.asarray(leaf)
        for part, tree in (("state", finding.state), ("rows", finding.rows))
        for name, leaf in trees.named_leaves(tree).items()
    }
    archive: Any = np.savez  # its stubs take a name for another argument
    archive(directory / "inputs.npz", **arrays)
    record = {"step": finding.step, "leaves": finding.leaves, "seeds": list(seeds)}
    (directory / "record.json").write_text(json.dumps(record, indent=1) + "\n")


def replay(directory: Path, program: Program) -> NoReturn:
    """Runs the recorded step again, from what the run wrote, and says what it gives.

    Raises:
      NotFinite: if it is not finite again. DryRun: if now it is.
      UserError: if there is no record, or it belongs to a state or batch of another structure.
    """
    record_file = directory / "record.json"
    if not record_file.exists():
        raise UserError(f"no non-finite step is recorded in {directory.parent}")
    record = json.loads(record_file.read_text())
    with np.load(directory / "inputs.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    shapes = program.abstract
    state = _filled("state", shapes.state, arrays)
    rows = _filled("rows", program.host_rows(record["step"]), arrays)
    carry = Carry(
        state=jax.tree.map(jax.device_put, state, program.shardings.state),
        step=program.put(np.asarray(record["step"], np.int32)),
        bad=program.put(np.full(shapes.bad.shape, -1, np.int32)),
        active=program.put(np.ones(shapes.active.shape, bool)),
    )
    _, report = _examiner(program)(carry, program.data, _placed(program, rows), program.keys)
    leaves = bad_leaves(report)
    if leaves:
        raise NotFinite(f"step {record['step']} again gives {_shown(leaves)}")
    raise DryRun(f"step {record['step']} is finite now: every leaf is")


def _filled(part: str, like: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """A tree like `like` with the stored arrays in it."""
    stored = {
        name.removeprefix(f"{part}:"): leaf
        for name, leaf in arrays.items()
        if name.startswith(f"{part}:")
    }
    named = trees.named_leaves(like)
    lines = trees.difference(dict.fromkeys(named, "array"), dict.fromkeys(stored, "array"))
    if lines:
        raise UserError(f"the recorded {part} differs from the code's:\n  " + "\n  ".join(lines))
    leaves = [_typed(stored[name], leaf) for name, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _typed(array: np.ndarray, like: Any) -> Any:
    """`array` as the archive gives it, as what `like` is: keys are integers there."""
    if trees.is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=trees.key_impl(like))
    return array.view(like.dtype) if array.dtype.kind == "V" else array  # bfloat16 is just bytes


def diagnose(program: Program, good: Carry | None, until: int, directory: Path) -> NotFinite:
    """The error for values that are not finite by `until`, with its evidence in `directory`.

    The steps are repeated from the last good carry, or from the start where there is none.
    """
    start = program.init(program.keys) if good is None else good
    first = int(start.step)
    kept = "none is saved yet" if good is None else f"the checkpoint of step {first} is kept"
    finding = search(program, start, until)
    if finding is None:
        return NotFinite(
            f"non-finite values by step {until}, which repeating the steps one by one did not "
            f"reproduce; {kept}"
        )
    write(directory, finding, seeds=list(program.seeds))
    return NotFinite(
        f"step {finding.step} is not finite: {_shown(finding.leaves)}; {kept}; its inputs are in "
        f"{directory}"
    )


def _shown(leaves: list[str]) -> str:
    return ", ".join(leaves[:6]) + (" ..." if len(leaves) > 6 else "")
