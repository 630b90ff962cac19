"""Training on the harness: one loss, one network, rows of integers, averaged weights."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from rflib.core import keys
from rflib.methods.ehrenfest.losses import LossAux
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.mesh import make_mesh
from rflib.train.task import Aux, Batch, Checkpoint, Eval, Key, Result, Task, Variables

Params = Any
Apply = Callable[[Params, Array, Array], Array]
# value(apply, params, key, k0 [B, *n]) -> (scalar, metrics)
Value = Callable[[Apply, Params, Key, Array], tuple[Array, Mapping[str, Any]]]


def described(aux: LossAux) -> dict[str, Array]:
    """What is logged of a loss: its first and last tenth of t, the target's variance there."""

    def seen(values: Array, place: int) -> Array:
        return jnp.nan_to_num(values[place])  # NaN where no time fell into the bin

    return {
        "early": seen(aux.bins, 0),
        "late": seen(aux.bins, -1),
        "target_variance_early": seen(aux.target_variance, 0),
        "target_variance_late": seen(aux.target_variance, -1),
        "clipped": aux.clipped,
    }


def loss_options(config: Any, name: str) -> dict[str, Any]:
    """The options of the losses of ratios, from the config."""
    if name not in ("ratio", "gauss"):
        return {}
    options = {"head": config.loss.head, "normalise": config.loss.normalise}
    if name == "gauss":
        clips = {"target_clip": config.loss.target_clip, "resid_clip": config.loss.resid_clip}
        options |= clips
    return options


def train(
    config: Any,
    run: Any,
    name: str,
    module: Any,
    value: Value,
    batch: Any,
    *,
    shape: tuple[int, ...],
    steps: int,
    ema: float,
    data: Any = None,
    seed: int = 0,
    seeds: tuple[int, ...] | None = None,
    start: Params = None,
    evals: Mapping[str, Eval] | None = None,
    warmup: int | None = None,
    every: tuple[int, ...] = (),
) -> Result:
    """One resumable phase `name` of the run; its views hold "params" and "ema".

    value: see above; the rows are those of `batch`, or `data` at them. shape: of one example.
    start: parameters to begin with instead of new ones. seeds: all of them at once.
    """
    o = config.optim
    first = min(o.warmup if warmup is None else warmup, steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, o.lr, first, steps, min(o.final, o.lr))
    tx = optax.chain(optax.clip_by_global_norm(o.clip), optax.adam(rate))

    def init(key: Key) -> Variables:
        if start is not None:
            return {"params": jax.tree.map(jnp.asarray, start), "extra": {}}
        made = module.init(key, jnp.zeros((2, *shape)), jnp.full((2,), 0.5))
        return {"params": made["params"], "extra": {}}

    def loss(values: Variables, rows: Batch, key: Key) -> tuple[Array, Aux]:
        k0 = rows if data is None else jax.tree.map(lambda leaf: leaf[rows[1]], rows[0])
        options: dict[str, Any] = {}
        if getattr(module, "unet", None) is not None and config.model.dropout:
            options = {"train": True, "rngs": {"dropout": keys.named(key, "dropout")}}

        def apply(params: Params, x: Array, t: Array) -> Array:
            return module.apply({"params": params}, x, t, **options)

        found, metrics = value(apply, values["params"], key, k0)
        return found, Aux(metrics)

    intervals = [config.log.every, config.checkpoint.every, *every]
    scan = math.gcd(o.scan, steps, *(each for each in intervals if each))
    return fit(
        gradient_step(Task(init, loss, lambda step: None, data), tx, ema=ema),
        batch,
        run,
        name=name,
        data=data,
        mesh=make_mesh({"data": config.mesh.data}),
        steps=steps,
        scan=scan,
        seed=seed,
        seeds=seeds,
        evals=evals,
        log_every=min(config.log.every, steps),
        checkpoint=Checkpoint(every=config.checkpoint.every, keep=config.checkpoint.keep),
    )


def fixed(module: Any, params: Params) -> Callable[[Array, Array], Array]:
    """network(x, t) with these parameters, without dropout."""
    return lambda x, t: module.apply({"params": params}, x, t)


def averaged(result: Result, seed: int | None = None) -> Params:
    """The averaged weights of a phase, of the seed at that place if there are several."""
    found = result.view["ema"]
    return jax.tree.map(lambda leaf: np.asarray(leaf if seed is None else leaf[seed]), found)
