"""`study`: a table of independent cells, each computed once and kept by its content."""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rflib.core import keys
from rflib.core.errors import DryRun, UserError
from rflib.train import phases, preemption
from rflib.train.task import Cell, Logger, Metrics, Study


class _Kept(NamedTuple):
    """A finished cell: its metrics as they read back from JSON, and what it took in seconds."""

    metrics: dict[str, Any]
    seconds: float


def study(study: Study, run: Logger, *, name: str = "study", seed: int) -> dict[str, Metrics]:
    """Runs the cells of `study` that are not finished yet; returns the metrics of all, by name.

    A cell is kept in `<workdir>/phases/<name>/cells/<hash>.json`, its hash taken over its name, its
    arguments and `seed`: changed arguments are a new cell, and a restart runs what is missing. Its
    key depends on `name` and that hash only, so neither order nor company of a cell matters.
    Metrics are numbers, or anything JSON holds; arrays come back as nested lists, NaN and infinity
    as themselves. SIGTERM lets the cell at hand finish, then Stopped is raised. With several
    processes all run every cell, and what process 0 kept counts. `summary` is called again when a
    finished study is: it makes figures, tables and claims, and logs no lines.

    Raises UserError for two cells of one name, for values that JSON cannot hold, and for the name
    of another phase that this session has ended.
    """
    names = Counter(cell.name for cell in study.cells)
    twice = [word for word, count in names.items() if count > 1]
    if twice:
        raise UserError(f"study {name!r}: cells need names of their own; repeated: {twice}")
    phase = run.workdir / "phases" / name
    digests = {cell.name: _digest(cell, seed) for cell in study.cells}
    same = lambda ended: isinstance(ended, dict) and ended.items() <= digests.items()  # noqa: E731
    phases.begin(run, name, same)
    first = jax.process_index() == 0
    kept = _agree(_load(phase / "cells", digests, run) if first else {})
    if run.options.dry:
        run.note(f"study {name!r}: {len(digests)} cells, {len(kept)} of them finished")
        raise DryRun
    # Later phases may have logged after a finished study: its lines must stay where they are.
    logged = len(kept) == len(digests) and _read(phase / "done.json") == digests
    if not logged:
        run.cut(phase=name, step=0, lines=0)
    root, fresh = jax.random.key(seed), []
    results: dict[str, Metrics] = {}
    with preemption.Guard():
        for done, cell in enumerate(study.cells, 1):
            found = kept.get(cell.name)
            if found is None:
                preemption.check()
                begun = time.perf_counter()
                metrics = dict(study.run(cell, keys.named(root, name, digests[cell.name])))
                seconds = time.perf_counter() - begun
                found = _Kept(_plain(metrics, f"metrics of cell {cell.name!r}"), seconds)
                fresh.append(seconds)
                if first:
                    record = {"cell": cell.name, **found._asdict()}
                    record["checksum"] = _checksum(found.metrics)
                    _write(phase / "cells" / f"{digests[cell.name]}.json", record)
            results[cell.name] = found.metrics
            if not logged:
                run.log(done, {"cell": cell.name, **found.metrics}, phase=name)
                run.timing(done, {"cell_seconds": found.seconds}, phase=name)
                rate = len(fresh) / sum(fresh) if fresh else 0.0
                run.progress(done, len(study.cells), found.metrics, rate, name)
        if first and not logged:
            _write(phase / "done.json", digests)
        preemption.check()
    if study.summary is not None:
        study.summary(results)
    phases.end(run, name, digests)
    return results


def _plain(value: Any, what: str) -> Any:
    """`value` after a trip through JSON, so that a kept cell and a fresh one read alike."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Mapping):
            return dict(leaf)
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            return np.asarray(leaf).tolist()
        raise TypeError(f"{leaf!r} of type {type(leaf).__name__} is no JSON value")

    try:
        return json.loads(json.dumps(value, default=convert))
    except TypeError as error:
        raise UserError(f"{what}: {error}") from None


def _digest(cell: Cell, seed: int) -> str:
    content = {"name": cell.name, "arguments": dict(cell.arguments), "seed": seed}
    plain = _plain(content, f"arguments of cell {cell.name!r}")
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _checksum(metrics: Any) -> str:
    return hashlib.sha256(json.dumps(metrics).encode()).hexdigest()


def _write(path: Path, record: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open(part, "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _read(path: Path) -> Any:
    """What `_write` wrote; None where there is nothing or it is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _load(directory: Path, digests: Mapping[str, str], run: Logger) -> dict[str, _Kept]:
    """The finished cells that verify; a damaged file is renamed, named in a note and run again."""
    kept = {}
    for name, digest in digests.items():
        path = directory / f"{digest}.json"
        record = _read(path)
        if isinstance(record, dict) and record.get("checksum") == _checksum(record.get("metrics")):
            kept[name] = _Kept(record["metrics"], record.get("seconds", 0.0))
        elif path.exists():
            count = len(list(directory.glob(f"bad-{digest}-*")))
            aside = path.rename(directory / f"bad-{digest}-{count}.json")
            run.note(f"cell {name!r} runs again: {path} is damaged, set aside as {aside.name}")
    return kept


def _agree(kept: dict[str, _Kept]) -> dict[str, _Kept]:
    """What process 0 holds, on every process."""
    if jax.process_count() == 1:
        return kept
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(kept).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    shared = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    return {name: _Kept(*value) for name, value in json.loads(bytes(shared)).items()}
