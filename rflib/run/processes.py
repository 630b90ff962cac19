"""Which process of a multi-process run this is, without waking a device in an ordinary one."""

import sys


def distributed() -> bool:
    """Whether `jax.distributed` is initialised."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def first() -> bool:
    """Whether this process writes the run's files: process 0, or the only one."""
    if not distributed():
        return True
    import jax

    return jax.process_index() == 0


def agree(value: int) -> int:
    """Process 0's `value`, on every process."""
    if not distributed():
        return value
    import numpy as np
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
