"""metrics.jsonl is a function of (config, seed, step), wherever the run was killed."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rflib.run import lines
from rflib.run.lines import LineLog

Emit = Callable[[dict[str, Any]], None]


class Killed(Exception):
    pass


def experiment(log: LineLog, emit: Emit, done: dict[str, int], epochs: list[int]) -> None:
    """What an experiment with two fits and two studies does: `done` is what is on disk as finished.

    The fits continue at their last checkpoint (every third step), the study logs its finished
    cells again, and the experiment itself logs before and between them.
    """
    emit({"step": 0, "start": 1.5})
    for phase, steps in zip(("first", "second"), epochs, strict=True):
        if done.get(phase, 0) < steps:
            kept = done.get(phase, 0)
            log.cut(phase, lambda number, _, kept=kept: number < kept)
            for step in range(kept + 1, steps + 1):
                emit({"step": step, "phase": phase, "loss": 1 / step})
                if step % 3 == 0 or step == steps:
                    done[phase] = step
        emit({"step": steps, f"after {phase}": float(steps)})
        study = f"study of {phase}"
        log.cut(study, lambda number, _: False)
        for cell in range(4):
            emit({"step": cell, "phase": study, "value": cell / 7})


def run(path: Path, done: dict[str, int], epochs: list[int], writes: float, torn: bool) -> bool:
    """One session, killed after `writes` lines; whether it came to its end."""
    log = LineLog(path, recognise=True)
    count = 0

    def emit(record: dict[str, Any]) -> None:
        nonlocal count
        if count >= writes:
            raise Killed
        count += 1
        log.append({"time": float(id(log) + count), **record})

    try:
        experiment(log, emit, done, epochs)
    except Killed:
        if torn:
            with open(path, "a") as file:
                file.write('{"step": 3, "ti')
        return False
    finally:
        log.close()
    return True


def timeless(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "time"} for record in lines.read(path)]


@settings(deadline=None, max_examples=40)
@given(
    kills=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=5),
    epochs=st.lists(st.integers(1, 8), min_size=2, max_size=2),
)
def test_a_run_killed_after_any_line_leaves_the_lines_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, bool]], epochs: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    run(folder / "whole", {}, epochs, math.inf, False)
    done: dict[str, int] = {}
    for writes, torn in kills:
        run(folder / "killed", done, epochs, writes, torn)
    assert run(folder / "killed", done, epochs, math.inf, False)
    assert timeless(folder / "killed") == timeless(folder / "whole")


def test_a_line_logged_again_with_another_value_is_replaced_where_it_stood(tmp_path: Path) -> None:
    first = LineLog(tmp_path / "log", recognise=True)
    for step in range(3):
        first.append({"step": step, "loss": 1.0})
    first.close()
    second = LineLog(tmp_path / "log", recognise=True)
    second.append({"step": 1, "loss": 2.0})
    second.append({"step": 1, "other": 3.0})
    assert timeless(tmp_path / "log") == [
        {"step": 0, "loss": 1.0},
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0},
        {"step": 1, "other": 3.0},
    ]


@settings(deadline=None)
@given(value=st.floats(width=64))
def test_a_line_holds_a_float_exactly_and_non_finite_ones_as_null(
    tmp_path_factory: pytest.TempPathFactory, value: float
) -> None:
    path = tmp_path_factory.mktemp("lines") / "log"
    log = LineLog(path, recognise=False)
    log.append({"step": 0, "loss": value})

    def no_constant(name: str) -> None:
        pytest.fail(f"{name} is no strict JSON")

    found = json.loads(path.read_text(), parse_constant=no_constant)["loss"]
    assert found == value if math.isfinite(value) else found is None
