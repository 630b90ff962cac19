"""A linen module as two pure functions over {"params": ..., "extra": ...}.

`extra` holds every collection that is not trained: batch statistics, frozen tables.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

Variables = dict[str, Any]


def init(module: nn.Module, key: Array, *shapes: tuple[int, ...]) -> Variables:
    """Initial variables for float32 inputs of the given shapes; the module is called to infer."""
    inputs = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    collections = dict(module.init(key, *inputs, train=False))
    return {"params": collections.pop("params", {}), "extra": collections}


def apply(
    module: nn.Module,
    variables: Variables,
    *inputs: Array,
    train: bool = False,
    key: Array | None = None,
    **more: Any,
) -> tuple[Any, Any]:
    """The module's output and the new `extra`. more: further inputs by name.

    train: use and update batch statistics and draw dropout masks from `key` (needed if the module
        drops anything out). Otherwise `extra` comes back as it was.
    """
    extra = variables["extra"]
    collections = {"params": variables["params"], **extra}
    rngs = {} if key is None else {"dropout": key}
    if not train:
        return module.apply(collections, *inputs, train=False, rngs=rngs, **more), extra
    output, changed = module.apply(
        collections, *inputs, train=True, rngs=rngs, mutable=["batch_stats"], **more
    )
    return output, {**extra, **changed}


def inspect(module: nn.Module, variables: Variables, *inputs: Array) -> dict[str, Any]:
    """What the module sows into `intermediates` when it infers: names -> arrays, nested."""
    collections = {"params": variables["params"], **variables["extra"]}
    _, sown = module.apply(collections, *inputs, train=False, mutable=["intermediates"])
    return dict(sown["intermediates"])
