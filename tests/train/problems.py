"""Small problems and a logger that keeps everything, for the tests of the harness."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rflib.train.evaluation import over_batches
from rflib.train.gradient import gradient_step
from rflib.train.task import Aux, Eval, Options, Step, Task


class Recorder:
    """A Logger in memory."""

    def __init__(self, workdir: Path, options: Options = Options()):  # noqa: B008
        self.workdir, self.options = workdir, options
        self.lines: list[dict[str, Any]] = []
        self.timings: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.shown: list[int] = []
        self.counts: Counter[str] = Counter()

    def reopened(self) -> "Recorder":
        """What another session sees of the same run."""
        return copy.copy(self)

    def log(self, step, metrics, *, phase="", seed=None):
        self.counts[phase] += 1
        self.lines.append({"phase": phase, "seed": seed, "step": step, **metrics})

    def timing(self, step, values, *, phase=""):
        self.timings.append({"phase": phase, "step": step, **values})

    def cut(self, *, phase, step, lines):
        own = [line for line in self.lines if line["phase"] == phase]
        rest = [line for line in self.lines if line["phase"] != phase]
        assert len(own) >= lines
        self.lines[:] = rest + own[:lines]  # in place: another session has the same list
        self.counts[phase] = lines

    def logged(self, phase):
        return self.counts[phase]

    def progress(self, step, steps, metrics, rate, phase):
        self.shown.append(step)

    def note(self, text):
        self.notes.append(text)

    def column(self, name: str, seed: int | None = None) -> list[float]:
        return [line[name] for line in self.lines if name in line and line["seed"] == seed]


class Net(nn.Module):
    width: int = 16

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(self.width, name="hidden")(x))
        return nn.Dense(1, name="out")(x)[:, 0]


def regression(
    rows: int = 64, batch: int = 16, seed: int = 0, noise: float = 0.0, width: int = 16
) -> Task:
    """A small network on a fixed non-linear function; rows are indices into data on the device."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    y = np.sin(x.sum(1)).astype(np.float32)
    net = Net(width)

    def init(key):
        return {"params": net.init(key, jnp.zeros((1, 3)))["params"], "extra": {}}

    def loss(variables, pair, key):
        (x, y), index = pair
        error = net.apply({"params": variables["params"]}, x[index]) - y[index]
        error = error + noise * jax.random.normal(key, error.shape)
        return jnp.mean(error**2), Aux({"mae": jnp.mean(jnp.abs(error))})

    def draw(step):
        return np.random.default_rng((seed, step)).integers(0, rows, batch).astype(np.int32)

    def measure(view, pair):
        (x, y), index = pair
        return {"loss": (net.apply({"params": view["params"]}, x[index]) - y[index]) ** 2}

    held_out = over_batches(measure, np.arange(rows, dtype=np.int32), batch=24, data=(x, y))
    evals = {"valid": Eval(held_out, every=20, best="min")}
    return Task(init, loss, draw, data=(x, y), evals=evals, flops=6.0 * 64)


def regression_step(**options: Any) -> tuple[Task, Step]:
    task = regression(**{k: options.pop(k) for k in ("rows", "batch", "seed") if k in options})
    return task, gradient_step(task, optax.adam(1e-2), **options)


def planted(step: Step, at: int, where: str, value: float = np.nan) -> Step:
    """`step` with a non-finite number in the metric "loss" or in one leaf of the state."""

    def update(state, batch, key):
        new, metrics = step.update(state, batch, key)
        hit = new["opt"][0].count == at + 1
        if where == "loss":
            return new, {**metrics, "loss": jnp.where(hit, value, metrics["loss"])}
        params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                jnp.where(hit, leaf.at[(0,) * leaf.ndim].set(value), leaf)
                if where == "/".join(p.key for p in path)
                else leaf
            ),
            new["params"],
        )
        return {**new, "params": params}, metrics

    return step._replace(update=update, inspect=None)
