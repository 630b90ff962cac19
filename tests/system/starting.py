"""Starting the job as its users do, in processes of its own, and what a run has left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rflib.run.cli import execute

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "system" / "config.py"
EVERY_STEP = ("--config.steps=100", "--config.log=1")
PATIENCE = 120  # seconds; a job gives up by itself before


def variable(job: Mapping[str, Any]) -> str:
    """The variable JOB: its keys have spaces where Python's keywords have underscores."""
    return json.dumps({name.replace("_", " "): value for name, value in job.items()})


class Job:
    """One process of the job on `workdir`.

    flags: of the command line, with `variant` of the config. job: the variable JOB. place: (index,
    count, port) of a process that calls jax.distributed.
    """

    def __init__(
        self,
        workdir: Path,
        *flags: str,
        variant: str = "default",
        devices: int = 1,
        place: tuple[int, int, int] | None = None,
        **job: Any,
    ):
        command = [sys.executable, "-m", "tests.system.job", f"--config={CONFIG}:{variant}"]
        command += [f"--workdir={workdir}", "--quiet", *flags]
        environment = os.environ | {
            "JOB": variable(job),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        if place is not None:
            command.append("--distributed")
            environment |= {
                "JAX_PROCESS_ID": str(place[0]),
                "JAX_NUM_PROCESSES": str(place[1]),
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{place[2]}",
            }
        self.workdir = workdir
        self._output = workdir.parent / f"{workdir.name}-{time.monotonic_ns()}.txt"
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        """What it has said so far, on standard output and standard error."""
        return self._output.read_text()

    def wait(self) -> int:
        """Its exit status (negative: the signal that killed it)."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Waits for `condition`; the job must live until then."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.text}"
            time.sleep(0.01)

    def kill(self) -> int:
        """SIGKILL; returns the exit status, which is 0 if it came too late."""
        self.process.send_signal(signal.SIGKILL)
        return self.wait()


def start(workdir: Path, *flags: str, processes: int = 0, **settings: Any) -> list[Job]:
    """Starts the job: one process, or `processes` of them under jax.distributed.

    A setting whose value is a list has one value a process.
    """
    if not processes:
        return [Job(workdir, *flags, **settings)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def own(index: int) -> dict[str, Any]:
        return {k: v[index] if isinstance(v, list) else v for k, v in settings.items()}

    return [
        Job(workdir, *flags, place=(index, processes, port), **own(index))
        for index in range(processes)
    ]


def command_line(*argv: str, status: int = 0, **job: Any) -> None:
    """The job's command line in this process, on its eight devices; `job` as for Job."""
    from tests.system.job import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOB", variable(job))
        assert execute(main, {}, argv) == status


def here(workdir: Path, *flags: str, status: int = 0, **job: Any) -> Path:
    """A run by `command_line`; its directory."""
    command_line(
        f"--config={CONFIG}", f"--workdir={workdir}", "--quiet", *flags, status=status, **job
    )
    return workdir


def rewound(workdir: Path, copy: Path, *, checkpoint: bool = True) -> Path:
    """A copy of a finished run as it was before its end, or before its newest checkpoint."""
    shutil.copytree(workdir, copy)
    (copy / "phases/fit/done.json").unlink()
    (copy / "DONE").unlink()
    if not checkpoint:
        shutil.rmtree(copy / f"phases/fit/checkpoints/{checkpoints(copy)[-1]}")
    return copy


def ended(jobs: list[Job], status: int) -> str:
    """Waits for all; they must have this exit status. Returns what they said."""
    statuses = [job.wait() for job in jobs]
    text = "\n".join(job.text for job in jobs)
    assert statuses == [status] * len(jobs), f"{statuses} where {status} is expected:\n{text}"
    return text


def checkpoints(workdir: Path) -> list[int]:
    """The complete checkpoints of the run, ascending."""
    found = workdir.glob("phases/fit/checkpoints/*/manifest.json")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())


def noted(workdir: Path, text: str) -> int:
    """How often the run's notes say `text`."""
    log = workdir / "log.txt"
    return log.read_text().count(text) if log.exists() else 0


def lines(workdir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, which the first line makes, without the field `time`."""
    file = workdir / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    records = [json.loads(line) for line in text.splitlines()]
    assert all(record.pop("time") > 0 for record in records)
    return records


def results(workdir: Path) -> dict[str, Any]:
    """What must not depend on the fate of a run: its status, metrics and digests."""
    report = json.loads((workdir / "report.json").read_text())
    assert (workdir / "DONE").exists() == (report["status"] == "done")
    return {"status": report["status"], "metrics": report["metrics"]}


def assert_same(workdir: Path, reference: Path) -> None:
    """`workdir` ended as if nothing had happened to it: bits, lines, best view, last step."""
    assert results(workdir) == results(reference)
    assert results(workdir)["status"] == "done"
    assert lines(workdir) == lines(reference)
    marks = [(line["step"], *sorted(line)) for line in lines(workdir)]
    assert len(set(marks)) == len(marks), "a step was logged twice"
