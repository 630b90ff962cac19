"""One live writer for each run directory."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from rflib.core.errors import UserError
from rflib.run import files

try:
    import fcntl
except ImportError:  # Windows: the process id in the file is all there is
    fcntl = None


class Lock:
    """Holds `path` while the process lives: a kernel lock, and inside the file who holds it.

    The kernel's lock goes with the process, so a killed run needs no cleaning up. Where a file
    system has no such locks, the process id, its start time and the host in the file decide; a
    holder on another host counts as alive.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(path)
        except OSError as error:
            raise files.unwritable(path, error) from error
        holder = _read(self._file)
        if not _take(self._file) or _alive(holder):
            os.close(self._file)
            raise UserError(_held(path, holder))
        self.took_over = bool(holder)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(_self()).encode(), 0)

    def release(self) -> None:
        """Removes the file and lets the next writer in."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)


def _take(file: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _read(file: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _self() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "pid": pid,
        "host": socket.gethostname(),
        "born": _born(pid),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _born(pid: int) -> str | None:
    """Start time of a process in the kernel's ticks: tells a reused process id from its owner."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _alive(holder: dict[str, Any]) -> bool:
    if not holder:
        return False
    if holder.get("host") != socket.gethostname():
        return True
    pid = holder.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return holder.get("born") is None or holder["born"] == _born(pid)


def _held(path: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    text = f"workdir {path.parent} is in use by {who} since {holder.get('since', '?')}"
    if holder and holder.get("host") != socket.gethostname():
        return f"{text}; if that machine is gone, remove {path}"
    return f"{text}; wait for it or take another --workdir"
