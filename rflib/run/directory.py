"""A run's directory: opening a new one, continuing one's own, refusing another's, clearing."""

import shutil
import tempfile
from pathlib import Path

from rflib.core.errors import UserError
from rflib.run import files
from rflib.run import record as records
from rflib.run.lock import Lock
from rflib.run.record import Record

LOCK = "lock"
DONE = "DONE"
FAILED = "FAILED"
RESULTS = "results.json"
METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
LOG = "log.txt"
OWN = {
    *(records.FILE, RESULTS, METRICS, TIMING, LOG, DONE, FAILED, LOCK),
    *("env.json", "report.md", "report.json", "hang.txt"),
    *("figures", "tables", "arrays", "phases", "tensorboard", "profile"),
}
WORK = (METRICS, DONE, "phases", "figures", "tables", "arrays")


def finished(workdir: Path, config: object) -> bool:
    """Whether `workdir` holds a finished run of exactly this config."""
    found = records.read(workdir)
    return (
        found is not None
        and (workdir / DONE).exists()
        and not records.difference(found.config, config)
    )


def check(workdir: Path, experiment: str, config: object, *, overwrite: bool) -> None:
    """UserError if `prepare` would refuse `workdir` whoever holds it, or nobody can write there."""
    _only_a_run(workdir)
    found = records.read(workdir)
    if found is not None and not overwrite:
        _refuse_another(workdir, found, experiment, config)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir) as probe:
            probe.write(b"room?")
    except OSError as error:
        raise files.unwritable(workdir, error) from error


def prepare(workdir: Path, record: Record, *, overwrite: bool) -> tuple[Lock, bool]:
    """Locks `workdir` for a run of `record`; returns the lock and whether the run continues.

    Raises UserError if the directory belongs to something else, to a run of another config (with
    the difference), or to a live process. With `overwrite` an earlier run's own files go first;
    anything that rflib did not write stays.
    """
    _only_a_run(workdir)
    lock = Lock(workdir / LOCK)
    try:
        found = records.read(workdir)
        if found is not None and not overwrite:
            overwrite = _refuse_another(workdir, found, record.experiment, record.config)
        if overwrite:
            _clear(workdir)
        if overwrite or found is None:
            records.write(workdir, record)
        for name in (DONE, FAILED):
            (workdir / name).unlink(missing_ok=True)
    except BaseException:
        lock.release()
        raise
    return lock, found is not None and not overwrite


def _only_a_run(workdir: Path) -> None:
    if not workdir.exists():
        return
    if not workdir.is_dir():
        raise UserError(f"workdir {workdir} is a file; take another --workdir")
    if records.read(workdir) is not None:
        return
    # Names of OWN prove nothing here: a folder of somebody's may well have its own "figures".
    names = sorted(p.name for p in workdir.iterdir() if not p.name.startswith("."))
    if others := [name for name in names if name != LOCK]:
        raise UserError(
            f"workdir {workdir} is no run's directory and not empty ({', '.join(others[:3])}); "
            "take another --workdir"
        )


def _refuse_another(workdir: Path, found: Record, experiment: str, config: object) -> bool:
    """UserError if `found` is another run; True if it is, but nothing was computed in it yet."""
    lines = records.difference(found.config, config)
    if found.experiment and experiment and found.experiment != experiment:
        lines.insert(0, f"experiment: {found.experiment} there, {experiment} here")
    if not lines:
        return False
    if not any(_filled(workdir / name) for name in WORK):
        return True
    shown = "; ".join(lines[:6]) + (f"; and {len(lines) - 6} more" if len(lines) > 6 else "")
    raise UserError(
        f"workdir {workdir} holds a run of another config ({shown}): "
        "take another --workdir, or --overwrite to replace that run"
    )


def _filled(path: Path) -> bool:
    if path.is_dir():
        return any(item.is_file() for item in path.rglob("*"))
    return path.exists() and (path.name != METRICS or path.stat().st_size > 0)


def _clear(workdir: Path) -> None:
    """Removes what rflib wrote, except the lock that this process holds.

    The record goes last: as long as anything else is left, the directory is known as a run's.
    """
    for name in sorted(OWN - {LOCK}, key=lambda name: name == records.FILE):
        path = workdir / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
