"""`fit`: the one loop. Everything that repeats a Step, saves it, measures it and resumes it."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rflib.core.errors import DryRun, Stopped, UserError
from rflib.train import dry, evaluation, host, nonfinite, phases, preemption
from rflib.train import mesh as meshes
from rflib.train.evaluation import Tracker
from rflib.train.profile import Profile
from rflib.train.program import Program, check_arguments
from rflib.train.store import Store
from rflib.train.task import Checkpoint, EarlyStop, Eval, Hook, Logger, Result, Step, StepInfo
from rflib.train.throughput import Meter, peak_flops_of
from rflib.train.watchdog import Watchdog

PyTree = Any


def fit(
    step: Step,
    batch: Callable[[int], PyTree] | Sequence[Callable[[int], PyTree]] | None,
    run: Logger,
    *,
    name: str = "fit",
    data: PyTree = None,
    steps: int,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    mesh: Mesh | None = None,
    rules: meshes.Rules = (),
    scan: int = 1,
    evals: Mapping[str, Eval] | None = None,
    log_every: int = 100,
    checkpoint: Checkpoint = Checkpoint(),  # noqa: B008 (immutable)
    stop: EarlyStop | None = None,
    hooks: Sequence[Hook] = (),
    flops: float | None = None,
    hang: tuple[float, float] = (50.0, 300.0),
) -> Result:
    """Repeats `step` until `steps` or an early stop, as one resumable phase of `run`.

    Args:
      step: what to repeat; `gradient_step` makes the usual one.
      batch: step number (from 0) -> this process's rows; None for a Step without rows. With
        `seeds`, a sequence of such functions, one a seed.
      run: receives metrics, timing, notes; the phase lives in `workdir/phases/<name>`.
      name: of the phase: unique in the run. A phase that an earlier session finished returns its
        Result from disk; one that this session has finished goes on if there are more `steps`.
      data: arrays kept on the device; `step.update` then gets the pair (data, rows).
      steps: updates in all, counted from the start of the phase, not of this process.
      seed: root of all randomness of the phase.
      seeds: run all these seeds at once, vectorised, each with its own rows, best view and early
        stop; metrics lines carry the seed. A stopped seed keeps its state.
      mesh: devices by axis name (`make_mesh`); None: all devices on a "data" axis.
      rules: regular expressions to PartitionSpecs for the state (`mesh.shardings`).
      scan: updates a call; every interval must be a multiple of it.
      evals: measurements of the view by name; logged as "name/metric".
      log_every: steps between two lines of metrics. The last step has one too, and, with `stop`,
        each step that may prove to be the last.
      checkpoint: when to save. The end of the phase and SIGTERM save in any case.
      stop: early stopping on one of `evals`.
      hooks: host code to call every so many steps.
      flops: analytic floating-point operations of one update per example, for the MFU.
      hang: (factor, seconds) of the watchdog: no step for max(seconds, factor x median) is a hang.

    Raises:
      UserError: an argument out of range, a name that this session has used, a batch that does not
        fit the mesh, a checkpoint of another structure. NotFinite: naming the step and leaves;
        the last good checkpoint stays.
      Stopped: after SIGTERM, with everything saved. NoCheckpoint: none verifies.
    """
    return _Phase(**locals()).run()


class _Phase:
    """One call of `fit`: its settings, and the host's side of its progress."""

    def __init__(
        self, step: Step, batch: Any, run: Logger, *, name: str, data: PyTree, steps: int,
        scan: int, seeds: Sequence[int] | None, seed: int, mesh: Mesh | None,
        rules: meshes.Rules, evals: Mapping[str, Eval] | None, log_every: int,
        checkpoint: Checkpoint, stop: EarlyStop | None, hooks: Sequence[Hook], flops: float | None,
        hang: tuple[float, float],
    ):  # fmt: skip
        evals = dict(evals or {})
        intervals = {"steps": steps, "log_every": log_every, "checkpoint.every": checkpoint.every}
        intervals |= {f"evals[{each!r}].every": evals[each].every for each in evals}
        intervals |= {f"hooks[{i}].every": hook.every for i, hook in enumerate(hooks)}
        check_arguments(name, batch, seeds, seed, scan, intervals)
        self.logger, self.name, self.steps, self.evals, self.stop = run, name, steps, evals, stop
        self.log_every, self.checkpoint, self.hooks = log_every, checkpoint, hooks
        self.hang, self.flops = hang, flops
        self.every = [n for n in intervals.values() if n and n != steps]
        self.directory = Path(run.workdir) / "phases" / name
        self._evidence = self.directory / "nonfinite"
        self.tracker = Tracker(evals, stop, len(seeds or (seed,)))
        self.program = Program(
            step, batch, data=data, seeds=tuple(seeds or (seed,)), stacked=seeds is not None,
            mesh=mesh if mesh is not None else meshes.make_mesh(None), rules=rules, scan=scan,
        )  # fmt: skip
        self.done = 0
        self.pending: tuple[int, PyTree] | None = None
        self.best: PyTree = None
        self.latest: list[dict[str, float]] = [{} for _ in self.program.seeds]
        self.carry: Any = None
        self.meter: Meter | None = None

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> Result:
        options = self.logger.options
        phases.begin(self.logger, self.name, self._goes_on)
        host.tune_allocator()
        record = self.directory / "done.json"
        with contextlib.ExitStack() as stack:
            self.guard = stack.enter_context(preemption.Guard())
            factor, least = self.hang
            self.dog = stack.enter_context(Watchdog(self.directory, factor=factor, least=least))
            with self.dog.paused():
                if options.replay and not record.exists():
                    nonfinite.replay(self._evidence, self.program)
                self.store = stack.enter_context(
                    Store(self.directory, self.program, self.tracker, keep=self.checkpoint.keep,
                          note=self.logger.note)
                )  # fmt: skip
                written: dict[str, Any] = {}
                with contextlib.suppress(OSError, ValueError):  # none, or torn by a power cut
                    written = json.loads(record.read_text())
                if self._resume(written):
                    return self._result(written)
                self.compiled = self.program.compile(self.done)
                self.logger.timing(self.done, self.compiled.times._asdict(), phase=self.name)
            if options.dry:
                dry.show(self.program, self.compiled, self.carry, self.done, self.logger.note)
                raise DryRun(f"{self.name}: one call of {self.program.scan} steps ran")
            self._loop(stack.enter_context(Profile(options.profile, self.logger)))
            with self.dog.paused():
                return self._finish(record)

    def _loop(self, profile: Profile) -> None:
        program, tracker, scan = self.program, self.tracker, self.program.scan
        tick = math.gcd(*self.every) if self.every else self.steps
        if self.guard.poll() or (self._missed() and not self._events()):
            self._leave()
        begun = time.perf_counter()
        while self.done < self.steps and tracker.running:
            profile.at(self.done)
            rows = program.rows(self.done)
            self.carry, out = self.compiled(self.carry, program.data, rows, program.keys)
            self.done += scan
            self.dog.beat()
            if self.meter is None:
                self._first(out, begun)
            due = self.done % tick == 0 or self.done >= self.steps
            if (due and not self._host_work(out)) or self.guard.poll():
                self._leave()

    def _host_work(self, out: PyTree) -> bool:
        """Everything that is due at `done`; False if SIGTERM cut an eval short."""
        if self._log_due():
            self._flush()  # one interval late, so that the device never waits for the host
            self.pending = (self.done, out)
        return self._events()

    def _events(self) -> bool:
        """Evals, hooks and the save that are due; on resume, those that SIGTERM cut off."""
        if self._evals_due() and not self._measure():
            return False
        for hook in self.hooks:
            if self.done % hook.every == 0:
                with self._aside():
                    hook.run(StepInfo(self.done, self.program.view(self.carry.state), self.logger))
        if self.checkpoint.every and self.done % self.checkpoint.every == 0:
            self._save()
        return True

    # -- metrics -------------------------------------------------------------------------------

    def _log_due(self) -> bool:
        """Whether this step's metrics are logged: always if it may be the last one.

        Whether it is, an early stop knows after its eval only, and then these metrics may be gone:
        SIGTERM in the eval saves the state and not them.
        """
        may_end = self.done >= self.steps or (
            self.stop is not None and self.stop.eval in self._evals_due()
        )
        return may_end or self.done % self.log_every == 0

    def _flush(self) -> None:
        """Writes the metrics line that is still on the device, after a look at the bad flag."""
        if self.pending is None:
            return
        (step, out), self.pending = self.pending, None
        host_out = jax.device_get(out)
        self._check(host_out["bad"], step)
        for i, seed in enumerate(self.program.seeds):
            if self.tracker.active[i]:
                one = {
                    k: v[i] if self.program.stacked else v for k, v in host_out["metrics"].items()
                }
                self._write(step, {f"train/{k}": v for k, v in one.items()}, seed)
        values = self.meter.lap(step) if self.meter else {}
        self.logger.timing(step, values, phase=self.name)
        shown = {k: float(np.mean(v)) for k, v in host_out["metrics"].items()}
        rate = values.get("steps_per_second", 0.0)
        self.logger.progress(step, self.steps, shown, rate, self.name)

    def _write(self, step: int, metrics: dict[str, Any], seed: int) -> None:
        metrics = {k: np.asarray(v).item() for k, v in metrics.items()}
        tag = seed if self.program.stacked else None
        self.logger.log(step, metrics, phase=self.name, seed=tag)

    @contextlib.contextmanager
    def _aside(self) -> Any:
        """Host work that counts neither as stepping nor as a hang."""
        with self.dog.paused(), self.meter.paused() if self.meter else contextlib.nullcontext():
            yield

    # -- evaluation ----------------------------------------------------------------------------

    def _evals_due(self) -> dict[str, Eval]:
        last = self.done >= self.steps
        return {
            k: e for k, e in self.evals.items() if e.every and (last or self.done % e.every == 0)
        }

    def _missed(self) -> bool:
        return bool(self.done and self._evals_due()) and self.tracker.evaluated < self.done

    def _measure(self) -> bool:
        """Runs the evals due, writes one line a seed, keeps a better view; False on SIGTERM."""
        self._settle()
        view = self.program.view(self.carry.state)
        with self._aside():
            try:
                found = evaluation.run(self._evals_due(), view, self.program, self.done)
            except Stopped:
                return False
            self.latest = [old | new for old, new in zip(self.latest, found, strict=True)]
            was_active = self.tracker.active.copy()
            tracked = self.tracker.eval in self._evals_due()
            improved = self.tracker.update(self.done, found) if tracked else np.zeros(1, bool)
            if improved.any():
                self.best = evaluation.keep_better(
                    jnp.asarray(improved), view, self.best, self.program.stacked
                )
                self.store.save_best(self.done, self.best)
            for i, seed in enumerate(self.program.seeds):
                if was_active[i]:
                    self._write(self.done, found[i], seed)
            self.tracker.evaluated = self.done
            active = self.program.put(self.tracker.active)
            self.carry = self.carry._replace(active=active)
        return True

    # -- checks --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing is trusted, measured or saved before the state up to `done` is known finite."""
        self._flush()
        self._check(jax.device_get(self.carry.bad), self.done)
        if not bool(jax.device_get(self.program.finite(self.carry.state))):
            self._not_finite(self.done)

    def _check(self, bad: np.ndarray, step: int) -> None:
        if (bad >= 0).any():
            self._not_finite(min(step, int(bad[bad >= 0].min()) + 1))

    def _not_finite(self, step: int) -> None:
        """Finds the step by repeating from the last good state, keeps its inputs, and raises."""
        with self._aside():
            good = self.store.newest()
            raise nonfinite.diagnose(
                self.program, good and good.carry, max(step, self.done), self._evidence
            )

    # -- on disk -------------------------------------------------------------------------------

    def _save(self, *, block: bool = False) -> None:
        self._settle()
        with self._aside():
            lines = self.logger.logged(self.name)
            self.store.save(self.done, self.carry, lines, self.latest, block=block)

    def _leave(self) -> None:
        """SIGTERM: everything to disk, then out."""
        self._save(block=True)
        raise Stopped(f"stopped by SIGTERM, saved at step {self.done}/{self.steps} of {self.name}")

    def _resume(self, written: dict[str, Any]) -> bool:
        """Continues from the newest good checkpoint, or begins; True if it is the end as `written`.

        It is not if the last checkpoint was damaged, or if now there are more steps to do.
        """
        good = self.store.newest()
        if good is None:
            self.logger.cut(phase=self.name, step=0, lines=0)
            self.carry = self.program.init(self.program.keys)
            return False
        self.carry, self.best = good.carry, good.best
        self.latest, self.done = good.latest or self.latest, int(good.carry.step)
        more = written.get("reason") == "steps" and self.steps > self.done
        if self.done == written.get("step") and not more:
            return True
        if self.done > self.steps:
            raise UserError(
                f"steps={self.steps} is less than the {self.done} steps that {self.name} has done"
            )
        self.logger.cut(phase=self.name, step=self.done, lines=good.lines)
        self.logger.note(f"{self.name}: resumed at step {self.done} of {self.steps}")
        return False

    def _goes_on(self, ended: Any) -> bool:
        """Whether a phase of this session that ended by its steps, if it did, has more to do."""
        return isinstance(ended, int) and ended < self.steps

    def _first(self, out: PyTree, begun: float) -> None:
        """After the first call, which alone waits for the device: rates are counted from here."""
        jax.block_until_ready(out)
        seconds = time.perf_counter() - begun
        self.logger.timing(self.done, {"first_call_seconds": seconds}, phase=self.name)
        rows, peak = self.program.examples(), peak_flops_of(self.program.mesh)
        flops = None if self.flops is None else self.flops * max(rows, 1)
        self.meter = Meter(examples=rows or None, flops=flops, peak=peak, step=self.done)

    def _finish(self, record: Path) -> Result:
        """The last save, the evals that run once, and the mark that the phase is done."""
        self._save(block=True)
        reason = "steps" if self.tracker.active.all() else "early stop"
        once = {name: each for name, each in self.evals.items() if not each.every}
        view = self.program.view(self.carry.state) if self.best is None else self.best
        if once:  # a Stopped in here resumes right here
            found = evaluation.run(once, view, self.program, self.done)
            self.latest = [old | new for old, new in zip(self.latest, found, strict=True)]
            for i, seed in enumerate(self.program.seeds):
                self._write(self.done, found[i], seed)
        written = {"step": self.done, "metrics": self.latest, "reason": reason}
        if jax.process_index() == 0:
            part = record.with_suffix(".part")
            part.write_text(json.dumps(written, indent=1) + "\n")
            part.replace(record)
        return self._result(written)

    def _result(self, written: dict[str, Any]) -> Result:
        each = written["metrics"], self.tracker.step.tolist(), self.tracker.value.tolist()
        metrics, best_step, best_value = each if self.program.stacked else [x[0] for x in each]
        kept = self.tracker.eval is not None
        by_steps = written["reason"] == "steps"
        phases.end(self.logger, self.name, written["step"] if by_steps else None)
        return Result(
            state=self.carry.state,
            view=self.program.view(self.carry.state),
            best=self.best,
            step=written["step"],
            metrics=metrics,
            best_step=best_step if kept else None,
            best_value=best_value if kept else None,
            reason=written["reason"],
        )
