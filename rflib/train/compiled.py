"""Ahead-of-time compilation for one signature: another is an error that shows the difference."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from rflib.core import trees
from rflib.core.errors import Retraced

PyTree = Any


class Times(NamedTuple):
    """The stages between a Python function and an executable."""

    trace_seconds: float
    lower_seconds: float
    compile_seconds: float


class Compiled:
    """`fn` compiled for the shapes, dtypes and shardings of `example`; it can never retrace.

    Args:
      name: what error messages call the function.
      fn: a pure function of positional pytrees.
      example: its arguments, concrete or as ShapeDtypeStructs.
      argument_names: their names, for error messages.
      donate: positions of the arguments whose buffers may be reused.
      out_shardings: as for `jax.jit`.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        example: Sequence[PyTree],
        *,
        argument_names: Sequence[str],
        donate: tuple[int, ...] = (),
        out_shardings: Any = None,
    ):
        self.name = name
        self._names = tuple(argument_names)
        self._signature = _signatures(self._names, example)
        options = {} if out_shardings is None else {"out_shardings": out_shardings}
        jitted = jax.jit(fn, donate_argnums=donate, **options)
        clock = [time.perf_counter()]
        traced = jitted.trace(*example)
        clock.append(time.perf_counter())
        lowered = traced.lower()
        clock.append(time.perf_counter())
        self.executable = lowered.compile()
        clock.append(time.perf_counter())
        self.times = Times(*(b - a for a, b in itertools.pairwise(clock)))

    def __call__(self, *arguments: PyTree) -> Any:
        try:
            return self.executable(*arguments)
        except (TypeError, ValueError) as error:
            found = _signatures(self._names, arguments)
            if found == self._signature:
                raise
            raise _retraced(self.name, self._signature, found) from error


def _signatures(names: Sequence[str], arguments: Sequence[PyTree]) -> dict[str, str]:
    named = dict(zip(names, arguments, strict=True))
    return trees.signature(jax.tree.map(_as_array_like, named))


def _as_array_like(leaf: Any) -> Any:
    if hasattr(leaf, "dtype"):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _retraced(name: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Retraced:
    lines = trees.difference(expected, found)
    return Retraced(
        f"{name} was compiled for one signature and called with another:\n  " + "\n  ".join(lines)
    )


def once(name: str, fn: Callable[..., Any], *, argument_names: Sequence[str]) -> Callable[..., Any]:
    """`jax.jit(fn)` that is traced for one signature; a call of another one raises Retraced.

    Another placement of equal shapes and dtypes compiles again, without a word.
    """
    first: list[dict[str, str]] = []

    def traced(*arguments: PyTree) -> Any:
        signature = _signatures(argument_names, arguments)
        if first and first[0] != signature:
            raise _retraced(name, first[0], signature)
        first.append(signature)
        return fn(*arguments)

    return jax.jit(traced)
