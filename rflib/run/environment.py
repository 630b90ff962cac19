"""Versions, devices and machine of a run: `env.json`."""

import importlib.metadata
import os
import platform
import socket
import sys
from typing import Any

from rflib import __version__

PACKAGES = ("jaxlib", "flax", "optax", "orbax-checkpoint", "ml-collections", "numpy")
VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "RFLIB_DATA", "CUDA_VISIBLE_DEVICES")


def describe() -> dict[str, Any]:
    """`{jax, python, devices, platform, ...}`; starts JAX's backend."""
    import jax

    devices = jax.devices()
    return {
        "rflib": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": [device.device_kind for device in devices],
        "platform": devices[0].platform,
        "processes": jax.process_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "command": list(sys.argv),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
