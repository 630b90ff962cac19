"""The command line of an experiment: `cli(main)` is the closing line of experiments/<name>.py."""

import contextlib
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rflib.core.errors import DryRun, RflibError, Stopped, UserError
from rflib.run import arguments, config, directory, processes, report
from rflib.run import record as records
from rflib.run.arguments import Flag
from rflib.run.run import Run
from rflib.run.verbs import Verb

FLAGS = (
    Flag("workdir", None, "the run's directory (default: runs/<name>-<variant>)"),
    Flag("overwrite", False, "replace an earlier run in the workdir"),
    Flag("distributed", False, "one of several processes: call jax.distributed.initialize()"),
    Flag("dry", False, "parameter table, memory estimate and one step; keeps nothing"),
    Flag("replay", None, "a run's directory: reproduce its recorded non-finite step"),
    Flag("profile", None, "first:last, the steps of a profiler trace (workdir/profile)"),
    Flag("compile_cache", True, "keep compiled programs on disk (--nocompile_cache: do not)"),
    Flag("quiet", False, "no progress, only the claims at the end"),
    Flag("help", False, "this page"),
)
RUN_ONLY = ("overwrite", "dry", "replay", "profile")
Main = Callable[[Any, Run], None]


class Program(NamedTuple):
    """The experiment being run. command: how to call it. home: the folder that holds configs/."""

    name: str
    command: str
    doc: str
    home: Path
    verbs: Mapping[str, Verb]

    @property
    def definitions(self) -> list[Flag]:
        """The flags of a run and of every verb."""
        flags = {flag.name: flag for flag in FLAGS}
        for verb in self.verbs.values():
            flags = {flag.name: flag for flag in verb.definitions()} | flags
        return list(flags.values())


class Call(NamedTuple):
    """What a command line asks for: `help`, a verb, or (verb None) the run itself."""

    flags: Any
    config: Any = None
    overrides: Mapping[str, Any] = {}
    variant: str = ""
    source: str = ""
    workdir: Path = Path()
    verb: str | None = None
    words: Mapping[str, str] = {}


def cli(main: Main, *, verbs: Mapping[str, Verb] | None = None) -> NoReturn:
    """Runs `main(config, run)`, or a verb, as the command line says, and exits.

    config is frozen; its default file is configs/<name>.py beside the experiments. Exit status:
    0 done; 1 failed; 2 the user's to mend; 3 not finite; 4 stopped, resumable; 5 no valid
    checkpoint; 6 hung.
    """
    sys.exit(execute(main, dict(verbs or {}), sys.argv[1:]))


