"""What orbax was measured not to do: prove that a checkpoint is what was written, or say why not.

orbax restores a flipped bit silently, casts dtypes silently, and takes an empty directory for the
newest step. A manifest beside the data holds size and SHA-256 of every file, and the signature of
the tree. It is written before the directory gets its final name, so a step without one is damaged.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

NAME = "manifest.json"

# The disk's own errors by the system's words for them: tensorstore wraps these in its own text.
_DISK = re.compile(
    "No space left on device|Disk quota exceeded|File too large|Permission denied|"
    "Read-only file system|Input/output error|Not a directory|Stale file handle"
)


class Damaged(Exception):
    """The directory is not what was written; the message says which file and why."""


class Manifest(NamedTuple):
    """signature: leaf -> `float32[3,4]`. files: path -> [size, sha256]."""

    step: int
    signature: Mapping[str, str]
    files: Mapping[str, list[Any]]


def _encoded(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def sync_directory(directory: Path) -> None:
    """Makes renames and new names in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digests(directory: Path, names: list[str], sync: bool = False) -> dict[str, list[Any]]:
    """Size and SHA-256 of each file, which is flushed to the disk first if `sync`."""

    def digest(name: str) -> list[Any]:
        with (directory / name).open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            return [
                os.fstat(file.fileno()).st_size,
                hashlib.file_digest(file, "sha256").hexdigest(),
            ]

    with ThreadPoolExecutor(4) as pool:  # hashlib and fsync release the interpreter lock
        return dict(zip(names, pool.map(digest, names), strict=True))


def write(directory: Path, step: int, signature: Mapping[str, str]) -> None:
    """Hashes every file below `directory` and writes its manifest; all are on disk afterwards."""
    files = sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())
    digests = _digests(directory, files, sync=True)
    content = _encoded({"step": step, "signature": dict(signature), "files": digests})
    # The manifest vouches for itself too: a flipped bit in a signature is damage, not a new tree.
    whole = b'{"sha256":"%s","content":%s}' % (
        hashlib.sha256(content).hexdigest().encode(),
        content,
    )
    with (directory / NAME).open("wb") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)


def present(directory: Path) -> bool:
    """Whether `directory` has a manifest; reads nothing."""
    return (directory / NAME).is_file()


def read(directory: Path) -> Manifest:
    """The manifest of `directory`; Damaged if it is missing or not what was written."""
    try:
        whole = json.loads((directory / NAME).read_bytes())
        content = whole["content"]
        if hashlib.sha256(_encoded(content)).hexdigest() != whole["sha256"]:
            raise Damaged(f"{NAME} has changed since it was written")
        return Manifest(**content)
    except FileNotFoundError:
        raise Damaged(f"it has no {NAME}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{NAME} cannot be read") from None


def verify(directory: Path) -> Manifest:
    """The manifest of `directory` if every file still has its size and hash, else Damaged."""
    manifest = read(directory)
    for name, (size, _) in manifest.files.items():  # sizes first: they cost no reading
        path = directory / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        if path.stat().st_size != size:
            raise Damaged(f"{name} has {path.stat().st_size} bytes where {size} were written")
    for name, now in _digests(directory, list(manifest.files)).items():
        if now != manifest.files[name]:
            raise Damaged(f"{name} has other content than was written (SHA-256 differs)")
    return manifest


def disk_reason(error: BaseException | None) -> str | None:
    """The system's words in `error` or its causes, if the disk is to blame."""
    while error is not None:
        if found := _DISK.search(str(error)):
            return found.group()
        if isinstance(error, OSError):
            return error.strerror or str(error)
        error = error.__cause__ or error.__context__
    return None
