"""A phase on disk: its checkpoints, and the best view that they refer to."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rflib.core.errors import NoCheckpoint
from rflib.train.checkpoint import Checkpointer
from rflib.train.evaluation import Tracker
from rflib.train.program import Carry, Program

PyTree = Any


class Saved(NamedTuple):
    """What a checkpoint gives back: the carry, the best view (or None), metric lines written.

    latest: the last value of each eval so far, one dictionary a seed; empty if none has run. It may
    be newer than the checkpoint: then the evals since are run again, to the same values.
    """

    carry: Carry
    best: PyTree
    lines: int
    latest: list[dict[str, float]]


class Store:
    """Saves and restores one phase; a context manager that waits for its writers on leaving.

    A checkpoint holds the carry, the tracker and the number of metric lines written so far. The
    best view is a checkpoint of its own, on disk before any checkpoint whose tracker refers to it,
    and kept as long as one does.
    """

    def __init__(
        self,
        directory: Path,
        program: Program,
        tracker: Tracker,
        *,
        keep: int,
        note: Callable[[str], None],
    ):
        self._program, self._tracker, self._note = program, tracker, note
        self._saves = Checkpointer(directory / "checkpoints", keep=keep, note=note)
        self._bests = Checkpointer(directory / "best", keep=0, note=note)
        self._latest = directory / "latest.json"
        self._references: dict[int, int] = {}  # checkpoint -> the best view its tracker refers to
        self._evaluated: dict[int, int] = {}  # checkpoint -> the last step with complete evals

    def __enter__(self) -> "Store":
        self._saves.__enter__()
        self._bests.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._bests.__exit__(*error)
        finally:
            self._saves.__exit__(*error)

    def save(
        self, step: int, carry: Carry, lines: int, latest: list[dict[str, float]], *, block: bool
    ) -> None:
        """Saves the phase after `step` updates; with `block`, returns when it is on disk.

        A checkpoint of this step from before its evals, which SIGTERM cut short, is replaced.
        """
        replace = self._evaluated.get(step, self._tracker.evaluated) != self._tracker.evaluated
        if jax.process_index() == 0:
            # Before the checkpoint, which must not refer to what is not there. What keeps it from
            # being written keeps the checkpoint too, and that says so better.
            with contextlib.suppress(OSError):
                self._latest.parent.mkdir(parents=True, exist_ok=True)
                part = self._latest.with_suffix(".part")
                part.write_text(json.dumps(latest))
                part.replace(self._latest)
        self._references[step] = self._tracker.saved
        self._evaluated[step] = self._tracker.evaluated
        track = self._program.put(self._tracker.arrays() | {"lines": np.asarray(lines, np.int32)})
        self._saves.save(
            step, {"carry": carry._asdict(), "track": track}, block=block, replace=replace
        )
        good = self._saves.good_steps()
        if all(s in self._references for s in good):
            self._bests.retain({self._references[s] for s in good} | {self._tracker.saved})

    def save_best(self, step: int, view: PyTree) -> None:
        """Saves a new best view and returns when it is on disk."""
        self._bests.save(step, view, block=True)

    def newest(self) -> Saved | None:
        """The newest checkpoint that verifies, with its best view; loads the tracker from it.

        One whose best view is damaged is set aside like a damaged one. None if there never was a
        checkpoint; NoCheckpoint if there were some and none is good.
        """
        self._saves.wait()
        abstract = self._abstract()
        lost: list[int] = []
        while True:
            found = self._saves.restore(abstract)
            if found is None:
                if lost:
                    raise NoCheckpoint(f"no checkpoint has an intact best view; tried {lost}")
                return None
            step, tree = found
            track = jax.device_get(tree["track"])
            saved = int(track["saved"])
            best = None
            if saved >= 0:
                best = self._best(saved)
                if best is None:
                    self._saves.set_aside(step, f"its best view, of step {saved}, is damaged")
                    lost.append(step)
                    continue
            self._tracker.load(track)
            self._references[step] = saved
            self._evaluated[step] = self._tracker.evaluated
            latest: list[dict[str, float]] = []
            with contextlib.suppress(OSError, ValueError):  # none yet, or torn by a power cut
                latest = json.loads(self._latest.read_text())
            return Saved(Carry(**tree["carry"]), best, int(track["lines"]), latest)

    def _best(self, step: int) -> PyTree:
        try:
            found = self._bests.restore(self._abstract_view(), step=step)
        except NoCheckpoint:
            return None
        return None if found is None else found[1]

    def _abstract(self) -> PyTree:
        everywhere = self._program.shardings.step
        track = self._tracker.arrays() | {"lines": np.zeros((), np.int32)}
        return {
            "carry": self._program.abstract._asdict(),
            "track": jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
                track,
            ),
        }

    def _abstract_view(self) -> PyTree:
        view = self._program.step.view
        if self._program.stacked:
            view = jax.vmap(view)
        compiled = jax.jit(view).lower(self._program.abstract.state).compile()
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            jax.eval_shape(view, self._program.abstract.state),
            compiled.output_shardings,
        )