def execute(main: Main, verbs: Mapping[str, Verb], argv: Sequence[str]) -> int:
    """`cli` as a function: returns the exit status."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures go to files, also without a display
    workdir: list[Path] = []
    try:
        program = _program(main, verbs)
        call = resolve(program, argv)
        if call is None:
            from rflib.run.help import page

            print(page(program, argv))
            return 0
        if call.verb is None or verbs[call.verb].needs_run:
            workdir.append(call.workdir)
        if call.verb is not None:
            return _act(program, call)
        return _run(main, program, call)
    except DryRun as end:
        _say(str(end))
        return end.status
    except (Stopped, KeyboardInterrupt) as end:
        text = str(end) or "interrupted"
        print(f"{text}; resume with: {_again(program, argv)}", file=sys.stderr)
        return Stopped.status
    except RflibError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        traceback.print_exc()
        failed = [path / directory.FAILED for path in workdir]
        where = "".join(f" (kept in {path})" for path in failed if path.exists())
        print(f"error: {type(error).__name__}: {error}{where}", file=sys.stderr)
        return 1


def _program(main: Main, verbs: Mapping[str, Verb]) -> Program:
    module = sys.modules[main.__module__]
    file = Path(module.__file__ or "experiment.py")
    spec = module.__spec__
    command = f"python -m {spec.name}" if spec else f"python {file}"
    return Program(
        file.stem, command, (module.__doc__ or "").strip(), file.resolve().parents[1], verbs
    )


def resolve(program: Program, argv: Sequence[str]) -> Call | None:
    """What argv asks for, with its config checked; None for --help. Raises UserError."""
    text, rest = arguments.split_config(argv)
    flags, words = arguments.glance(rest, program.definitions)
    if flags["help"].value:
        return None
    verb = next((word for word in words if word in program.verbs), None)
    if verb is not None:
        return _resolve_verb(program, verb, flags, text, rest)
    _refuse_strays(program, flags, None)
    if flags["replay"].value is not None:
        return _resolve_replay(program, flags, text, rest)
    source, _, variant = (text or f"configs/{program.name}.py").partition(":")
    variant = variant or config.DEFAULT
    file = config.load(source, program.home)
    flags, words, values, overrides = arguments.parse(
        rest,
        program.definitions,
        base=config.get(file, variant),
        source=f"{file.path}:{variant}",
    )
    _no_words(program, words, file)
    label = re.sub(r"[^\w.-]+", "_", variant)
    workdir = Path(flags["workdir"].value or Path("runs") / f"{program.name}-{label}")
    return Call(flags, config.freeze(values), overrides, variant, source, workdir)


def _resolve_verb(
    program: Program, verb: str, flags: Any, text: str | None, rest: list[str]
) -> Call:
    _refuse_strays(program, flags, verb)
    if not program.verbs[verb].needs_run:
        return _resolve_free_verb(program, verb, flags, text, rest)
    if text is not None:
        raise UserError(f"{verb} takes the config of the run in --workdir; leave out --config")
    if flags["workdir"].value is None:
        runs = sorted(str(path.parent) for path in Path("runs").glob(f"*/{records.FILE}"))
        hint = f"; runs here: {', '.join(runs[:5])}" if runs else ""
        raise UserError(f"{verb} needs --workdir, the directory of a run{hint}")
    workdir = Path(flags["workdir"].value)
    record = _record_of(program, workdir, "--workdir")
    flags, words, values, overrides = arguments.parse(
        rest, program.definitions, base=config.recorded(record, program.home)
    )
    words.remove(verb)
    named = _words(program, verb, words)
    frozen = config.freeze(values)
    return Call(flags, frozen, overrides, record.variant, record.source, workdir, verb, named)


def _resolve_free_verb(
    program: Program, verb: str, flags: Any, text: str | None, rest: list[str]
) -> Call:
    """A verb that works without a run."""
    if text is not None or arguments.overridden(rest):
        raise UserError(f"{verb} reads no config; leave out --config")
    for name in ("workdir", "distributed"):
        if flags[name].present:
            raise UserError(f"{verb} works without a run; leave out --{name}")
    flags, words, _, _ = arguments.parse(rest, program.definitions)
    words.remove(verb)
    return Call(flags, verb=verb, words=_words(program, verb, words))


def _words(program: Program, verb: str, words: Sequence[str]) -> dict[str, str]:
    """What follows a verb, by name."""
    if not program.verbs[verb].words:
        _no_words(program, words)
    return program.verbs[verb].named(verb, words)


def _resolve_replay(program: Program, flags: Any, text: str | None, rest: list[str]) -> Call:
    if text is not None or arguments.overridden(rest):
        raise UserError("--replay takes the config of its run; leave out --config")
    workdir = Path(flags["replay"].value)
    record = _record_of(program, workdir, "--replay")
    if not any(workdir.glob("phases/*/nonfinite/record.json")):
        raise UserError(f"--replay={workdir} has recorded no non-finite step")
    flags, words, _, _ = arguments.parse(rest, program.definitions)
    _no_words(program, words)
    frozen = config.freeze(config.recorded(record, program.home))
    return Call(flags, frozen, record.overrides, record.variant, record.source, workdir)


def _record_of(program: Program, workdir: Path, flag: str) -> records.Record:
    record = records.required(workdir, flag)
    if record.experiment and record.experiment != program.name:
        raise UserError(f"{flag}={workdir} is a run of {record.experiment}, not of {program.name}")
    return record


def _no_words(program: Program, words: Sequence[str], file: Any = None) -> None:
    if words:
        raise UserError(arguments.unknown_word(words[0], program.verbs, file))


def _refuse_strays(program: Program, flags: Any, verb: str | None) -> None:
    """UserError for a flag of another verb, or of a run in a verb."""
    mine = set(program.verbs[verb].flags) if verb is not None else set()
    for name, other in program.verbs.items():
        for flag in other.flags:
            if flags[flag].present and flag not in mine:
                here = verb or "a run"
                raise UserError(f"--{flag} belongs to the verb {name}, not to {here}")
    for flag in RUN_ONLY if verb is not None else ():
        if flags[flag].present:
            raise UserError(f"--{flag} belongs to a run, not to the verb {verb}")


def _profile(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(f"--profile={text} must be first:last, two steps in order, such as 10:20")
    return int(match[1]), int(match[2])


def _start(flags: Any) -> None:
    """What has to happen before anything touches a device."""
    from rflib.train import host

    if flags["distributed"].value:
        from rflib.train.mesh import initialize_distributed

        initialize_distributed()
    host.tune_allocator()
    host.compilation_cache(flags["compile_cache"].value)


def _act(program: Program, call: Call) -> int:
    verb = program.verbs[call.verb or ""]
    given = {**call.words, **verb.given(call.verb or "", call.flags)}
    if verb.needs_run:
        _start(call.flags)
    try:
        verb.run(call.config, call.workdir, given)
    except OSError as error:
        if error.filename is None:
            raise
        text = (error.strerror or str(error)).lower()
        raise UserError(f"cannot use {error.filename}: {text}") from error
    return 0


def _run(main: Main, program: Program, call: Call) -> int:
    flags = call.flags
    profile = _profile(flags["profile"].value)
    dry, replay = flags["dry"].value, flags["replay"].value is not None
    overwrite = flags["overwrite"].value
    keeps = not (dry or replay)
    if keeps and not flags["distributed"].value:
        # Before jax is imported: a refusal is quick.
        directory.check(call.workdir, program.name, call.config, overwrite=overwrite)
    finished = keeps and not overwrite and directory.finished(call.workdir, call.config)
    if flags["distributed"].value or not finished:
        _start(flags)
    if processes.agree(int(finished)):
        _say(f"{call.workdir} is done; --overwrite would run it again. Its report:\n")
        _say(report.printed(call.workdir))
        return 0
    with contextlib.ExitStack() as stack:
        workdir = call.workdir
        if dry:
            workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rflib-dry-")))
        _watched(main, program, call, workdir, (dry, replay, profile))
    if replay:  # what is replayed leaves by an exception
        raise UserError(f"every phase of {workdir} has ended well since: nothing to replay")
    if keeps and processes.first():
        _say(report.closing(workdir))
    return 0


def _watched(main: Main, program: Program, call: Call, workdir: Path, wishes: Any) -> None:
    from rflib.train.preemption import Guard
    from rflib.train.task import Options

    complete = False
    try:
        with Guard():
            with Run.open(
                workdir,
                call.config,
                experiment=program.name,
                variant=call.variant,
                options=Options(*wishes),
                overwrite=call.flags["overwrite"].value,
                quiet=call.flags["quiet"].value,
                source=call.source,
                overrides=call.overrides,
            ) as run:
                main(call.config, run)
            complete = True
    except Stopped:
        if not complete:  # else the signal came when all was done
            raise


def _again(program: Program, argv: Sequence[str]) -> str:
    kept = [argument for argument in argv if argument not in ("--overwrite", "--overwrite=true")]
    return shlex.join([*program.command.split(), *kept])


def _say(text: str) -> None:
    if text and processes.first():
        print(text, flush=True)
