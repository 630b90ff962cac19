"""A watchdog for hangs: no step for far longer than steps take ends the process with a stack dump.

A collective that waits for a lost process, or a data source that never answers, blocks the main
thread inside C++ for ever, and SIGTERM is not heard there. Only another thread can end the process.
"""

import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rflib.core.checks import in_range

STATUS = 6  # the exit status of a hung run
_GRACE = 10.0  # seconds for writing the report


class Watchdog:
    """Exits with status 6 when no `beat` came for max(least, factor x the median step).

    directory: where "hang.txt", the stacks of all threads, is written; also shown on stderr.
    factor, least: multiples of the median step, and seconds; both positive.
    on_hang: called with the line that describes the hang before the exit; it gets 10 s.

    Time counts in ticks of the watching thread, so a process that was suspended is not taken for a
    hung one. A main thread that blocks without letting go of the interpreter lock is not seen.
    """

    def __init__(
        self,
        directory: Path,
        *,
        factor: float | int = 50.0,
        least: float | int = 300.0,
        on_hang: Callable[[str], None] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._factor = in_range("factor", float(factor), 0.0, open_low=True)
        self._least = in_range("least", float(least), 0.0, open_low=True)
        self._on_hang = on_hang
        self._period = min(max(least / 10, 0.02), 5.0)
        self._beats = 0
        self._seen = 0
        self._pauses = 0
        self._idle = 0.0  # unpaused seconds since the last tick that saw a beat
        self._typical: deque[float] = deque(maxlen=101)  # seconds a step, one entry a tick
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._leave.set()
        self._thread.join()

    def beat(self) -> None:
        """A step was made."""
        self._beats += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block does not count: compilation, saving, an eval. Blocks may nest."""
        self._pauses += 1
        try:
            yield
        finally:
            self._idle = 0.0
            self._pauses -= 1

    @property
    def limit(self) -> float:
        """Seconds without a step that count as a hang, by what steps have taken so far."""
        typical = statistics.median(self._typical) if self._typical else 0.0
        return max(self._least, self._factor * typical)

    def tick(self, seconds: float) -> bool:
        """Accounts for `seconds` of watching; True if the run hangs."""
        beats = self._beats
        if self._pauses:
            self._seen = beats
            return False
        self._idle += min(seconds, 2 * self._period)
        if beats == self._seen:
            return self._idle > self.limit
        self._typical.append(self._idle / (beats - self._seen))
        self._seen, self._idle = beats, 0.0
        return False

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._leave.wait(self._period):
            now = time.monotonic()
            if self.tick(now - before):
                # A dead disk may be why the run hangs: writing must not keep the exit from coming.
                report = threading.Thread(target=self._report, daemon=True)
                report.start()
                report.join(_GRACE)
                os._exit(STATUS)
            before = now

    def _report(self) -> None:
        text = (
            f"hung: no step for {self._idle:.3g} s (limit {self.limit:.3g} s) after "
            f"{self._beats} steps; stacks of all threads: {self._directory / 'hang.txt'}"
        )
        if sys.__stderr__ is not None:  # a notebook's sys.stderr has no file descriptor
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
            print(text, file=sys.__stderr__, flush=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / "hang.txt", "w") as file:
            print(text, file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
        if self._on_hang is not None:
            self._on_hang(text)
