"""Checkpoints that survive a kill, a full disk and flipped bits: orbax plus a manifest.

A step is written under another name and gets its own by one rename, after its manifest: whatever
is called `directory/<step>` was complete once. `save` costs its caller the copy to the host; a
background thread waits for orbax, hashes the files, renames, and deletes what is too old.
"""

import contextlib
import itertools
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from rflib.core import trees
from rflib.core.errors import NoCheckpoint, RflibError, UserError
from rflib.train import manifest

PyTree = Any


class Checkpointer:
    """Saves and restores a pytree of jax.Arrays in `directory`; a context manager.

    keep: newest steps to keep (0: all). note: where lines for people go. readonly: leaves damaged
    steps where they are, as a run may be writing there. In a multi-process run every process makes
    the same calls, on one shared file system; process 0 decides, and writes the manifest.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        note: Callable[[str], None] = print,
        readonly: bool = False,
    ):
        if keep < 0:
            raise UserError(f"keep={keep} must be at least 0 (0: keep all)")
        self.directory = Path(directory).absolute()
        self._keep, self._note, self._readonly = keep, note, readonly
        self._orbax = _async_checkpointer()  # here, not in the loop: the import takes 0.2 s
        self._pending: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last = -1  # the step saved last
        self._trusted: set[int] = set()  # written or verified by this object

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
            elif self._join() and self._error:
                # Neither this failure nor a log on the same disk may hide the error on its way.
                with contextlib.suppress(UserError, OSError):
                    self._note(str(self._failure(self._error)))
        finally:
            self._orbax.close()

    def save(self, step: int, tree: PyTree, *, block: bool = False, replace: bool = False) -> None:
        """Starts to save `tree` as `step`; returns when it may be donated, or with `block` when
        it is on disk. A step that is there and verifies is left alone (unless `replace`), a
        damaged one is set aside.

        Raises what `wait` raises, for the save before this one too.
        """
        from orbax.checkpoint.args import PyTreeSave

        self.wait()
        if self._readonly:
            raise UserError(f"{self.directory} was opened read-only")
        if not replace and self._first(lambda: self._holds(step)):
            return
        self._last = step
        arrays, signature = _flat(tree), trees.signature(tree)
        try:
            if jax.process_index() == 0:
                self._prepare(step, replace)
            with jax.transfer_guard("allow"):
                self._orbax.save(self._path(f"{step}.saving"), args=PyTreeSave(arrays))
        except Exception as error:
            self._discard(step)
            raise self._failure(error) from error
        self._pending = threading.Thread(target=self._finish, args=(step, signature))
        self._pending.start()
        if block:
            self.wait()

    def wait(self) -> None:
        """Returns when what was saved is on disk and has its manifest.

        Raises UserError if the disk is full or not writable, else RflibError; they name the step
        that failed and the newest good one, and later saves may succeed.
        """
        if not self._join():
            return
        failed = self._error is not None
        if jax.process_count() > 1:  # all leave together, or the others would hang
            failed = bool(np.any(multihost_utils.process_allgather(np.array(failed))))
        if failed:
            error, self._error = self._error or RuntimeError("another process failed"), None
            raise self._failure(error) from error

    def good_steps(self) -> list[int]:
        """Steps that have a manifest, ascending; nothing is hashed."""
        return [step for step in self._steps() if manifest.present(self._path(step))]

    def restore(self, abstract: PyTree, step: int | None = None) -> tuple[int, PyTree] | None:
        """The newest step that verifies, or `step`, placed as `abstract` says; None if none was.

        abstract: pytree of jax.ShapeDtypeStruct with the wanted shardings (of any topology).
        Damaged steps are set aside with a note. Raises NoCheckpoint if there were steps and none
        verifies, UserError if names, shapes or dtypes are not those of `abstract`.
        """
        self.wait()
        if (chosen := self._first(lambda: self._choose(step))) == -1:
            return None
        if chosen == -2:
            what = f"in {self.directory} verifies; nothing was deleted: mend or move it away"
            raise NoCheckpoint(f"no checkpoint {'' if step is None else f'of step {step} '}{what}")
        found = manifest.read(self._path(chosen)).signature
        if lines := trees.difference(trees.signature(abstract), found):
            more = [f"and {len(lines) - 20} more"] if len(lines) > 20 else []
            head = f"{self._path(chosen)} was saved by other code or with another config:"
            raise UserError("\n  ".join([head, *lines[:20], *more]))
        return chosen, self._read(chosen, abstract)

    def retain(self, steps: set[int]) -> None:
        """Deletes every good step that is not among `steps`; damaged and pending ones stay."""
        if jax.process_index() == 0:
            for step in set(self.good_steps()) - steps:
                shutil.rmtree(self._doom(step), ignore_errors=True)

    def set_aside(self, step: int, why: str) -> None:
        """Renames `step` to `bad-<step>-<n>` with a note saying why; all processes call it."""
        self._first(lambda: self._rename(step, why))

    # Names. A process that dies leaves `<step>.saving…` or `<step>.deleting`, never half a step.

    def _path(self, name: int | str) -> Path:
        return self.directory / str(name)

    def _listed(self, pattern: str) -> list[Path]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [p for p in self.directory.iterdir() if re.fullmatch(pattern, p.name)]
        return []

    def _steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._listed(r"0|[1-9]\d*"))

    # Writing.

    def _prepare(self, step: int, replace: bool) -> None:
        """Makes room for `step`: the directory, no leftovers, no damaged step of that name."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self._listed(r"\d+\.(saving|deleting).*"):
            shutil.rmtree(path, ignore_errors=True)
        if self._path(step).exists() and not replace:
            self._rename(step, "it does not verify and is saved anew")

    def _holds(self, step: int) -> bool:
        """Whether `step` is there and verifies."""
        path = self._path(step)
        known = step in self._trusted and manifest.present(path)
        # os.path: a directory that may not be searched is the next write's error, not a crash here.
        return known or (os.path.exists(path) and self._damage(step) is None)

    def _finish(self, step: int, signature: dict[str, str]) -> None:
        """Background: waits for orbax, writes the manifest, gives the step its name, tidies up."""
        try:
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                complete = self._path(f"{step}.saving")
                manifest.write(complete, step, signature)
                doomed = [self._doom(step)] if self._path(step).exists() else []
                complete.rename(self._path(step))
                manifest.sync_directory(self.directory)
                self._trusted.add(step)
                others = [other for other in self.good_steps() if other != step]
                old = others[: max(0, len(others) + 1 - self._keep)] if self._keep else []
                for path in [*doomed, *map(self._doom, old)]:
                    shutil.rmtree(path, ignore_errors=True)
        except BaseException as error:
            self._error = error
            self._discard(step)

    def _discard(self, step: int) -> None:
        """Removes what a failed save left: on a full disk it is in the way."""
        if jax.process_index() == 0:
            for path in self._listed(rf"{step}\.saving.*"):
                shutil.rmtree(path, ignore_errors=True)

    def _doom(self, step: int) -> Path:
        """Takes the name from what will be deleted: a kill in between leaves no half step."""
        return self._path(step).rename(self._path(f"{step}.deleting"))

    def _join(self) -> bool:
        """Waits for the thread; whether there was one."""
        if self._pending is None:
            return False
        self._pending.join()
        self._pending = None
        return True

    def _failure(self, error: BaseException) -> RflibError:
        good = self.good_steps()
        left = f"the newest good step is {good[-1]}" if good else "there is no good step yet"
        reason, kind = manifest.disk_reason(error), UserError
        if reason is None:
            first = (str(error).strip().splitlines() or [""])[0]
            reason, kind = f"{type(error).__name__}: {first}", RflibError
        if "space" in reason:
            reason += f"; {shutil.disk_usage(self.directory).free / 2**20:.1f} MiB are free"
        return kind(f"step {self._last} was not saved in {self.directory} ({reason}); {left}")

    # Reading.

    def _first(self, decide: Callable[[], int | None]) -> int:
        """`decide()` of process 0, on all processes; they raise together."""
        if jax.process_count() == 1:
            return int(decide() or 0)
        code, error = -9, RflibError(f"process 0 failed with the checkpoints in {self.directory}")
        try:
            code = int(decide() or 0) if jax.process_index() == 0 else 0
        except Exception as caught:
            error = caught
        if (code := int(multihost_utils.broadcast_one_to_all(np.int32(code)))) == -9:
            raise error
        return code

    def _choose(self, step: int | None) -> int:
        """The step to restore; -1 if there never was one, -2 if none verifies."""
        steps = self._steps()
        for candidate in reversed(steps) if step is None else {step}.intersection(steps):
            if (why := self._damage(candidate)) is None:
                return candidate
            if self._readonly:
                self._note(f"passing over {self._path(candidate)}: {why}")
            else:
                self._rename(candidate, why)
        return -2 if steps or self._listed(r"bad-\d+-\d+") else -1

    def _damage(self, step: int) -> str | None:
        """None if every file of `step` is what was written, else what is wrong."""
        try:
            manifest.verify(self._path(step))
        except manifest.Damaged as damage:
            return str(damage)
        except OSError as error:
            return f"{error.filename} cannot be read: {error.strerror}"
        self._trusted.add(step)
        return None

    def _rename(self, step: int, why: str) -> None:
        names = (self._path(f"bad-{step}-{count}") for count in itertools.count())
        aside = next(path for path in names if not path.exists())
        try:
            self._path(step).rename(aside)
        except OSError as error:
            raise UserError(f"{self._path(step)}: {why}; cannot rename it: {error}") from error
        self._note(f"checkpoint {step} is set aside as {aside}: {why}")

    def _read(self, step: int, abstract: PyTree) -> PyTree:
        import orbax.checkpoint as ocp

        named = trees.named_leaves(abstract)
        targets = {name: _stored(leaf) for name, leaf in named.items() if 0 not in leaf.shape}
        how = ocp.checkpoint_utils.construct_restore_args(targets)
        with jax.transfer_guard("allow"):
            arrays = self._orbax.restore(
                self._path(step), args=ocp.args.PyTreeRestore(targets, restore_args=how)
            )
            leaves = [_typed(arrays.get(name), leaf) for name, leaf in named.items()]
        return jax.tree.unflatten(jax.tree.structure(abstract), leaves)


