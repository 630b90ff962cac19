"""Runs on data of one's own, trained once for a whole file of tests."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import leddam
from experiments.forecasting import figures
from rflib.data import write_series
from rflib.methods.leddam.generator import generate
from rflib.run.cli import execute as command

TINY = ["--config", str(Path(__file__).resolve().parents[2] / "configs" / "leddam.py:tiny")]
NAMES = ("load", "oil", "wind")


class Own(SimpleNamespace):
    """A run on own data: csv, values [L, 3] in physical units, dates [L], workdir, status."""


def execute(*arguments: str) -> int:
    """The experiment's command line; its exit status."""
    return command(leddam.main, leddam.VERBS, list(arguments))


def train(
    folder: Path, seed: int, rows: int, settings: Mapping[str, Any], *, draw: bool = False
) -> Own:
    """Writes generated series of different units, hour by hour, and trains `tiny` on them.

    draw: with the figures of the run, for which each model is compiled again.
    """
    values = generate(seed, rows=rows, channels=3).values * [10, 0.1, 1000] + [50, 0, -3000]
    dates = np.datetime64("2020-01-01", "s") + np.arange(rows) * np.timedelta64(3600, "s")
    source = write_series(folder / "my data.csv", values, NAMES, dates=dates)
    workdir = folder / "run"
    flags = [f"--config.{key}={value}" for key, value in {"data.path": source, **settings}.items()]
    with pytest.MonkeyPatch.context() as patch:
        if not draw:
            patch.setattr(figures, "draw", lambda run, cells: None)
        status = execute(*TINY, *flags, "--workdir", str(workdir), "--quiet")
    return Own(csv=source, values=values, dates=dates, workdir=workdir, status=status)
