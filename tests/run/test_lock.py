"""One live writer for each run directory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rflib.core.errors import UserError
from rflib.run import lock
from rflib.run.lock import Lock

HOLDER = "import sys, time; from pathlib import Path; from rflib.run.lock import Lock; " + (
    "kept = Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


def test_a_second_writer_in_the_same_process_is_refused_until_the_first_lets_go(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run" / "lock"
    first = Lock(path)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        Lock(path)
    first.release()
    assert not path.exists()
    Lock(path).release()


def test_a_live_process_keeps_its_lock_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        try:
            with pytest.raises(UserError, match=f"process {holder.pid} on"):
                Lock(path)
        finally:
            holder.send_signal(signal.SIGKILL)
        holder.wait()
    taken = Lock(path)
    assert taken.took_over
    taken.release()


def entry(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(lock._self() | fields))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times need /proc")
def test_where_the_kernel_lock_is_missing_the_entry_decides(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        time.sleep(0.1)
        entry(path, pid=other.pid, born=lock._born(other.pid))
        with pytest.raises(UserError, match=f"process {other.pid}"):
            Lock(path)
        entry(path, pid=other.pid, born="1")  # the process id was given to another process since
        Lock(path).release()
        other.kill()
    entry(path, pid=other.pid, born=None)
    Lock(path).release()


def test_a_holder_on_another_host_counts_as_alive_and_the_error_says_what_to_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    entry(path, host="elsewhere")
    with pytest.raises(UserError, match=f"on elsewhere .* remove {path}"):
        Lock(path)
