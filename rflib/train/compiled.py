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
    """Seconds of each stage between a Python function and an executable."""

    trace: float
    lower: float
    compile: float


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
        self._signature = self._signatures(example)
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
            lines = trees.difference(self._signature, self._signatures(arguments))
            if not lines:
                raise
            raise Retraced(
                f"{self.name} was compiled for one signature and called with another:\n  "
                + "\n  ".join(lines)
            ) from error

    def _signatures(self, arguments: Sequence[PyTree]) -> Mapping[str, str]:
        named = dict(zip(self._names, arguments, strict=True))
        return trees.signature(jax.tree.map(_as_array_like, named))


def _as_array_like(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else jax.ShapeDtypeStruct(*_shape_and_type(leaf))


def _shape_and_type(leaf: Any) -> tuple[tuple[int, ...], Any]:
    aval = jax.typeof(leaf)
    return aval.shape, aval.dtype


def once(name: str, fn: Callable[..., Any], *, argument_names: Sequence[str]) -> Callable[..., Any]:
    """`fn` compiled at its first call; a later call of another signature raises Retraced."""
    compiled: list[Compiled] = []

    def call(*arguments: PyTree) -> Any:
        if not compiled:
            compiled.append(Compiled(name, fn, arguments, argument_names=argument_names))
        return compiled[0](*arguments)

    return call
