"""The page that `--help` prints, made from the experiment, its config file and its verbs."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rflib.core.errors import UserError
from rflib.run import arguments, config
from rflib.run import record as records
from rflib.run.arguments import Flag
from rflib.run.verbs import REQUIRED

if TYPE_CHECKING:
    from rflib.run.cli import Program

STATUSES = (
    "0 done; 1 failed (workdir/FAILED has the traceback); 2 yours to mend: config, flags, data, "
    "checkpoint of other shapes, workdir in use or unwritable;\n"
    "  3 not finite; 4 stopped, the same command resumes; 5 no valid checkpoint; 6 hung"
)
LAST = (sys.maxsize, "")


def page(program: "Program", argv: Sequence[str]) -> str:
    """The whole page; a config that cannot be read is said in its place."""
    from rflib.run.cli import FLAGS

    usage = f"{program.command} [--config FILE[:VARIANT]] [--config.KEY=VALUE]... [FLAGS]"
    parts = [program.doc, f"Usage\n  {usage}"]
    if program.verbs:
        parts[-1] += f"\n  {program.command} VERB --workdir RUN [FLAGS]"
    parts += [*_config(program, argv), "Flags\n" + _columns(_flag(flag) for flag in FLAGS)]
    for name, verb in program.verbs.items():
        rows = [
            (f"--{flag}", text + _default(default)) for flag, (default, text) in verb.flags.items()
        ]
        parts.append(f"Verb {name}: {verb.help}".rstrip(": ") + "\n" + _columns(rows))
    parts.append(f"Exit status\n  {STATUSES}")
    return "\n\n".join(part.rstrip() for part in parts if part)


def _default(default: object) -> str:
    if default is REQUIRED:
        return " (required)"
    return "" if default is None else f" (default: {default})"


def _flag(flag: Flag) -> tuple[str, str]:
    return f"--{flag.name}" + ("" if isinstance(flag.default, bool) else " ..."), flag.help


def _config(program: "Program", argv: Sequence[str]) -> Iterator[str]:
    """Variants of the config file and its keys with their values and comments."""
    try:
        text, rest = arguments.split_config(argv)
        source, _, variant = (text or f"configs/{program.name}.py").partition(":")
        file = config.load(source, program.home)
        rows = [(f"--config {source}:{name}", line) for name, line in file.variants.items()]
        if rows:
            yield "Variants\n" + _columns(rows)
        variant = variant or config.DEFAULT
        base = config.get(file, variant)
        values = arguments.parse(rest, program.definitions, base=base)[2]
        notes = comments(file.path)
    except UserError as error:
        yield f"Config\n  error: {error}"
        return
    leaves = records.flat(values)
    order = sorted(leaves, key=lambda key: notes.get(key, LAST)[0])
    shown = [(f"--config.{key}={leaves[key]!r}", notes.get(key, LAST)[1]) for key in order]
    yield f"Config keys ({variant})\n" + _columns(shown)


def _columns(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> str:
    rows = list(rows)
    width = min(48, max((len(left) for left, _ in rows), default=0))
    return "\n".join(f"  {left.ljust(width)}  {right}".rstrip() for left, right in rows)


def comments(path: Path) -> dict[str, tuple[int, str]]:
    """Line and trailing comment of each dotted key in a config file; its first assignment counts.

    Understood are `config.model.width = 64  # ...` and nested `dict(...)`, `ConfigDict(...)` or
    `{...}` with one key a line.
    """
    source = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found: dict[str, tuple[int, str]] = {}
    for node in ast.walk(ast.parse(source)):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pairs = [(key, node.value) for key in _target(node.targets[0])]
        elif isinstance(node, ast.Return) and node.value is not None:
            pairs = [("", node.value)]
        for key, value in pairs:
            for name, line in _leaves(key, value):
                found.setdefault(name, (line, by_line.get(line, "")))
    return found


def _target(node: ast.expr) -> list[str]:
    """`config.model.width` may be the key model.width, or (`model.width`) that of a section."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    return [".".join(parts), ".".join([node.id, *parts])]


def _leaves(key: str, value: ast.expr) -> Iterator[tuple[str, int]]:
    """(dotted key, line of its end) of a value that may be a nested section."""
    items: list[tuple[str, ast.expr]] = []
    if isinstance(value, ast.Call):
        items = [(word.arg, word.value) for word in value.keywords if word.arg]
        inner = [argument for argument in value.args if isinstance(argument, ast.Dict | ast.Call)]
        for argument in inner:
            yield from _leaves(key, argument)
    elif isinstance(value, ast.Dict):
        items = [
            (name.value, item)
            for name, item in zip(value.keys, value.values, strict=True)
            if isinstance(name, ast.Constant) and isinstance(name.value, str)
        ]
    if key:
        yield key, value.end_lineno or value.lineno
    for name, item in items:
        yield from _leaves(f"{key}.{name}" if key else name, item)
