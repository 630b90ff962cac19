"""What people see while a run goes on: a bar on a terminal, a plain line otherwise."""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from rflib.run.claims import shown

SHOWN_METRICS = 4


def clock(seconds: float) -> str:
    """`2:05` or `1:02:05`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def describe(metrics: Mapping[str, Any]) -> str:
    """The first few metrics that are one number or word, the loss in front."""
    scalars = {
        name: value
        for name, value in metrics.items()
        if getattr(value, "ndim", 0) == 0 and not isinstance(value, Mapping | list | tuple)
    }
    names = sorted(scalars, key=lambda name: not name.endswith("loss"))[:SHOWN_METRICS]
    return " ".join(
        f"{name} {shown(value.item() if hasattr(value, 'item') else value)}"
        for name, value in ((name, scalars[name]) for name in names)
    )


class Progress:
    """Shows steps and notes on standard output; `quiet` shows nothing."""

    def __init__(self, *, quiet: bool):
        self._quiet = quiet
        self._bar: Any = None
        self._phase: str | None = None
        self._task: Any = None
        self._line = ""

    def step(
        self, step: int, steps: int, metrics: Mapping[str, Any], rate: float, phase: str
    ) -> None:
        """Phase `phase` has done `step` of `steps`, at `rate` steps a second."""
        if self._quiet:
            return
        left = clock((steps - step) / rate) if rate > 0 else "?"
        speed = f"{rate:.4g} steps/s" if rate > 0 else ""
        parts = (f"{phase or 'run'} {step}/{steps}", describe(metrics), speed)
        line = "  ".join(part for part in parts if part)
        if not sys.stdout.isatty():
            print(f"{line}  {left} left", flush=True)
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
                self.note(self._line)  # one bar at a time, what it ended with above it
            self._phase = phase
            self._task = self._bar.add_task(phase or "run", total=steps, note="", left="")
        self._line = line
        self._bar.update(
            self._task,
            completed=step,
            total=steps,
            note=f"{describe(metrics)}  {speed}",
            left=f"{left} left" if step < steps else "",
        )

    def note(self, text: str) -> None:
        """One line, above the bar if there is one."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Takes the bar down, its last state staying on the screen."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
            self._bar = self._task = self._phase = None


def _bar() -> Any:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        progress.TextColumn("{task.fields[left]}"),
        refresh_per_second=4,
    )