# orbax gets one flat dictionary of named arrays: NamedTuples, empty nodes and None never meet its
# own idea of a tree, and the names are those of rules and errors.


def _flat(tree: PyTree) -> dict[str, jax.Array]:
    named = trees.named_leaves(tree)
    if len(named) != len(jax.tree.leaves(tree)):
        raise UserError("two leaves of the tree have one name: do not use '/' in its keys")
    for name, leaf in named.items():
        if not isinstance(leaf, jax.Array):
            raise UserError(f"{name}={leaf!r} is no jax.Array: it cannot be in a checkpoint")
    arrays = {name: trees.raw(leaf) for name, leaf in named.items() if leaf.size}
    if not arrays:
        raise UserError("the tree has no array with elements: there is nothing to save")
    return arrays


def _stored(leaf: Any) -> jax.ShapeDtypeStruct:
    """The array on disk for an abstract leaf, placed as the leaf (of keys: the integers)."""
    data = jax.eval_shape(jax.random.key_data, leaf) if trees.is_key(leaf) else leaf
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def _typed(array: Any, leaf: Any) -> jax.Array:
    """The restored leaf: keys from their integers; what has no elements was not stored."""
    if array is None:
        target = _stored(leaf)
        array = jax.device_put(np.zeros(target.shape, target.dtype), target.sharding)
    if trees.is_key(leaf):
        array = jax.random.wrap_key_data(array, impl=trees.key_impl(leaf))
    return array


def _wanted(record: logging.LogRecord) -> bool:
    # orbax logs several tracebacks of one failed save: `_failure` is the one clear error.
    return not (record.exc_info and "orbax" in record.pathname)


def _async_checkpointer() -> Any:
    import orbax.checkpoint as ocp
    from orbax.checkpoint import type_handlers

    logging.getLogger("absl").addFilter(_wanted)
    # By default orbax cuts every replicated array over all devices, however small: on 8 devices a
    # save of 60 small arrays blocked 40-70 ms (the first one 340 ms) instead of 5-15 ms.
    arrays = type_handlers.ArrayHandler(
        min_slice_bytes_for_replica_parallel=1 << 20, enable_write_sharding_file=False
    )
    registry = type_handlers.create_type_handler_registry((jax.Array, arrays))
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    # Directories made in the background, the default, and one that cannot be made: orbax's other
    # threads then wait for it, and so does the interpreter on leaving, for ten minutes.
    options = ocp.AsyncOptions(create_directories_asynchronously=False)
    return ocp.AsyncCheckpointer(handler, async_options=options)
