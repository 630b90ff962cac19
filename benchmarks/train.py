"""What `fit` costs beside a bare loop over the same executable.

    python -m benchmarks.train [--pairs 9] [--steps 200] [--long 100000]

Blocks of bare and harness steps alternate in one process (A B A B ...), with one compiled update,
donated state, fresh rows each step and metrics fetched every 100 steps in both. Printed are the
medians of the blocks, the median of the paired differences in microseconds a step, and the growth
of resident memory over a long run. Both loops block only at the end of a block.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rflib.run import Run
from rflib.train import host, preemption
from rflib.train.gradient import gradient_step
from rflib.train.loop import _Phase
from rflib.train.mesh import make_mesh
from rflib.train.profile import Profile
from rflib.train.task import Aux, Checkpoint, Task
from rflib.train.watchdog import Watchdog

TARGETS = {"0.25 ms": 0.05, "2 ms": 0.01}  # largest share of the step
LARGEST = 15.0  # microseconds a step
GROWTH = 5.0  # MB of resident memory over the long run


class Network(nn.Module):
    """A plain network of `layers` layers."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)[:, 0]


def task(width: int, layers: int, rows: int) -> Task:
    """Regression of the first input, on rows drawn anew for each step."""
    net = Network(width, layers)
    pool = np.random.default_rng(0).normal(size=(64, rows, width)).astype(np.float32)

    def init(key: jax.Array) -> Any:
        return {"params": net.init(key, jnp.zeros((1, width)))["params"]}

    def loss(variables: Any, batch: jax.Array, key: jax.Array) -> Any:
        error = net.apply({"params": variables["params"]}, batch) - batch[:, 0]
        return jnp.mean(error**2), Aux()

    return Task(init, loss, lambda step: pool[step % 64])


def phase(problem: Task, run: Run, name: str) -> _Phase:
    """A phase of `fit` that is compiled and ready to be stepped block by block."""
    ready = _Phase(
        gradient_step(problem, optax.adam(1e-4)), problem.batch, run, name=name, data=None,
        steps=10**9, scan=1, seeds=None, seed=0, mesh=make_mesh({"data": 1}), rules=(),
        evals=None, log_every=100, checkpoint=Checkpoint(), stop=None, hooks=(), flops=None,
        hang=(50.0, 300.0),
    )  # fmt: skip
    ready.carry = ready.program.init(ready.program.keys)
    ready.compiled = ready.program.compile(0)
    ready.meter = None
    return ready


def harness(ready: _Phase, steps: int, run: Run) -> float:
    """Microseconds a step of the loop of `fit`."""
    start = time.perf_counter()
    ready.steps = ready.done + steps
    ready._loop(Profile(None, run))
    jax.block_until_ready(ready.carry)
    return (time.perf_counter() - start) / steps * 1e6


def bare(ready: _Phase, steps: int) -> float:
    """Microseconds a step of a loop by hand: the same executable, rows and their placement."""
    program, call, carry = ready.program, ready.compiled.executable, ready.carry
    start = time.perf_counter()
    for i in range(ready.done, ready.done + steps):
        carry, out = call(carry, program.data, program.rows(i), program.keys)
        if (i + 1) % 100 == 0:
            jax.device_get(out["metrics"])
    jax.block_until_ready(carry)
    ready.carry, ready.done = carry, ready.done + steps
    return (time.perf_counter() - start) / steps * 1e6


def resident() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Runs and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="pairs of blocks (default 9)")
    parser.add_argument("--steps", type=int, default=200, help="steps a block (default 200)")
    parser.add_argument("--long", type=int, default=100_000, help="steps of the memory run")
    arguments = parser.parse_args()
    host.tune_allocator()
    sizes = {"0.25 ms": (32, 10, 32), "2 ms": (256, 4, 256)}
    print(f"load {os.getloadavg()[0]:.1f}, {jax.devices()[0].device_kind}, jax {jax.__version__}")
    print("| step | bare us | fit us | difference us | share | target |")
    print("| --- | --- | --- | --- | --- | --- |")
    with (
        tempfile.TemporaryDirectory() as place,
        Run.open(Path(place) / "run", {}, quiet=True) as run,
    ):
        for name, size in sizes.items():
            ready = phase(task(*size), run, name.replace(" ", ""))
            with ready_guards(ready):
                for _ in range(2):
                    bare(ready, arguments.steps), harness(ready, arguments.steps, run)
                pairs = [
                    (bare(ready, arguments.steps), harness(ready, arguments.steps, run))
                    for _ in range(arguments.pairs)
                ]
                a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
                more = statistics.median(y - x for x, y in pairs)
                print(
                    f"| {name} | {a:.0f} | {b:.0f} | {more:.1f} | {more / a:.1%} | "
                    f"{TARGETS[name]:.0%}, {LARGEST:.0f} us |"
                )
                if name == "0.25 ms" and arguments.long:
                    harness(ready, 2000, run)
                    before = resident()
                    harness(ready, arguments.long, run)
                    print(
                        f"resident memory over {arguments.long} steps: "
                        f"{resident() - before:+.2f} MB (at most {GROWTH:.0f})"
                    )


def ready_guards(ready: _Phase) -> contextlib.ExitStack:
    """The guard and the watchdog that `fit` holds around its loop."""
    stack = contextlib.ExitStack()
    ready.guard = stack.enter_context(preemption.Guard())
    ready.dog = stack.enter_context(Watchdog(ready.directory))
    return stack


if __name__ == "__main__":
    main()
