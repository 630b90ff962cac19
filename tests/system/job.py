"""The experiment that the tests of the whole stack start, kill, stop, damage and start again.

Its config says what it computes. What may change from one start to the next of the same run, the
devices and the trouble that befalls it, is in the environment variable JOB, a JSON object.
"""

import faulthandler
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from rflib.core import trees
from rflib.run import cli
from rflib.train import mesh as meshes
from rflib.train.evaluation import over_batches
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.task import Checkpoint, EarlyStop, Eval, Hook, Step, StepInfo, Task
from tests.train.problems import Net, planted, regression

LIMIT = 100  # seconds after which a job ends itself, whatever becomes of its parent
ROWS = 64
RULES: dict[str, meshes.Rules] = {
    "replicated": (),
    "model": (
        ("hidden/kernel", PartitionSpec(None, "model")),
        ("hidden/bias|out/kernel", PartitionSpec("model")),
    ),
    "fsdp": (("kernel|bias", meshes.fsdp(min_bytes=64)),),
}


def terminate() -> None:
    """SIGTERM to this very process, and a moment for whoever listens to hear it."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


class Tripwire(np.ndarray):
    """Rows of an eval: taking their second batch sends SIGTERM."""

    def __getitem__(self, index: Any) -> Any:
        if np.ndim(index) and index[0] > 0:
            terminate()
        return np.asarray(self)[index]


def make_task(width: int, dtype: str) -> Task:
    task = regression(rows=ROWS, noise=0.1, width=width)
    return task._replace(init=lambda key: trees.cast_floats(task.init(key), jnp.dtype(dtype)))


def make_step(task: Task, rate: float, job: dict[str, Any]) -> Step:
    """The usual step, with SIGTERM while it is traced, a NaN, or a callback that hangs."""
    step = gradient_step(task, optax.adam(rate), ema=job.get("ema"))
    if "nan at" in job:
        step = planted(step, job["nan at"], job["nan in"])

    def update(state: Any, batch: Any, key: Any) -> Any:
        if job.get("sigterm in") == "compile":
            terminate()
        if "callback hangs at" in job:
            jax.debug.callback(
                lambda count: time.sleep(LIMIT if count == job["callback hangs at"] else 0),
                state["opt"][0].count,
            )
        return step.update(state, batch, key)

    return step._replace(update=update)


def make_batch(task: Task, job: dict[str, Any]) -> Any:
    """This process's share of the global rows, in their order; slow or hanging if told so."""
    index, count = jax.process_index(), jax.process_count()

    def batch(step: int) -> np.ndarray:
        time.sleep(job.get("pace", 0.0) if step >= job.get("pace_from", 0) else 0.0)
        if step == job.get("batch hangs at"):
            time.sleep(LIMIT)
        rows = task.batch(step)
        return rows[len(rows) * index // count : len(rows) * (index + 1) // count]

    return batch


def make_eval(task: Task, width: int, job: dict[str, Any]) -> Any:
    """The mean squared error on all rows, in three batches of which the last one is padded."""
    rows = np.arange(ROWS, dtype=np.int32)
    if job.get("sigterm in") == "eval":
        rows = rows.view(Tripwire)

    def measure(view: Any, pair: Any) -> Any:
        (x, y), index = pair
        return {"loss": (Net(width).apply({"params": view["params"]}, x[index]) - y[index]) ** 2}

    return over_batches(measure, rows, batch=24, data=task.data)


def make_hooks(every: int, job: dict[str, Any]) -> list[Hook]:
    """Trouble with the disk that begins after a step, and the memory in use, step by step."""
    resident: list[tuple[int, int]] = []

    def after(info: StepInfo) -> None:
        saves = info.run.workdir / "phases" / "fit" / "checkpoints"
        if info.step in (job.get("disk full at"), job.get("disk read only at")):
            while not any(path.name.isdigit() for path in saves.iterdir()):
                time.sleep(0.01)  # the save in the background shall not fail too
        if info.step == job.get("disk full at"):
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest file"], limit))
        if info.step == job.get("disk read only at"):
            saves.chmod(0o555)
            if os.geteuid() == 0:
                os.seteuid(65534)  # root may write everywhere
        if "memory" in job:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append((info.step, pages * resource.getpagesize()))
            Path(job["memory"]).write_text(json.dumps(resident))

    return [Hook(after, every)]


def main(config: Any, run: Any) -> None:
    job = json.loads(os.environ.get("JOB", "{}"))
    width = job.get("width", config.width)
    task = make_task(width, job.get("dtype", "float32"))
    kept = Eval(make_eval(task, width, job), every=config.eval, best="min")
    result = fit(
        make_step(task, config.rate, job),
        make_batch(task, job),
        run,
        data=task.data,
        steps=config.steps,
        seed=config.seed,
        mesh=meshes.make_mesh(job.get("mesh")),
        rules=RULES[job.get("rules", "replicated")],
        scan=config.scan,
        evals={"valid": kept} if config.eval else {},
        log_every=config.log,
        checkpoint=Checkpoint(every=config.save),
        stop=EarlyStop("valid", config.patience) if config.patience else None,
        hooks=make_hooks(config.log, job),
        hang=(50.0, config.hang),
    )
    run.metric("digest", trees.digest(meshes.host_value(result.state)))
    run.metric("best digest", trees.digest(meshes.host_value(result.best)))
    run.metric("best step", result.best_step)
    run.metric("ended", f"{result.reason} at {result.step}")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    cli(main)
