"""Study `constancy`: how far the kernel of a network moves from its limit while it is trained."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.jacobian_regularisation import data as rows
from experiments.jacobian_regularisation.training import network, recorded_steps, train
from rflib.core import checks
from rflib.methods.jacobian_ntk.data import Labelled
from rflib.methods.jacobian_ntk.empirical import empirical_jntk
from rflib.methods.jacobian_ntk.kernels import flatten, gram
from rflib.methods.jacobian_ntk.network import Params, movement


class Constancy(NamedTuple):
    """Per width, arrays [T, R] over recorded steps and repeats.

    largest, rms: of the Gram matrix of the network less its limit, both over κ². moved: |θ − θ₀| /
    |θ₀|. scale, smallest: largest entry and smallest eigenvalue of the limit.
    """

    widths: tuple[int, ...]
    steps: tuple[int, ...]
    largest: np.ndarray
    rms: np.ndarray
    moved: np.ndarray
    scale: float
    smallest: float


def run_study(config: Any, run: Any, raw: Labelled) -> Constancy:
    """Trains the networks and writes the table of gaps."""
    c = config.constancy
    widths = checks.distinct("config.constancy.widths", c.widths)
    part = rows.parts(config, raw, c.rows)
    net = network(config)
    limit = gram(net, part.x_train) / net.kappa**2
    truth, x = jnp.asarray(limit, jnp.float32), jnp.asarray(part.x_train, jnp.float32)

    def measure(params: Params, start: Params) -> dict[str, jax.Array]:
        now = flatten(empirical_jntk(net, params, x)) / net.kappa**2
        gap = now - truth
        return {
            "largest": jnp.max(jnp.abs(gap)),
            "rms": jnp.sqrt(jnp.mean(gap**2)),
            "moved": movement(params, start),
        }

    found = [
        train(config, run, "constancy", width, part.x_train, part.y_train, repeats=c.repeats,
              measure=measure)
        for width in widths
    ]  # fmt: skip
    every = {name: np.stack([each[name] for each in found]) for name in found[0]}
    steps = recorded_steps(config.steps)
    smallest = float(np.linalg.eigvalsh(limit)[0])
    result = Constancy(widths, steps, **every, scale=float(np.abs(limit).max()), smallest=smallest)
    table = [
        {"width": width, "step": step, "repeat": number,
         "max_error": result.largest[i, t, number], "rms_error": result.rms[i, t, number],
         "relative_movement": result.moved[i, t, number]}
        for i, width in enumerate(widths)
        for t, step in enumerate(steps)
        for number in range(c.repeats)
    ]  # fmt: skip
    run.table("constancy", table, caption="Gap between the JNTK of a network in training and its "
              "limit (over kappa^2), and the movement of the weights.")  # fmt: skip
    return result
