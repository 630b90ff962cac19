"""SIGTERM: who hears it, and when a run may leave.

The signal has one owner. Without `jax.distributed` it is our own handler, which only sets a flag.
With it, JAX's notifier has the signal already and a handler installed after it would silence it, so
none is installed; the notifier tells all processes, and they agree on a common call of `poll`.
"""

import signal
import threading
from typing import Any

import jax

from rflib.core.errors import Stopped

_active: "Guard | None" = None
# The notifier's meeting point is "largest number seen + 1", once: the numbers must be consecutive
# over the whole process (not steps, and not restarted by the next phase), and the answer kept.
_calls = 0
_met = False


class Guard:
    """Holds SIGTERM back while the block runs; `poll` tells at safe points that it has come.

    Guards nest: an inner one is the outer one. A signal that nobody polled any more raises Stopped
    on leaving the outermost block, so none is lost between two phases. Outside the main thread and
    without `jax.distributed` there is no way to hear the signal: then `poll` is always False.
    """

    def __init__(self) -> None:
        self._outer: Guard | None = None
        self._entered = False
        self._installed = False
        self._distributed = False
        self._previous: Any = None
        self._flag = False
        self._told = False

    def __enter__(self) -> "Guard":
        global _active
        if _active is not None:
            self._outer = _active
            return _active
        _active, self._entered = self, True
        self._distributed = jax.distributed.is_initialized()
        if not self._distributed and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._hear)
            self._installed = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        global _active
        if not self._entered:
            return
        _active, self._entered = None, False
        if self._installed:
            # None: the former handler was installed from C and cannot be put back.
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._installed = False
        if kind is None and self._flag and not self._told:
            raise _stopped()

    def _hear(self, number: int, frame: Any) -> None:
        self._flag = True

    @property
    def requested(self) -> bool:
        """Whether this process knows that it has to leave; ahead of `poll`, so only for display."""
        return self._flag or _met

    def poll(self) -> bool:
        """Whether to save and leave now: True at the same call on every process, and ever after.

        Every process must make the same calls in the same order (each call counts).
        """
        if self._distributed:
            return _meet()
        if self._flag:
            self._told = True
        return self._flag


def _meet() -> bool:
    global _calls, _met
    from jax.experimental import multihost_utils

    if not _met:
        try:
            _met = multihost_utils.reached_preemption_sync_point(_calls)
        except RuntimeError:  # the user turned jax_enable_preemption_service off
            return False
        _calls += 1
    return _met


def _stopped() -> Stopped:
    return Stopped("stopped by SIGTERM; the same command goes on from here")


def poll() -> bool:
    """`Guard.poll` of the active guard; False where there is none."""
    return _active.poll() if _active is not None else False


def check() -> None:
    """Raises Stopped if the active guard says to leave: for eval batches, cells of a study."""
    if poll():
        raise _stopped()
