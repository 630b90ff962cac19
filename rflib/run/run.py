"""One run of an experiment: what it logs, draws, measures and claims, kept in one directory."""

import contextlib
import csv
import io
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rflib.core.errors import DryRun, Stopped, UserError
from rflib.run import claims, directory, environment, files, lines, processes, report
from rflib.run import record as records
from rflib.run.board import Board
from rflib.run.progress import Progress

if TYPE_CHECKING:
    from rflib.train.task import Options

RESERVED = {"step", "time", "phase", "seed"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class Run:
    """An open run; made by `Run.open`, and a context manager that ends it.

    workdir: its directory. config: what it runs, frozen. options: wishes of the command line.
    seed: the config's, unless given. Everything kept by name (figures, tables, arrays, claims,
    metrics) replaces what had that name, so an experiment that is continued simply says it again.
    In a multi-process run process 0 writes; with `options.dry` or `options.replay` nobody does.
    """

    def __init__(
        self, workdir: Path, config: Any, seed: int | None, options: "Options", quiet: bool
    ):
        self.workdir = workdir
        self.config = config
        self.seed = seed
        self.options = options
        self._writes = processes.first() and not (options.dry or options.replay)
        self._progress = Progress(quiet=quiet or not processes.first())
        self._lock: Any = None
        self._metrics: Any = None
        self._timing: Any = None
        self._board: Any = None
        self._results: dict[str, Any] = {}
        self._logged: Counter[str] = Counter()
        self._start = time.monotonic()
        self._closed = False

    @classmethod
    def open(
        cls,
        workdir: str | Path,
        config: Any,
        *,
        experiment: str = "",
        variant: str = "",
        seed: int | None = None,
        options: "Options | None" = None,
        overwrite: bool = False,
        quiet: bool = False,
        source: str = "",
        overrides: Mapping[str, Any] | None = None,
    ) -> "Run":
        """Opens `workdir` for a run of `config` (a ConfigDict or a dict): new, or continued.

        Raises UserError if the directory is in use, unwritable, not a run's, or holds a run of
        another config. `overwrite` replaces an earlier run. experiment, variant, source (the
        config file) and overrides (flat, dotted keys) go into the record, from which a verb or
        `--replay` takes the config again.
        """
        if options is None:
            from rflib.train.task import Options

            options = Options()
        values = records.nested(config)
        if seed is None:
            seed = values.get("seed")
        run = cls(Path(workdir), config, seed, options, quiet)
        changed = records.nested(overrides or {})
        record = records.Record(experiment, variant, source, changed, values)
        refused: Exception | None = None
        try:
            if run._writes:
                run._begin(record, overwrite)
        except UserError as error:
            refused = error
        if processes.agree(int(refused is not None)):
            raise refused or UserError(f"process 0 could not open workdir {workdir}")
        return run

    def _begin(self, record: records.Record, overwrite: bool) -> None:
        self._lock, resumed = directory.prepare(self.workdir, record, overwrite=overwrite)
        try:
            self._metrics = lines.LineLog(self.workdir / directory.METRICS, recognise=True)
            self._timing = lines.LineLog(self.workdir / directory.TIMING, recognise=False)
            self._results = files.read_json(self.workdir / directory.RESULTS) or {}
            self._results["seed"] = self.seed
            files.write_json(self.workdir / "env.json", environment.describe())
            self._board = Board(self.workdir / "tensorboard")
        except BaseException:
            self._lock.release()
            raise
        if self._lock.took_over:
            self.note(f"{self.workdir}: the process that held the lock is gone; taken over")
        if resumed:
            self.note(f"continuing the run in {self.workdir}")

    # What `fit` and `study` use (rflib.train.task.Logger).

    def log(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        phase: str = "",
        seed: int | None = None,
    ) -> None:
        """Appends one line to metrics.jsonl: numbers by name; NaN and infinities as null.

        Apart from `time` the line must be a function of (config, seed, step). A line that an
        earlier session of this run logged already is recognised and keeps its place.
        """
        self._logged[phase] += 1
        if not self._writes:
            return
        clash = RESERVED & metrics.keys()
        if clash:
            raise UserError(f"metric name {clash.pop()!r} is reserved; take another")
        values = files.plain({name: metrics[name] for name in sorted(metrics)})
        self._metrics.append(_line(step, phase, seed, values))
        self._board.scalars(step, values, phase=phase, seed=seed)

    def timing(self, step: int, values: Mapping[str, Any], *, phase: str = "") -> None:
        """Appends one line to timing.jsonl: whatever the clock measured."""
        if self._writes:
            self._timing.append(_line(step, phase, None, dict(values)))

    def cut(self, *, phase: str, step: int, lines: int) -> None:
        """Keeps the first `lines` metric lines of `phase`, and its timing up to `step`."""
        self._logged[phase] = lines
        if self._writes:
            self._metrics.cut(phase, lambda number, _: number < lines)
            self._timing.cut(phase, lambda _, record: record.get("step", 0) <= step)

    def logged(self, phase: str) -> int:
        """How many metric lines `phase` has: those that `cut` kept, and all `log` since.

        Every process counts, also those that do not write.
        """
        return self._logged[phase]

    def progress(
        self, step: int, steps: int, metrics: Mapping[str, Any], rate: float, phase: str
    ) -> None:
        """Shows where the phase is; `rate` in steps a second."""
        if self._writes and rate > 0:
            self._results.setdefault("speed", {})[phase] = [step, float(rate)]
        self._progress.step(step, steps, metrics, rate, phase)

    def note(self, text: str) -> None:
        """One line for people, on the screen and in log.txt."""
        self._progress.note(text)
        if self._writes:
            path = self.workdir / directory.LOG
            try:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            except OSError as error:
                raise files.unwritable(path, error) from error

    # What an experiment keeps.

    def figure(self, name: str, figure: Any, caption: str = "") -> None:
        """Saves figures/<name>.png and closes the figure.

        figure: a Matplotlib figure, or a function of no arguments that draws and returns one; the
        function is not called, and a note says so, where Matplotlib is not installed.
        """
        _check(name)
        if not self._writes:
            return
        if callable(figure):
            try:
                import matplotlib  # noqa: F401
            except ImportError:
                self.note(f"figure {name} is left out: pip install 'rflib[report]' draws it")
                return
            figure = figure()
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=150, bbox_inches="tight")
        files.write_bytes(self.workdir / "figures" / f"{name}.png", data.getvalue())
        _close(figure)
        self._keep("figures", name, caption)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
        """Writes tables/<name>.csv (exact values) and .md (rounded); columns of all rows."""
        _check(name)
        if not self._writes:
            return
        plain = [files.plain(row) for row in rows]
        text = io.StringIO()
        columns = list(dict.fromkeys(column for row in plain for column in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        files.write_text(self.workdir / "tables" / f"{name}.csv", text.getvalue())
        markdown = claims.markdown_table(plain) + "\n"
        files.write_text(self.workdir / "tables" / f"{name}.md", markdown)
        self._keep("tables", name, caption)

    def array(self, name: str, value: Any = None, caption: str = "", **named: Any) -> None:
        """Writes arrays/<name>.npz: `value` under the key "value", or several by keyword."""
        import numpy as np

        _check(name)
        if not self._writes:
            return
        arrays = named if value is None else {"value": value, **named}
        data = io.BytesIO()
        compressed: Any = np.savez_compressed
        compressed(data, **{key: np.asarray(item) for key, item in arrays.items()})
        files.write_bytes(self.workdir / "arrays" / f"{name}.npz", data.getvalue())
        self._keep("arrays", name, caption)

    def claim(
        self,
        id: str,
        text: str,
        *,
        measured: Any,
        unit: str = "",
        paper: Any = None,
        verdict: str,
        reason: str = "",
    ) -> None:
        """Records whether a claim of the paper held in this run.

        verdict: "holds", "refuted", or "undecided" with a `reason`. measured, paper: this run's
        and the published value, in `unit`; None where there is none.
        """
        claim = claims.checked(claims.Claim(id, text, measured, unit, paper, verdict, reason))
        self._keep("claims", id, claim._asdict())

    def metric(self, name: str, value: Any) -> None:
        """Puts a result into report.json's `metrics`, beside the last value of each logged one."""
        self._keep("metrics", name, value)

    def _keep(self, kind: str, name: str, value: Any) -> None:
        if self._writes:
            self._results.setdefault(kind, {})[name] = files.plain(value)
            files.write_json(self.workdir / directory.RESULTS, self._results)

    # The end.

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif isinstance(error, Stopped | KeyboardInterrupt | DryRun):
            self.close("stopped")
        else:
            # The error on its way out says more than a report that a full disk prevents.
            with contextlib.suppress(UserError, OSError):
                self.close("failed", "".join(traceback.format_exception(error)))

    def close(self, status: str = "done", trace: str = "") -> None:
        """Writes the report and DONE or FAILED, and lets go of the directory."""
        if self._closed:
            return
        self._closed = True
        self._progress.close()
        if not self._writes:
            return
        steps: list[Callable[[], object]] = [
            self._metrics.close,
            self._timing.close,
            self._board.close,
            self._account,
            lambda: report.write(self.workdir, status),
        ]
        if status == "done":
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            steps.append(lambda: files.write_text(self.workdir / directory.DONE, f"{now}\n"))
        if status == "failed":
            steps.insert(0, lambda: files.write_text(self.workdir / directory.FAILED, trace))
        try:
            for step in steps:
                step()
        finally:
            self._lock.release()

    def _account(self) -> None:
        spent = time.monotonic() - self._start
        self._results["wall_seconds"] = self._results.get("wall_seconds", 0.0) + spent
        files.write_json(self.workdir / directory.RESULTS, self._results)


def _line(step: int, phase: str, seed: int | None, values: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"step": int(step), lines.CLOCK: round(time.time(), 3)}
    if phase:
        line["phase"] = phase
    if seed is not None:
        line["seed"] = int(seed)
    return line | values


def _check(name: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(f"name={name!r} must be letters, digits and any of _ . + -")


def _close(figure: Any) -> None:
    import sys

    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
