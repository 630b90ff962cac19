"""The data sets of a config, one after the other: own data, benchmarks, generated series."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rflib.core.checks import distinct, one_of, positive_int
from rflib.data import find
from rflib.methods.leddam.data import (
    GENERATED,
    LAYOUTS,
    REMOTES,
    ForecastData,
    filenames,
    is_own_file,
    load,
)


def data_sets(config: Any, run: Any) -> Iterator[ForecastData]:
    """Every data set of `config.data` with every horizon; what is found is noted once each."""
    d = config.data
    one_of("config.data.missing", d.missing, ("generate", "skip", "fail"))
    one_of("config.data.gaps", d.gaps, ("error", "mask"))
    distinct("config.data.names", d.names)
    for horizon in distinct("config.data.horizons", d.horizons):
        positive_int("config.data.horizons", horizon)  # all of them before the first is trained
    for place, name in enumerate(_names(d)):
        if not _wanted(name, d, run):
            continue
        for horizon in d.horizons:
            first = horizon == d.horizons[0]
            data = load(
                name,
                path=d.path,
                seq_len=d.seq_len,
                pred_len=horizon,
                target=d.target,
                rows=d.rows,
                channels=d.channels,
                seed=d.seed + place,
                gaps=d.gaps == "mask",
                required=d.missing == "fail",
                notice=run.note if first else _said_already,
            )
            if first:
                rows, columns = data.values.shape
                run.note(f"{data.name}: {rows} rows of {columns} series, {data.origin}")
                if data.observed is not None:
                    share = 1 - data.observed.mean()
                    run.note(f"{data.name}: {share:.2%} of the values are missing")
            yield replace(data, name=_identifier(data.name))


def _names(d: Any) -> tuple[str, ...]:
    """The data sets to load: if `path` is one file, that one only, as what it is."""
    if is_own_file(d.path):
        return (GENERATED,)  # the name does not matter to `load` then
    file = Path(d.path).expanduser()
    if d.path and file.is_file():
        return tuple(
            name for name in LAYOUTS if file.name in {Path(each).name for each in filenames(name)}
        )
    return tuple(one_of("config.data.names", name, (*LAYOUTS, GENERATED)) for name in d.names)


def _wanted(name: str, d: Any, run: Any) -> bool:
    """Whether the data set takes part; with missing="skip", only if it is found."""
    if d.missing != "skip" or name == GENERATED:
        return True
    remotes = [REMOTES[name]] if name in REMOTES else []
    instead = "the other data sets"
    found = find(
        "leddam", filenames(name), path=d.path, remotes=remotes, instead=instead, notice=run.note
    )
    return found is not None


def _said_already(text: str) -> None:
    """The notices of a data set are given with its first horizon."""


def _identifier(name: str) -> str:
    """A data set's name as names of files and phases can hold it."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-._+") or "data"
