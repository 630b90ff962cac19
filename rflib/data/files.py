"""Readers of single files: bytes, plain or gzip, NumPy archives, IDX. Nothing is unpickled."""

import gzip
import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rflib.core.checks import nearest
from rflib.core.errors import UserError

_IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_bytes(path: str | Path) -> bytes:
    """The content of `path`, decompressed if it starts like a gzip file, whatever its name.

    Raises:
        UserError: no such file, not readable, or damaged gzip data.
    """
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error})") from error


def sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of the (decompressed) content of `path`."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_npz(path: str | Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a NumPy archive: those of `names`, or all of them.

    Raises:
        UserError: not an archive, an array is missing (the nearest names are given), or one holds
            Python objects, which would have to be unpickled.
    """
    try:
        archive = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{path}: a single array, not an .npz archive")
        with archive:
            for name in names:
                if name not in archive.files:
                    near = nearest(name, archive.files) or archive.files
                    raise UserError(f"{path}: no array {name!r}; there is {', '.join(near)}")
            return {name: archive[name] for name in (names or archive.files)}
    except UserError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason:
            reason = "not an archive of plain arrays, and nothing is unpickled"
        raise UserError(f"{path}: {reason}") from error


def read_idx(path: str | Path) -> np.ndarray:
    """The array of an IDX file (the format of MNIST), in native byte order.

    Format: two zero bytes, a type code, the rank, one big-endian 32-bit size for each axis, data.

    Raises:
        UserError: wrong magic number or type code, or a length that does not fit the header.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_DTYPES:
        raise UserError(
            f"{path}: not an IDX file (it starts with {content[:4].hex() or 'nothing'})"
        )
    dtype, rank = np.dtype(_IDX_DTYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise UserError(f"{path}: ends inside the header of an IDX file of rank {rank}")
    shape = tuple(np.frombuffer(content, ">u4", rank, 4).tolist())
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        raise UserError(
            f"{path}: {len(content)} bytes where shape {shape} of {dtype.name} takes {expected}"
        )
    return (
        np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))
    )
