"""Random keys by name: a key is derived from what it is for, never from the order of calls."""

import hashlib

import jax
from jax import Array


def named(key: Array, *names: str | int | Array) -> Array:
    """Folds each name (a string, by a stable hash, or or an integer) into `key`, in order."""
    for name in names:
        if isinstance(name, str):
            digest = hashlib.sha256(name.encode()).digest()
            name = int.from_bytes(digest[:4], "little")
        key = jax.random.fold_in(key, name)
    return key
