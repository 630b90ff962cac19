"""Scalars for TensorBoard, where tensorboardX is installed; metrics.jsonl stays the truth."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """One event file a phase and seed under `directory`; does nothing without tensorboardX."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._writers: dict[str, Any] = {}
        self._make: Any = None
        self._tried = False

    def scalars(
        self, step: int, metrics: Mapping[str, Any], *, phase: str, seed: int | None
    ) -> None:
        """Adds finite numbers; a continued run hides what an earlier session wrote past it."""
        if not self._tried:
            self._tried, self._make = True, _summary_writer()
        if self._make is None:
            return
        name = (phase or "run") + ("" if seed is None else f"-seed{seed}")
        if name not in self._writers:
            self._writers[name] = self._make(str(self._directory / name), purge_step=step)
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                self._writers[name].add_scalar(metric, value, step)

    def close(self) -> None:
        """Flushes and closes every event file."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _summary_writer() -> Any:
    """tensorboardX's writer or None. It would import torch (seconds) if that is installed."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    finally:
        if hidden:
            del sys.modules["torch"]
    return SummaryWriter
