"""The types of the harness: small tuples of pure functions, and what `fit` asks of its logger."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array

PyTree = Any
Key = Array
State = PyTree
Batch = PyTree
Variables = dict[str, PyTree]
Metrics = Mapping[str, Any]


class Aux(NamedTuple):
    """What a loss returns beside the scalar: metrics to log, and `extra` variables to carry on."""

    metrics: Metrics = {}  # noqa: RUF012 (never mutated)
    extra: PyTree = None


class Eval(NamedTuple):
    """A measurement of the trained view.

    run(view, key) -> metrics. It may run host code and loop over batches (see
    `evaluation.over_batches`, which also lets SIGTERM through between batches).
    every: steps between two runs; 0 means once, at the end, on the best view if some eval has
        `best`, else on the last one.
    best: "min" or "max" keeps the view at the best value of `metric`.
    """

    run: Callable[[PyTree, Key], Metrics]
    every: int = 0
    best: str | None = None
    metric: str = "loss"


class Task(NamedTuple):
    """A learning problem as pure functions.

    init(key) -> {"params": ..., "extra": ...}.
    loss(variables, batch, key) -> (scalar, Aux); with `data`, `batch` is the pair (data, rows).
    batch(step) -> this process's rows, arrays with the batch in front; pure in the step.
    data: arrays kept on the device and shared by all steps; `batch` then gives indices.
    weight(batch) -> the examples or tokens that the loss averages over: makes accumulation exact.
    flops: analytic floating-point operations of one training step per example.
    """

    init: Callable[[Key], Variables]
    loss: Callable[[Variables, Batch, Key], tuple[Array, Aux]]
    batch: Callable[[int], Batch]
    data: PyTree = None
    evals: Mapping[str, Eval] = {}
    weight: Callable[[Batch], Array] | None = None
    flops: float | None = None


def _identity(state: State) -> PyTree:
    return state


class Step(NamedTuple):
    """Any long computation: training, a game's iteration, a stream of simulations.

    init(key) -> state, any pytree of arrays.
    update(state, batch, key) -> (state, metrics); pure. The harness compiles it and donates the
    state, never the data. A metric named "skipped" that is not 0 excuses non-finite metrics.
    view(state) -> what evals, the best-kept view and verbs see.
    inspect(state, batch, key) -> further arrays (the gradients) in which to look for the leaf
    that first became non-finite.
    """

    init: Callable[[Key], State]
    update: Callable[[State, Batch, Key], tuple[State, Metrics]]
    view: Callable[[State], PyTree] = _identity
    inspect: Callable[[State, Batch, Key], PyTree] | None = None


class Cell(NamedTuple):
    """One independent entry of a study; `arguments` are JSON values and identify it by content."""

    name: str
    arguments: Mapping[str, Any]


class Study(NamedTuple):
    """A table of independent cells: theory, kernels, sweeps, seeds, audits."""

    cells: Sequence[Cell]
    run: Callable[[Cell, Key], Metrics]
    summary: Callable[[Mapping[str, Metrics]], None] | None = None


class Checkpoint(NamedTuple):
    """When to save: every so many steps (0: only at the end and when stopped), how many to keep."""

    every: int = 0
    keep: int = 3


class EarlyStop(NamedTuple):
    """Stop after `patience` runs of the eval named `eval` without a new best (its `best` is set).

    A tie with the best so far counts as an improvement if `ties`.
    """

    eval: str
    patience: int
    ties: bool = True


class StepInfo(NamedTuple):
    """What a hook sees: the steps done, the state's view, and the run's logger."""

    step: int
    view: PyTree
    run: "Logger"


class Hook(NamedTuple):
    """Host code called after every `every` steps."""

    run: Callable[[StepInfo], None]
    every: int


class Options(NamedTuple):
    """Wishes of the command line that `fit` obeys.

    dry: show the parameter table, the memory estimate and one step, then leave.
    replay: reproduce the non-finite step recorded in this run's directory, then leave.
    profile: (first, last) steps of the profiler trace.
    """

    dry: bool = False
    replay: bool = False
    profile: tuple[int, int] | None = None


@runtime_checkable
class Logger(Protocol):
    """What `fit` and `study` need of a run. `rflib.run.Run` is one."""

    @property
    def workdir(self) -> Path: ...

    @property
    def options(self) -> Options: ...

    def log(self, step: int, metrics: Metrics, *, phase: str = "", seed: int | None = None) -> None:
        """Appends one line to metrics.jsonl and flushes it."""
        ...

    def timing(self, step: int, values: Metrics, *, phase: str = "") -> None:
        """Appends one line to timing.jsonl: whatever the clock measured."""
        ...

    def cut(self, *, phase: str, step: int, lines: int) -> None:
        """On resume: keeps the first `lines` metric lines of `phase`, its timing up to `step`."""
        ...

    def logged(self, phase: str) -> int:
        """How many metric lines `phase` has: those that `cut` kept, and all `log` since."""
        ...

    def progress(self, step: int, steps: int, metrics: Metrics, rate: float, phase: str) -> None:
        """Shows where the phase is; `rate` in steps a second."""
        ...

    def note(self, text: str) -> None:
        """One line for people."""
        ...


class Result(NamedTuple):
    """What a phase ends with.

    state: the last state. view: its view. best: the best-kept view, or None. step: steps done.
    metrics: "eval/metric" -> value of the last run of each eval. With `seeds`, state, view and
    best have a leading axis of seeds, and metrics, best_step and best_value are lists over seeds.
    reason: "steps" or "early stop".
    """

    state: State
    view: PyTree
    best: PyTree
    step: int
    metrics: Any
    best_step: Any
    best_value: Any
    reason: str
