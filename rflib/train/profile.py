"""A profiler trace of a range of steps."""

from typing import Any

import jax

from rflib.core.errors import UserError
from rflib.train.task import Logger


class Profile:
    """Traces from the first call at or after step `first` to the first at or after `last`.

    The trace lies in `workdir/profile`, readable by XProf and Perfetto.
    """

    def __init__(self, span: tuple[int, int] | None, run: Logger):
        if span is not None and not 0 <= span[0] < span[1]:
            raise UserError(
                f"profile={span[0]}:{span[1]} must be first:last with 0 <= first < last"
            )
        self._span, self._run, self._tracing = span, run, False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._tracing:
            self._end()

    def at(self, step: int) -> None:
        """To be called before the update number `step`."""
        if self._span is None:
            return
        if not self._tracing and self._span[0] <= step < self._span[1]:
            jax.profiler.start_trace(str(self._run.workdir / "profile"))
            self._tracing = True
        elif self._tracing and step >= self._span[1]:
            self._end()

    def _end(self) -> None:
        jax.profiler.stop_trace()
        self._tracing, self._span = False, None
        self._run.note(f"profile written to {self._run.workdir / 'profile'}")
