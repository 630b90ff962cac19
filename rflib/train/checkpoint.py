"""Checkpoints that survive a kill, a full disk and flipped bits: orbax plus a manifest.

A step is written under another name and gets its own by one rename, after its manifest: whatever
is called `directory/<step>` was complete once. `save` costs the caller the copy to the host; a
background thread waits for orbax, hashes the files, renames, and deletes what is too old.
"""

import contextlib
import errno
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
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

# Errors of the disk, by the words the system has for them: tensorstore wraps them in its own text.
_DISK = re.compile(
    "|".join(
        os.strerror(code)
        for code in (
            *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS),
            *(errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ESTALE),
        )
    ),
    re.IGNORECASE,
)


def _disk_reason(error: BaseException | None) -> str | None:
    """The system's words in `error` or its causes, if the disk is to blame."""
    while error is not None:
        if found := _DISK.search(str(error)):
            return found.group()
        if isinstance(error, OSError):
            return error.strerror or str(error)
        error = error.__cause__ or error.__context__
    return None


class Checkpointer:
    """Saves and restores a pytree of jax.Arrays in `directory`; a context manager.

    keep: newest steps to keep; 0 deletes nothing by itself. note: where lines for people go.
    readonly: only reads, and leaves damaged steps where they are (a run may be writing there).
    In a multi-process run every process makes the same calls, on one shared file system; process
    0 decides what is restored and writes the manifest.
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
        # Here, not in the loop: importing orbax takes 0.2 s.
        self._orbax = _async_checkpointer()
        self._pending: threading.Thread | None = None
        self._error: tuple[int, BaseException] | None = None
        self._last = -1
        self._trusted: set[int] = set()  # written or verified by this object

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
            elif self._join() and self._error:  # do not hide the error that is on its way
                self._note(str(self._failure(*self._error)))
        finally:
            self._orbax.close()

    def save(self, step: int, tree: PyTree, *, block: bool = False) -> None:
        """Starts to save `tree` as `step`; returns once it may be donated. `block`: when it is kept.

        A step that is there and verifies is left alone, one that does not is set aside. Raises
        what `wait` raises, also for the save before this one.
        """
        if self._readonly:
            raise UserError(f"{self.directory} was opened read-only")
        self.wait()
        if self._holds(step):
            return
        self._last = step
        arrays = _flat(tree)
        signature = trees.signature(tree)
        try:
            self._prepare(step)
            with jax.transfer_guard("allow"), _quiet():
                self._orbax.save(self._unfinished(step), args=_save_args(arrays))
        except Exception as error:
            self._discard(step)
            raise self._failure(step, error) from error
        self._pending = threading.Thread(
            target=self._finish, args=(step, signature), name="checkpoint"
        )
        self._pending.start()
        if block:
            self.wait()

    def wait(self) -> None:
        """Returns when what was saved is on disk and has its manifest.

        Raises UserError if the disk is full or not writable, else RflibError; either names the
        step that failed and the newest good one. A later save may succeed.
        """
        if not self._join():
            return
        failed = self._error is not None
        if jax.process_count() > 1:  # all leave together, or the others would hang
            failed = bool(np.any(multihost_utils.process_allgather(np.array(failed))))
        if failed:
            step, error = self._error or (self._last, RuntimeError("another process failed"))
            self._error = None
            raise self._failure(step, error) from error

    def good_steps(self) -> list[int]:
        """Steps that have a manifest, ascending; nothing is hashed."""
        return [step for step in self._steps() if manifest.present(self._path(step))]

    def restore(self, abstract: PyTree, step: int | None = None) -> tuple[int, PyTree] | None:
        """The newest step that verifies, or `step`, placed as `abstract` says; None if none was.

        abstract: pytree of jax.ShapeDtypeStruct with the wanted shardings (of any topology).
        Damaged steps are renamed `bad-<step>-<n>` with a note. Raises NoCheckpoint if there were
        steps and none verifies, UserError if names, shapes or dtypes are not those of `abstract`.
        """
        self.wait()
        chosen = self._agree(step)
        if chosen is None:
            return None
        found = manifest.read(self._path(chosen)).signature
        if lines := trees.difference(trees.signature(abstract), found):
            shown = [f"  {line}" for line in lines[:20]]
            more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
            raise UserError(
                "\n".join(
                    [f"{self._path(chosen)} was saved by other code or another config:"]
                    + shown
                    + more
                )
            )
        return chosen, self._read(chosen, abstract)

    def retain(self, steps: set[int]) -> None:
        """Deletes every good step that is not among `steps`; damaged and pending ones stay."""
        if jax.process_index() == 0:
            for step in set(self.good_steps()) - steps:
                self._delete(step)

    # Names. A process that dies leaves `<step>.saving…` or `<step>.deleting`, never half a step.

    def _path(self, step: int) -> Path:
        return self.directory / str(step)

    def _unfinished(self, step: int) -> Path:
        return self.directory / f"{step}.saving"

    def _listed(self, pattern: str) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from (p for p in self.directory.iterdir() if re.fullmatch(pattern, p.name))

    def _steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._listed(r"0|[1-9]\d*"))

    # Writing.

    def _prepare(self, step: int) -> None:
        """Makes room for `step`: the directory, no leftovers, no damaged step of that name."""
        if jax.process_index() != 0:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self._listed(r"\d+\.(saving|deleting).*"):
            shutil.rmtree(path)
        if self._path(step).exists():
            self._set_aside(step, "it does not verify and is saved anew")

    def _holds(self, step: int) -> bool:
        """Whether `step` is there and verifies, as process 0 sees it."""

        def look() -> bool:
            path = self._path(step)
            known = step in self._trusted and manifest.present(path)
            return known or (path.exists() and self._verified(step) is None)

        return bool(self._first(look))

    def _finish(self, step: int, signature: dict[str, str]) -> None:
        """Background: waits for orbax, writes the manifest, gives the step its name, tidies up."""
        try:
            with _quiet():
                self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                manifest.write(self._unfinished(step), step, signature)
                self._unfinished(step).rename(self._path(step))
                manifest.sync_directory(self.directory)
                if self._keep:
                    old = [other for other in self.good_steps() if other != step]
                    for other in old[: max(0, len(old) + 1 - self._keep)]:
                        self._delete(other)
            self._trusted.add(step)
        except BaseException as error:
            self._error = step, error
            self._discard(step)

    def _discard(self, step: int) -> None:
        """Removes what a failed save left: on a full disk it is in the way."""
        if jax.process_index() == 0:
            for path in self._listed(rf"{step}\.saving.*"):
                shutil.rmtree(path, ignore_errors=True)

    def _delete(self, step: int) -> None:
        # First the name, then the files: a kill in between leaves no half step.
        doomed = self._path(step).rename(self.directory / f"{step}.deleting")
        shutil.rmtree(doomed, ignore_errors=True)
        self._trusted.discard(step)

    def _join(self) -> bool:
        """Waits for the thread; whether there was one."""
        if self._pending is None:
            return False
        self._pending.join()
        self._pending = None
        return True

    def _failure(self, step: int, error: BaseException) -> RflibError:
        good = self.good_steps()
        left = f"the newest good step is {good[-1]}" if good else "there is no good step yet"
        reason = _disk_reason(error)
        if reason is None:
            said = str(error).strip().splitlines() or [""]
            reason, kind = f"{type(error).__name__}: {said[0]}", RflibError
        else:
            kind = UserError
            with contextlib.suppress(OSError):
                reason += f", {shutil.disk_usage(self.directory).free / 2**20:.0f} MiB free"
        return kind(f"step {step} could not be saved in {self.directory} ({reason}); {left}")

    # Reading.

    def _first(self, decide: Callable[[], int]) -> int:
        """`decide()` of process 0, on all processes; they raise together."""
        if jax.process_count() == 1:
            return decide()
        code, error = -9, None
        if jax.process_index() == 0:
            try:
                code = int(decide())
            except Exception as caught:
                error = caught
        code = int(multihost_utils.broadcast_one_to_all(np.int32(code)))
        if error is not None:
            raise error
        if code == -9:
            raise RflibError(f"process 0 failed with the checkpoints in {self.directory}")
        return code

    def _agree(self, step: int | None) -> int | None:
        code = self._first(lambda: self._choose(step))
        if code == -2:
            wanted = "no checkpoint" if step is None else f"no step {step}"
            raise NoCheckpoint(
                f"{wanted} in {self.directory} verifies; nothing was deleted: mend or remove it"
            )
        return None if code == -1 else code

    def _choose(self, step: int | None) -> int:
        """Process 0: the step to restore; -1 if there never was one, -2 if none verifies."""
        steps = self._steps()
        for candidate in [step] if step is not None else reversed(steps):
            if candidate not in steps:
                continue
            why = self._verified(candidate)
            if why is None:
                return candidate
            self._set_aside(candidate, why)
        return -2 if steps or any(self._listed(r"bad-\d+-\d+")) else -1

    def _verified(self, step: int) -> str | None:
        """None if every file of `step` is what was written, else what is wrong."""
        try:
            manifest.verify(self._path(step))
        except manifest.Damaged as damage:
            return str(damage)
        except OSError as error:
            return f"{error.filename} cannot be read: {error.strerror}"
        self._trusted.add(step)
        return None

    def _set_aside(self, step: int, why: str) -> None:
        if self._readonly:
            self._note(f"passing over checkpoint {step} in {self.directory}: {why}")
            return
        count = 0
        while (aside := self.directory / f"bad-{step}-{count}").exists():
            count += 1
        try:
            self._path(step).rename(aside)
        except OSError as error:
            raise UserError(f"{self._path(step)}: {why}; cannot rename it: {error}") from error
        self._trusted.discard(step)
        self._note(f"checkpoint {step} is set aside as {aside}: {why}")

    def _read(self, step: int, abstract: PyTree) -> PyTree:
        names, leaves = list(trees.named_leaves(abstract)), jax.tree.leaves(abstract)
        targets = {n: _stored(leaf) for n, leaf in zip(names, leaves, strict=True) if _has(leaf)}
        with jax.transfer_guard("allow"), _quiet():
            arrays = self._orbax.restore(self._path(step), args=_restore_args(targets))
            restored = [_typed(arrays.get(n), leaf) for n, leaf in zip(names, leaves, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(abstract), restored)


# orbax. The tree goes to it as one flat dictionary of named arrays: NamedTuples, empty nodes and
# None then never meet its own idea of a tree, and the names are those of rules and errors.


def _has(leaf: Any) -> bool:
    """Whether there is something to store; orbax refuses arrays without elements."""
    return 0 not in leaf.shape


def _flat(tree: PyTree) -> dict[str, jax.Array]:
    named, count = trees.named_leaves(tree), len(jax.tree.leaves(tree))
    if len(named) != count:
        raise UserError("two leaves of the tree have one name: do not use '/' in its keys")
    for name, leaf in named.items():
        if not isinstance(leaf, jax.Array):
            raise UserError(f"{name}={leaf!r} is no jax.Array: it cannot be in a checkpoint")
    arrays = {name: trees.raw(leaf) for name, leaf in named.items() if _has(leaf)}
    if not arrays:
        raise UserError("the tree has no array with elements: there is nothing to save")
    return arrays


def _stored(leaf: Any) -> jax.ShapeDtypeStruct:
    """The array on disk for an abstract leaf, placed as the leaf (a key: its integers)."""
    data = jax.eval_shape(jax.random.key_data, leaf) if trees.is_key(leaf) else leaf
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def _typed(array: jax.Array | None, leaf: Any) -> jax.Array:
    """The restored leaf: a key from its integers, an array without elements from nothing."""
    if array is None:
        target = _stored(leaf)
        array = jax.device_put(np.zeros(target.shape, target.dtype), target.sharding)
    if not trees.is_key(leaf):
        return array
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return jax.random.wrap_key_data(array, impl=found[0])


def _async_checkpointer() -> Any:
    import orbax.checkpoint as ocp
    from orbax.checkpoint import type_handlers

    # By default orbax cuts every replicated array over all devices, however small: on 8 devices a
    # save of 60 small arrays blocked 40-70 ms (the first one 340 ms) instead of 5-15 ms.
    handler = type_handlers.ArrayHandler(
        min_slice_bytes_for_replica_parallel=1 << 20, enable_write_sharding_file=False
    )
    registry = type_handlers.create_type_handler_registry((jax.Array, handler))
    return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))


def _save_args(arrays: dict[str, jax.Array]) -> Any:
    import orbax.checkpoint as ocp

    return ocp.args.PyTreeSave(arrays)


def _restore_args(targets: dict[str, jax.ShapeDtypeStruct]) -> Any:
    import orbax.checkpoint as ocp

    how = ocp.checkpoint_utils.construct_restore_args(targets)
    return ocp.args.PyTreeRestore(targets, restore_args=how)


def _silent(record: logging.LogRecord) -> bool:
    return "Handler Commit operations" not in record.getMessage()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without orbax's own traceback of a failed save: ours is the one clear error."""
    logger = logging.getLogger("absl")
    logger.addFilter(_silent)
    try:
        yield
    finally:
        logger.removeFilter(_silent)
