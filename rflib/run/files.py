"""Files that are whole or absent, and strict JSON.

JSON here is the strict kind, which every reader accepts: a NaN or an infinity is written as null.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.core.errors import UserError


def plain(value: Any) -> Any:
    """`value` as JSON types: arrays become numbers or lists, non-finite numbers None.

    Raises UserError for a type that JSON has no word for.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping) or hasattr(value, "to_dict"):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # NumPy and JAX arrays and scalars
        return plain(value.tolist())
    raise UserError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")


def dumps(value: Any, indent: int | None = None) -> str:
    """`value` as strict JSON; floats in their shortest exact form."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `path` through a temporary neighbour: a reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes indented strict JSON."""
    write_text(path, dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """What `path` holds, or None if it is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def unwritable(path: Path, error: OSError) -> UserError:
    """The one line for a full disk, a read-only place or a missing permission."""
    return UserError(f"cannot write {path}: {(error.strerror or str(error)).lower()}")
