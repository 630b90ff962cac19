"""Which examples each step sees: pure functions of (seed, step), so that resuming is exact."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rflib.core.checks import multiple_of, positive_int
from rflib.core.errors import UserError

PyTree = Any


def permutation(count: int, *, seed: int, epoch: int) -> Int[np.ndarray, "count"]:
    """The order of `count` examples in one epoch; depends on nothing but the arguments."""
    if seed < 0 or epoch < 0:
        raise UserError(f"seed={seed} and epoch={epoch} must be at least 0")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))
    return stream.permutation(np.arange(count, dtype=np.int32 if count < 2**31 else np.int64))


def shuffled(
    count: int,
    batch: int,
    *,
    seed: int,
    drop_last: bool = True,
    process: int | None = None,
    processes: int | None = None,
) -> Callable[[int], Int[np.ndarray, "rows"]]:
    """Shuffled batches as a function: step -> the example indices of this process's rows.

    Every epoch is a permutation of its own. Row r of a step's whole batch is the same for any
    number of processes; process p holds the p-th of `processes` equal consecutive shares. Jumping
    to a step costs one permutation, the next steps of its epoch about a microsecond.

    Args:
        count: number of examples, at least `batch` if `drop_last`.
        batch: examples of a step over all processes.
        seed: at least 0.
        drop_last: an epoch has count // batch steps, and the rest of its permutation is not seen.
            Else batches run on over the border into the next epoch, and nothing is left out.
        process, processes: this process and their number; JAX's by default.

    Raises:
        UserError: a size that does not fit, naming it.
    """
    count, batch = positive_int("count", count), positive_int("batch", batch)
    if drop_last and batch > count:
        raise UserError(
            f"batch={batch} is more than the {count} examples: take a smaller batch, "
            "or drop_last=False"
        )
    first, share = _share(batch, process, processes)
    order = lru_cache(maxsize=2)(_frozen_order(count, seed))
    per_epoch = count // batch

    def dropping(step: int) -> np.ndarray:
        epoch, place = divmod(step, per_epoch)
        start = place * batch + first
        return order(epoch)[start : start + share]

    def running_on(step: int) -> np.ndarray:
        epoch, start = divmod(step * batch + first, count)
        pieces, missing = [], share
        while missing:
            piece = order(epoch)[start : start + missing]
            pieces.append(piece)
            missing -= len(piece)
            epoch, start = epoch + 1, 0
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    return dropping if drop_last else running_on


def _frozen_order(count: int, seed: int) -> Callable[[int], np.ndarray]:
    if seed < 0:
        raise UserError(f"seed={seed} must be at least 0")

    def order(epoch: int) -> np.ndarray:
        indices = permutation(count, seed=seed, epoch=epoch)
        indices.flags.writeable = False  # batches are views of it
        return indices

    return order


def _share(batch: int, process: int | None, processes: int | None) -> tuple[int, int]:
    """Offset and length of this process's share of a batch."""
    processes = jax.process_count() if processes is None else processes
    process = jax.process_index() if process is None else process
    if not 0 <= process < processes:
        raise UserError(f"process={process} must lie in [0, {processes})")
    share = multiple_of("batch", batch, "processes", processes) // processes
    return process * share, share


class Rows(NamedTuple):
    """One batch of an evaluation: example indices, and which of them count."""

    indices: Int[np.ndarray, "rows"]
    mask: Bool[np.ndarray, "rows"]


def in_order(
    examples: int | Int[np.ndarray, "count"],
    batch: int,
    *,
    drop_last: bool = False,
    process: int | None = None,
    processes: int | None = None,
) -> Iterator[Rows]:
    """Batches of an evaluation, all of one shape: the last is padded with a masked example.

    Args:
        examples: their number (0, 1, ... in order), or the indices to go through.
        batch: examples of a batch over all processes.
        drop_last: leave an incomplete last batch out instead.
    """
    indices = np.arange(examples, dtype=np.int32) if isinstance(examples, int) else examples
    if not len(indices):
        raise UserError("examples=0: there is nothing to evaluate")
    first, share = _share(positive_int("batch", batch), process, processes)
    for start in range(0, len(indices), batch):
        if drop_last and start + batch > len(indices):
            return
        places = np.arange(start + first, start + first + share)
        mask = places < len(indices)
        yield Rows(indices[np.where(mask, places, len(indices) - 1)], mask)


def pad_rows(
    tree: PyTree, rows: int, *, fill: float | None = None
) -> tuple[PyTree, Bool[np.ndarray, "rows"]]:
    """`tree` with its leaves [n, ...] lengthened to [rows, ...], and the mask of the real rows.

    Padding repeats the last row, which every model can digest, or holds `fill` (NaN in tests:
    whatever leaks from the padding then shows).
    """
    counts = {len(leaf) for leaf in jax.tree.leaves(tree)}
    if len(counts) != 1 or not 0 < min(counts) <= rows:
        raise UserError(
            f"rows={rows}: the leaves have {sorted(counts)} rows, one number in [1, rows]"
        )
    count = counts.pop()

    def pad(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        value = leaf[-1:] if fill is None else np.full_like(leaf[-1:], fill)
        return np.concatenate([leaf, np.repeat(value, rows - count, axis=0)])

    return jax.tree.map(pad, tree), np.arange(rows) < count


def masked_mean(
    values: Float[Array | np.ndarray, "rows *rest"], mask: Bool[Array | np.ndarray, "rows"]
) -> Float[Array, "*rest"]:
    """Mean over the rows that count, blind to the others even where they hold NaN."""
    shape = (len(mask),) + (1,) * (values.ndim - 1)
    kept = jnp.where(jnp.reshape(mask, shape), values, 0)
    return jnp.sum(kept, axis=0) / jnp.maximum(jnp.sum(mask), 1)
