"""Readers of single files: what they read, and what they refuse in one line."""

import gzip
import struct

import numpy as np
import pytest

from rflib.core.errors import UserError
from rflib.data import read_bytes, read_idx, read_npz, sha256


def idx(array: np.ndarray, code: int) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return (
        bytes([0, 0, code, array.ndim])
        + sizes
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")]
)
@pytest.mark.parametrize("compress", [False, True])
def test_idx_reads_back_every_type(tmp_path, code, dtype, compress):
    array = (np.arange(24) - (0 if dtype == "u1" else 12)).reshape(2, 3, 4).astype(dtype)
    content = idx(array, code)
    (tmp_path / "a").write_bytes(gzip.compress(content) if compress else content)
    found = read_idx(tmp_path / "a")
    assert found.dtype == array.dtype and found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_idx_refuses_wrong_magic_and_length(tmp_path):
    good = idx(np.zeros((2, 3), np.uint8), 8)
    for content, message in [
        (b"", "not an IDX"),
        (b"PK\3\4....", "not an IDX"),
        (b"\0\0\x07\1", "not an IDX"),
        (good[:6], "inside the header"),
        (good[:-1], r"17 bytes where shape \(2, 3\) of uint8 takes 18"),
        (good + b"x", r"19 bytes where"),
        (b"\0\0\x08\3" + b"\xff" * 12, "takes"),
    ]:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_idx(tmp_path / "a")


def test_npz_gives_named_arrays_and_suggests_the_nearest_name(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.ones((2, 2)), labels=np.arange(2))
    assert set(read_npz(tmp_path / "a.npz")) == {"images", "labels"}
    assert list(read_npz(tmp_path / "a.npz", ["labels"])) == ["labels"]
    with pytest.raises(UserError, match="no array 'image'; there is images"):
        read_npz(tmp_path / "a.npz", ["image"])


class Bomb:
    """Unpickling it would fail the test loudly."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle from outside was loaded",))


def test_npz_never_unpickles_and_names_what_is_wrong(tmp_path):
    objects = np.empty(1, object)
    objects[0] = Bomb()
    np.savez(tmp_path / "objects.npz", bomb=objects)
    np.save(tmp_path / "single.npy", np.arange(3))
    (tmp_path / "text.npz").write_text("hello")
    whole = tmp_path / "whole.npz"
    np.savez(whole, a=np.arange(1000))
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:500])
    for name, message in [
        ("objects.npz", "nothing is unpickled"),
        ("single.npy", "a single array"),
        ("text.npz", "text.npz: not an archive"),
        ("cut.npz", "cut.npz: "),
        ("nowhere.npz", "cannot be read"),
    ]:
        with pytest.raises(UserError, match=message):
            read_npz(tmp_path / name)


def test_gzip_is_known_by_content_and_damage_is_named(tmp_path):
    content = gzip.compress(bytes(range(256)) * 40)
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv").write_bytes(bytes(range(256)) * 40)
    assert read_bytes(tmp_path / "a.csv") == read_bytes(tmp_path / "b.csv")
    assert sha256(tmp_path / "a.csv") == sha256(tmp_path / "b.csv")
    flipped = bytearray(content)
    flipped[-6] ^= 1  # in the checksum
    for damaged in (content[:-20], content[:5], bytes(flipped)):
        (tmp_path / "a.csv").write_bytes(damaged)
        with pytest.raises(UserError, match="damaged gzip data"):
            read_bytes(tmp_path / "a.csv")
