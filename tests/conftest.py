"""Test settings: eight CPU devices, a compilation cache, runtime type checks, real data.

The environment is set before jax is imported, and inherited by the processes that tests start.
"""

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

DEVICES = "--xla_force_host_platform_device_count=8"


def _cpu() -> str:
    """Model and features of this CPU: compiled code of another one may not load, or crash."""
    text = platform.processor() + platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        text += "".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _cache() -> Path:
    try:
        root = Path(os.environ.get("RFLIB_CACHE", Path.home() / ".cache" / "rflib"))
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        root = Path(tempfile.gettempdir()) / "rflib"
    return root / "tests" / f"{version('jaxlib')}-{_cpu()}"


os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_cache()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

import tests.typecheck  # noqa: E402, F401 (the hook looks it up by name)

# A plugin may have imported jax before this file; these settings still count then.
for option in ("platforms", "compilation_cache_dir"):
    jax.config.update(f"jax_{option}", os.environ[f"JAX_{option.upper()}"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Every annotated function of rflib checks its arguments' types, shapes and dtypes in tests.
install_import_hook("rflib", "tests.typecheck.check")


def _without_data(reason: str) -> None:
    """Skips, or fails where real data are demanded: a silent skip would hide a broken set-up."""
    if os.environ.get("RFLIB_REQUIRE_DATA") == "1":
        pytest.fail(f"RFLIB_REQUIRE_DATA=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The directory $RFLIB_DATA with the real data sets."""
    value = os.environ.get("RFLIB_DATA")
    if not value:
        _without_data("RFLIB_DATA is not set: no real data")
    root = Path(value or "").expanduser().resolve()
    if not root.is_dir():
        _without_data(f"RFLIB_DATA={value} is no directory")
    return root


@pytest.fixture(scope="session")
def data_file(data_root: Path) -> Callable[[str], Path]:
    """`data_file("leddam/ETTh1.csv")`: a file of the real data; without it the test skips."""

    def find(name: str) -> Path:
        path = data_root / name
        if not path.is_file():
            _without_data(f"{path} is missing")
        return path

    return find


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision within one test, for oracles and finite differences."""
    with jax.enable_x64(True):
        yield
