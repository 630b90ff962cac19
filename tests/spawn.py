"""Python code in processes of its own: one, or several that find each other."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 120  # seconds


def python(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A process of one CPU device that can import rflib and tests; its output is one text."""
    variables = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)} | environment
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def told(text: str, word: str) -> str:
    """The one line of a process's output that begins with `word`; jax and C++ may write too."""
    (line,) = [each for each in text.splitlines() if each.startswith(word)]
    return line


def together(code: str, *arguments: object, count: int = 2) -> list[str]:
    """What each of `count` processes of jax.distributed has said; all must end with status 0.

    The code joins them with `rflib.train.mesh.initialize_distributed()`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    children = [
        python(
            code,
            *arguments,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES=str(count),
            JAX_PROCESS_ID=str(index),
        )
        for index in range(count)
    ]
    try:
        said = [child.communicate(timeout=PATIENCE)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    for child, text in zip(children, said, strict=True):
        assert child.returncode == 0, text
    return said
