"""Robust training of networks of one width on the harness, watched at steps 0, 1, 2, 4, 8, …"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.data import read_npz
from rflib.methods.jacobian_ntk.dynamics import make_targets, robust_loss
from rflib.methods.jacobian_ntk.network import Mlp, Params, init
from rflib.run import files
from rflib.train import mesh as meshes
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.task import Aux, Checkpoint, Hook, Key, StepInfo, Task

PyTree = Any
Measure = Callable[[Params, Params], Mapping[str, jax.Array]]  # parameters now and at the start
RULES: meshes.Rules = (
    (r"(first|last|hidden)_bias", P()),
    (r"first", P("model", None)),
    (r"hidden", P(None, None, "model")),
    (r"last", P(None, "model")),
)


def network(config: Any) -> Mlp:
    """The network that is trained."""
    m = config.model
    return Mlp(m.depth, m.activation, kappa=m.kappa)


def recorded_steps(steps: int) -> tuple[int, ...]:
    """0, 1, 2, 4, … and the last."""
    return (0, *(2**power for power in range((steps - 1).bit_length())), steps)


def robust_task(net: Mlp, width: int, x: np.ndarray, y: np.ndarray, **loss: Any) -> Task:
    """Full-batch robust training; the initial parameters stay in `extra` as "start".

    x [N, d], y [N]. loss: `lam` and `reduction` of the Jacobian-regularised squared loss.
    """
    data = {
        "x": np.asarray(x, np.float32),
        "targets": make_targets(y, x.shape[1]).astype(np.float32),
    }

    def start(key: Key) -> dict[str, PyTree]:
        params = init(key, net, x.shape[1], width, dtype=jnp.float32)
        return {"params": params, "extra": {"start": jax.tree.map(jnp.copy, params)}}

    def objective(variables: PyTree, batch: Any, key: Key) -> tuple[jax.Array, Aux]:
        rows, _ = batch
        return robust_loss(net, variables["params"], rows["x"], rows["targets"], **loss), Aux()

    return Task(start, objective, lambda step: None, data=data)


def train(
    config: Any,
    run: Any,
    name: str,
    width: int,
    x: np.ndarray,
    y: np.ndarray,
    *,
    repeats: int,
    measure: Measure,
    at_start: Measure | None = None,
) -> dict[str, np.ndarray]:
    """Trains `repeats` networks of one width; what `measure` says at the recorded steps.

    Args:
        config, run: the experiment's. name: of the phases. width: hidden units.
        x [N, d], y [N]: training rows.
        measure: pure, of one network. at_start: further measurements, at step 0 only.

    Returns:
        Arrays [T, R, ...] with the T steps of `recorded_steps`; those at the start [1, R, ...].
    """
    o = config.optim
    checks.positive_int("config.steps", config.steps)
    checks.in_range("config.optim.lr", o.lr, 0, open_low=True)
    checks.in_range("config.optim.lam", o.lam, 0)
    task = robust_task(network(config), width, x, y, lam=o.lam, reduction=o.reduction)
    seeds = [config.seed + number for number in range(checks.positive_int("repeats", repeats))]
    together = width <= o.vectorise and repeats > 1
    found = []
    for group in [seeds] if together else [[seed] for seed in seeds]:
        phase = f"{name}-n{width}" if together else f"{name}-n{width}-{group[0]}"
        found.append(_phase(config, run, task, phase, group, (measure, at_start)))
    return {name: np.concatenate([each[name] for each in found], 1) for name in found[0]}


def _phase(
    config: Any,
    run: Any,
    task: Task,
    phase: str,
    seeds: Sequence[int],
    measures: tuple[Measure, Measure | None],
) -> dict[str, np.ndarray]:
    """Trains one group of seeds as a phase; arrays [T, seeds, ...]."""
    stacked = len(seeds) > 1
    steps = recorded_steps(config.steps)
    records = Path(run.workdir) / "phases" / phase / "records"
    watch = _Watch(records, steps, *(each and _compiled(each, stacked) for each in measures))
    fit(
        gradient_step(task, optax.sgd(config.optim.lr)),
        None,
        run,
        name=phase,
        data=task.data,
        steps=config.steps,
        seed=seeds[0],
        seeds=seeds if stacked else None,
        mesh=meshes.make_mesh({"data": config.mesh.data, "model": config.mesh.model}),
        rules=() if stacked else RULES,
        log_every=min(config.log.every, config.steps),
        checkpoint=Checkpoint(every=config.checkpoint.every, keep=config.checkpoint.keep),
        hooks=(Hook(watch, every=1),),
    )
    each = [_read(records / f"{step}.npz", phase) for step in steps]
    found = {name: np.stack([one[name] for one in each if name in one]) for name in each[0]}
    return found if stacked else {name: value[:, None] for name, value in found.items()}


def _compiled(measure: Measure, stacked: bool) -> Measure:
    """The measurement of one network, or of each of several: one at a time, to save memory."""
    if not stacked:
        return jax.jit(measure)
    return jax.jit(lambda *both: jax.lax.map(lambda pair: measure(*pair), both))


class _Watch:
    """A hook that keeps what is measured at some steps, in files: a stopped run finds them again.

    A step is watched before it is saved, so that whatever a checkpoint has passed is on disk.
    """

    def __init__(self, directory: Path, steps: Sequence[int], measure: Any, at_start: Any):
        self._directory, self._steps = directory, set(steps)
        self._measure, self._at_start = measure, at_start

    def __call__(self, info: StepInfo) -> None:
        start = info.view["extra"]["start"]
        if info.step == 1:
            self._keep(0, start, start)
        if info.step in self._steps:
            self._keep(info.step, info.view["params"], start)

    def _keep(self, step: int, params: Params, start: Params) -> None:
        found = dict(meshes.host_value(self._measure(params, start)))
        if step == 0 and self._at_start is not None:
            found |= meshes.host_value(self._at_start(params, start))
        if jax.process_index() == 0:
            data = io.BytesIO()
            save: Any = np.savez
            save(data, **{name: np.asarray(value) for name, value in found.items()})
            files.write_bytes(self._directory / f"{step}.npz", data.getvalue())


def _read(path: Path, phase: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"{path} is gone: delete {path.parents[1]} and {phase} is trained again")
    return read_npz(path)
