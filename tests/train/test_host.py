"""The allocator keeps big buffers, and compiled programs are found again by the next process."""

import json
import os
import platform
import subprocess
import sys

import jaxlib.version

from rflib.train import host


def child(script, *arguments, **variables):
    environment = {key: value for key, value in os.environ.items() if "CACHE" not in key}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment | variables,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ALLOCATE = """
import json, resource
from rflib.train.host import tune_allocator

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(64 << 20)  # zeroed, so every page is touched
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

bare = faults()
taken = tune_allocator()
faults()
print(json.dumps([bare, taken, faults()]))
"""


def test_glibc_stops_mapping_and_unmapping_big_buffers():
    bare, taken, tuned = child(ALLOCATE)
    if platform.libc_ver()[0] == "glibc":
        assert taken and tuned < bare / 10, (bare, tuned)
    else:
        assert not taken


COMPILE = """
import json, os, sys
import jax, jax.numpy as jnp
from rflib.train.host import compilation_cache

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))

def compute():
    jax.clear_caches()
    events.clear()
    value = float(jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((3, 3)))[0, 0])
    return [value, events.count("cache_hits"), events.count("cache_misses")]

results = {"before": compute()}
directory = compilation_cache(True)
results["on"] = compute()
results["off"] = [compilation_cache(False), *compute()]
results["again"] = [str(compilation_cache(True)), *compute()]
for path in directory.glob("*-cache"):  # as a kill during its writing leaves it
    path.write_bytes(path.read_bytes()[:100])
results["torn"] = compute()
os.environ["RFLIB_CACHE"] = sys.executable  # a file: no directory can be made below it
jax.config.update("jax_compilation_cache_dir", None)
results["unwritable"] = [compilation_cache(True), *compute()]
print(json.dumps(results))
"""


def test_the_next_process_finds_the_compiled_program(tmp_path):
    fill = COMPILE.partition("for path in")[0] + "print(json.dumps(results))"
    cold = child(fill, RFLIB_CACHE=str(tmp_path))
    value, hits, misses = cold["on"]
    assert cold["before"] == [value, 0, 0]  # a compilation before does not fix the cache as off
    assert hits == 0 and misses > 0
    warm = child(COMPILE, RFLIB_CACHE=str(tmp_path))
    assert warm["on"] == [value, misses, 0]
    assert warm["off"] == [None, value, 0, 0]
    assert warm["again"] == [cold["again"][0], value, misses, 0]
    # A damaged entry and a directory that cannot be written are no reason to fail.
    assert warm["torn"][:2] == [value, 0]
    assert warm["unwritable"] == [None, value, 0, 0]


def test_the_directory_names_jaxlib_and_this_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("RFLIB_CACHE", str(tmp_path))
    directory = host.cache_directory()
    assert directory.parent == tmp_path / "xla"
    version, _, cpu = directory.name.rpartition("-")
    assert version == jaxlib.version.__version__ and len(cpu) == 8
    monkeypatch.setattr(host.platform, "machine", lambda: "another")
    assert host.cache_directory().name.startswith(version) and host.cache_directory() != directory
