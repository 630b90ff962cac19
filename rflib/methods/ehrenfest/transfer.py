"""A noise network trained for DDPM as the score of an Ehrenfest process, without retraining.

Both have the same Gaussian limit: at time t the network is asked at the index of its own table
whose signal √ᾱ equals w(t), found by interpolation in the log signal-to-noise ratio.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from rflib.diffusion.schedule import DiscreteSchedule
from rflib.methods.ehrenfest.process import Process


class TimeMap(NamedTuple):
    """index: fractional index of the table. time: (index + 1)/T. inside: no end was taken."""

    index: Float[Array, "*n"]
    time: Float[Array, "*n"]
    inside: Bool[Array, "*n"]


def time_map(t: Float[Array, "*n"], table: DiscreteSchedule, process: Process) -> TimeMap:
    """Where the table has the signal w(t); the nearest end, and `inside` False, if nowhere."""
    index, inside = table.index_at(process.schedule.logsnr(t))
    return TimeMap(index, (index + 1) / len(table.abar), inside)


def transferred(
    eps: Callable[[Array, Array], Array], table: DiscreteSchedule, process: Process
) -> Callable[[Array, Array], Array]:
    """network(x, t) -> [B, *n, 1] of the head "eps", from eps(x, (index + 1)/T) -> [B, *n]."""

    def network(x: Array, t: Array) -> Array:
        return eps(x, time_map(t, table, process).time)[..., None]

    return network


def share_outside(table: DiscreteSchedule, process: Process, steps: int) -> float:
    """The share of a sampler's times at which the table had to be extended by its ends."""
    inside = time_map(process.times(steps), table, process).inside
    return float(1 - jnp.mean(inside.astype(float)))
