"""What `--dry` shows before anything runs: the parameter table and the memory estimate."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rflib.core import trees
from rflib.core.trees import PyTree
from rflib.train.compiled import Compiled
from rflib.train.program import Program


def human_bytes(count: float | int) -> str:
    """`1.5 MiB` for a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def parameter_table(shapes: PyTree, shardings: PyTree = None) -> str:
    """One line a leaf (name, type and shape, scalars, bytes, partition), and a line of totals.

    shapes: pytree of arrays or ShapeDtypeStructs. shardings: a pytree of NamedSharding of the same
    structure; with it the totals say what one device holds.
    """
    leaves, signatures = trees.named_leaves(shapes), trees.signature(shapes)
    placed = {} if shardings is None else trees.named_leaves(shardings)
    rows = [("name", "array", "scalars", "bytes", "partition" if placed else "")]
    held = 0
    for name, leaf in leaves.items():
        size = trees.nbytes(leaf)
        where = placed.get(name)
        rows.append(
            (
                name,
                signatures[name],
                f"{trees.size(leaf):,}",
                human_bytes(size),
                "" if where is None else str(tuple(where.spec)),
            )
        )
        share = leaf.shape if where is None else where.shard_shape(leaf.shape)
        held += size * math.prod(share) // max(trees.size(leaf), 1)
    total = trees.nbytes(shapes)
    a_device = f"{human_bytes(held)} a device" if placed else ""
    rows.append(("total", "", f"{trees.size(shapes):,}", human_bytes(total), a_device))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:<{widths[0]}}  {array:<{widths[1]}}  {scalars:>{widths[2]}}  {size:>{widths[3]}}"
        f"  {where}".rstrip()
        for name, array, scalars, size, where in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def memory_estimate(compiled: jax.stages.Compiled) -> str:
    """What one device holds while a compiled program runs, as XLA planned it, in one line."""
    plan: Any = compiled.memory_analysis()
    if plan is None:
        return "memory: this backend makes no estimate"
    arguments, outputs = plan.argument_size_in_bytes, plan.output_size_in_bytes
    shared, buffers = plan.alias_size_in_bytes, plan.temp_size_in_bytes
    code = plan.generated_code_size_in_bytes
    total = arguments + outputs - shared + buffers + code
    return (
        f"memory a device: {human_bytes(total)} = arguments {human_bytes(arguments)} + outputs "
        f"{human_bytes(outputs - shared)} (beside {human_bytes(shared)} of donated arguments) + "
        f"buffers {human_bytes(buffers)} + code {human_bytes(code)}"
    )


def show(program: Program, compiled: Compiled, carry: Any, step: int, note: Callable) -> None:
    """Notes the table and the estimate, makes the call of step `step`, and notes its metrics."""
    state = program.abstract.state
    note(parameter_table(state, program.shardings.state))
    if isinstance(state, Mapping):  # of its sections, params alone is the size of the model
        sizes = {name: trees.size(part) for name, part in state.items()}
        note("scalars: " + ", ".join(f"{name} {n:,}" for name, n in sizes.items() if n))
    note(memory_estimate(compiled.executable))
    _, out = compiled(carry, program.data, program.rows(step), program.keys)
    metrics = jax.device_get(out["metrics"])
    note(", ".join(f"{name} {np.asarray(value).tolist()}" for name, value in metrics.items()))
