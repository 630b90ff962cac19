"""Phases by name: one run has one phase of a name, and a second would get the first one's result.

A phase that is called again is a resume if it had not come to its end, or if another process or
another opening of the run ended it; within one opening of a run it is a mistake.
"""

import weakref
from collections.abc import Callable
from typing import Any

from rflib.core.errors import UserError
from rflib.train.task import Logger

_ended: weakref.WeakKeyDictionary[Logger, dict[str, Any]] = weakref.WeakKeyDictionary()


def begin(run: Logger, name: str, goes_on: Callable[[Any], bool]) -> None:
    """Raises a UserError if `run` has ended a phase `name`, unless `goes_on(mark)` of its mark."""
    marks = _ended.get(run, {})
    if name in marks and not goes_on(marks[name]):
        raise UserError(
            f"name={name!r}: this run has ended a phase of this name, whose result would be "
            "returned again; give each phase a name of its own"
        )


def end(run: Logger, name: str, mark: Any) -> None:
    """Notes that `run` has ended the phase `name`. mark: for the `goes_on` of a later `begin`."""
    _ended.setdefault(run, {})[name] = mark
