"""A run of several processes has one writer, and all of them agree on how it opens."""

import socket
from pathlib import Path

import pytest

from tests.run import project

pytestmark = pytest.mark.multiprocess


def together(folder: Path, *arguments: str) -> list[tuple[int, str, str]]:
    """(status, output, errors) of two processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        project.start(
            folder,
            "experiments.toy",
            "--distributed",
            "--config",
            "configs/toy.py:tiny",
            *arguments,
            JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(index),
            XLA_FLAGS="--xla_force_host_platform_device_count=1",
        )
        for index in range(2)
    ]
    try:
        ends = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, "\n".join(x for x in out.splitlines() if "[Gloo]" not in x), err)
        for process, (out, err) in zip(processes, ends, strict=True)
    ]


def test_process_0_writes_and_speaks_for_all_and_a_refusal_ends_all(tmp_path: Path) -> None:
    folder = project.write(tmp_path)
    (first, out, err), (second, other, _) = together(folder)
    assert first == second == 0, err
    assert out.splitlines()[-1] == "done: runs/toy-tiny/report.md" and other == ""
    assert len((folder / "runs/toy-tiny/metrics.jsonl").read_text().splitlines()) == 4

    (first, out, _), (second, other, _) = together(folder)
    assert first == second == 0 and "is done" in out and other == ""

    (first, _, err), (second, _, other) = together(folder, "--config.steps=4")
    assert first == second == 2
    assert "steps: 3 there, 4 here" in err and "process 0 could not open" in other
