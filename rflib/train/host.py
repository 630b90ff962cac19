"""The host process: the C allocator and the persistent compilation cache."""

import ctypes
import functools
import hashlib
import os
import platform
import sys
from pathlib import Path

import jax
from jaxlib.version import __version__ as jaxlib_version

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of <malloc.h>


@functools.cache
def tune_allocator() -> bool:
    """Lets glibc keep freed buffers of up to 1 GiB; True if it took both settings.

    XLA's CPU client allocates a step's temporary buffer anew at every call. Past 32 MB glibc maps
    and unmaps it each time: ten thousand page faults a step for a 42 MB buffer. To be called before
    the first compilation. Does nothing, and returns False, where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version")):
        return False
    results = [libc.mallopt(option, 2**30) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    return all(result == 1 for result in results)


def cache_directory() -> Path:
    """`<root>/xla/<jaxlib version>-<hash of the CPU>`; the root is $RFLIB_CACHE or ~/.cache/rflib.

    Hence the name: an entry of another jaxlib can crash, one of another CPU is rejected at load.
    """
    root = os.environ.get("RFLIB_CACHE") or Path.home() / ".cache" / "rflib"
    return Path(root) / "xla" / f"{jaxlib_version}-{_cpu()}"


def _cpu() -> str:
    """Eight hex digits for this CPU's model and instruction set."""
    model = f"{platform.machine()} {platform.processor()}"
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = ("model name", "flags", "Features", "CPU part")
        model += "\n".join(
            sorted({line for line in info.read_text().splitlines() if line.startswith(fields)})
        )
    return hashlib.sha256(model.encode()).hexdigest()[:8]


def compilation_cache(enable: bool) -> Path | None:
    """Turns jax's persistent compilation cache on (or off); returns its directory, None if off.

    Programs of any size and compile time are kept. A directory that the user gave to jax itself
    (JAX_COMPILATION_CACHE_DIR) is left alone. Where the directory cannot be written the cache stays
    off: a run never depends on it.
    """
    from jax.experimental.compilation_cache import compilation_cache as cache

    directory = None
    if enable:
        directory = Path(jax.config.values["jax_compilation_cache_dir"] or cache_directory())
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            directory = None
        if directory is not None and not os.access(directory, os.W_OK):
            directory = None
    jax.config.update("jax_enable_compilation_cache", directory is not None)
    if directory is not None:
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    cache.reset_cache()  # jax looks at these settings once, at the first compilation
    return directory
