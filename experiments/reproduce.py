"""Runs every system, each in its own process, and ends with one table of claims.

python -m experiments.reproduce --variant tiny

A run that is done already is not run again. One that fails does not stop the others; the exit
status is then 1. A refuted claim is a result and no failure.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rflib.core import checks
from rflib.core.errors import Stopped
from rflib.run import catalogue, files, report
from rflib.run.arguments import Flag
from rflib.run.progress import clock

FLAGS = (
    Flag("variant", "default", "the variant of every system (tiny: minutes in all)"),
    Flag("only", None, "some systems, by name, with commas between"),
    Flag("workdir", "runs", "where the run directories are made, <name>-<variant>"),
)


def main(flags: Any, words: list[str]) -> int:
    variant, root = flags["variant"].value, Path(flags["workdir"].value)
    systems = catalogue.select(catalogue.systems(), ",".join(words) or flags["only"].value)
    known = {name: None for system in systems for name in system.variants}
    checks.one_of("variant", variant, known)
    reports = []
    for system in systems:
        if variant not in system.variants:
            print(f"{system.name}: has no variant {variant}, left out", flush=True)
            continue
        reports.append(one(system.name, variant, root / f"{system.name}-{variant}"))
    print("\n" + catalogue.table(reports))
    return int(any(content["status"] != "done" for content in reports))


def one(name: str, variant: str, workdir: Path) -> dict[str, Any]:
    """Runs one system and returns its report, or what stands for that of a failed run."""
    workdir.parent.mkdir(parents=True, exist_ok=True)
    log = workdir.with_name(f"{workdir.name}.log")
    config = f"configs/{name}.py:{variant}"
    command = [sys.executable, "-m", f"experiments.{name}", "--config", config]
    start = time.monotonic()
    with open(log, "w") as output, started([*command, "--workdir", str(workdir)], output) as child:
        status = child.wait()
    spent = clock(time.monotonic() - start)
    content = files.read_json(workdir / report.JSON) if status == 0 else None
    if content is not None:
        print(f"{name}: {catalogue.verdicts(content)} ({spent})", flush=True)
        return content
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    print(f"{name}: failed with exit status {status} ({spent}): {last} ({log})", flush=True)
    if status == Stopped.status:
        raise Stopped(f"{name} was stopped; the same command goes on from there")
    return {"experiment": name, "variant": variant, "status": "failed", "claims": []}


@contextlib.contextmanager
def started(command: list[str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that gets the SIGTERM that this one gets, and is waited for."""
    child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    former = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        yield child
    except KeyboardInterrupt:  # the terminal has told the child too
        child.wait()
        raise Stopped("interrupted; the same command goes on from here") from None
    finally:
        signal.signal(signal.SIGTERM, former)


if __name__ == "__main__":
    catalogue.command(main, FLAGS, __doc__)
