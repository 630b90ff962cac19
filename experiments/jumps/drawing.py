"""Drawing images from a trained model: one compiled program a setting, batches of one size."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.jumps import images, training
from experiments.jumps.images import Problem
from rflib.core import keys
from rflib.core.checks import positive_int
from rflib.methods.ehrenfest import baselines, process, reverse, samplers
from rflib.train.task import Key


class Drawn(NamedTuple):
    """values: [n, h, w, c] integers of the data's range. The rest are means over the steps."""

    values: np.ndarray
    evaluations: float
    negative: float
    clipped: float


Draw = Callable[[Any, Key], tuple[Array, Array, Array, Array]]


def sampler(config: Any, found: Problem, name: str, steps: int, correct: int = 0) -> Draw:
    """(params, key) -> one batch of values, and evaluations, negative and clipped shares."""
    net, s = images.network(config, found, name), config.sampler
    shape = (s.batch, *found.shape)
    made, zero = found.process, jnp.zeros(())

    def ddpm(params: Any, key: Key) -> Any:
        def eps(x: Array, t: Array) -> Array:
            return net.apply({"params": params}, x, t)[..., 0]

        x0 = baselines.ddpm_sample(key, eps, made, shape, made.times(steps))
        return found.embedding.decode_x(x0, made), zero + steps + 1, zero, zero

    def d3pm(params: Any, key: Key) -> Any:
        tables = baselines.d3pm_gauss(made.size + 1, config.model.d3pm_steps)

        def logits(x: Array, t: Array) -> Array:
            return net.apply({"params": params}, made.to_x(x), t)

        return baselines.d3pm_sample(key, logits, tables, shape), zero + tables.steps, zero, zero

    def jump(params: Any, key: Key) -> Any:
        kind, fixed = images.head(config, name), training.fixed(net, params)
        return jumps(config, found, kind, fixed, key, steps, correct)

    return {"ddpm": ddpm, "d3pm": d3pm}.get(name, jump)


def jumps(
    config: Any, found: Problem, kind: str, network: Any, key: Key, steps: int, correct: int = 0
) -> tuple[Array, Array, Array, Array]:
    """One batch by the reversed jump process with any network of a kind of head."""
    s, made = config.sampler, found.process
    rates = reverse.rate_function(kind, network, made, rate_at=s.rate_at, floor=s.floor)
    corrector = None
    if correct:
        corrector = samplers.Corrector(
            correct, s.corrector_schedule, s.corrector_start, s.corrector_mult
        )
    start = process.draw_initial(keys.named(key, "start"), (s.batch, *found.shape), made, s.init)
    got = samplers.sample(
        key, start, rates, made, made.times(steps), step=s.step, corrector=corrector
    )
    used = got.evaluations
    if s.final_denoise:
        times = jnp.full((s.batch,), made.t_min)
        clean = reverse.clean_estimate(kind, network(made.to_x(got.k), times), got.k, made, times)
        values, used = found.embedding.decode_x(clean, made), used + 1
    else:
        values = found.embedding.decode(got.k)
    return values, used, got.negative, got.clipped


def draw(config: Any, call: Draw, params: Any, key: Key, count: int) -> Drawn:
    """`count` images in batches of config.sampler.batch, compiled once."""
    compiled = jax.jit(functools.partial(call))
    parts, rest = [], []
    weights = jax.tree.map(jnp.asarray, params)
    for number in range(-(-positive_int("samples", count) // config.sampler.batch)):
        values, *more = compiled(weights, keys.named(key, number))
        parts.append(np.asarray(values))
        rest.append([float(each) for each in more])
    used, negative, clipped = np.mean(rest, 0).tolist()
    return Drawn(np.concatenate(parts)[:count], used, negative, clipped)
