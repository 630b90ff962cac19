"""Pytrees by name: paths, digests, sizes and readable differences."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PyTree = Any


def path_name(path: tuple[Any, ...]) -> str:
    """`params/dense/kernel` for the key path of a leaf."""
    return "/".join(str(jax.tree_util.keystr((part,), simple=True)) for part in path)


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Every leaf of `tree` under its slash-separated path, in tree order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_impl(leaf: Any) -> Any:
    """The generator of an array of keys, concrete or abstract."""
    kinds: list[Any] = []
    jax.eval_shape(lambda keys: kinds.append(jax.random.key_impl(keys)), leaf)
    return kinds[0]


def is_float(leaf: Any) -> bool:
    """Whether `leaf` is an array of real or complex floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def raw(leaf: Any) -> Any:
    """The integers behind a PRNG key array; any other leaf unchanged."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def digest(tree: PyTree) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all leaves: equal iff bitwise equal."""
    total = hashlib.sha256()
    for name, leaf in named_leaves(tree).items():
        host = np.asarray(raw(leaf))
        total.update(f"{name}:{host.dtype}:{host.shape};".encode())
        total.update(np.ascontiguousarray(host).tobytes())
    return total.hexdigest()


def size(tree: PyTree) -> int:
    """Number of scalars in all leaves."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def nbytes(tree: PyTree) -> int:
    """Bytes of all leaves (global shapes, concrete or abstract)."""
    return sum(
        int(np.prod(leaf.shape)) * (8 if is_key(leaf) else jnp.dtype(leaf.dtype).itemsize)
        for leaf in jax.tree.leaves(tree)
    )


def global_norm(tree: PyTree) -> Array:
    """Euclidean norm over all floating-point leaves, accumulated in float32 or wider."""
    squares = [
        jnp.sum(jnp.square(jnp.abs(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)))))
        for leaf in jax.tree.leaves(tree)
        if is_float(leaf)
    ]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))


def all_finite(tree: PyTree) -> Array:
    """Scalar bool: no floating-point leaf holds a NaN or an infinity."""
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if is_float(leaf)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.ones((), bool)


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """`tree` with its real floating-point leaves in `dtype`; integers, keys, bools untouched."""
    return jax.tree.map(
        lambda leaf: (
            leaf.astype(dtype)
            if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )


def signature(tree: PyTree) -> dict[str, str]:
    """`float32[3,4]` under the path of each leaf."""
    return {
        name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in named_leaves(tree).items()
    }


def difference(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Readable lines for each name whose signature is missing, new or changed."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        want, have = expected.get(name), found.get(name)
        if want == have:
            continue
        if have is None:
            lines.append(f"{name}: {want} is missing")
        elif want is None:
            lines.append(f"{name}: {have} is not expected")
        else:
            lines.append(f"{name}: {have} where {want} is expected")
    return lines
