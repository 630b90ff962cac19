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


def page(program: "Program", argv: Sequence[str]) -> str:
    """The whole page; a config that cannot be read is said in its place."""
    from rflib.run.cli import FLAGS

    usage = f"{program.command} [--config FILE[:VARIANT]] [--config.KEY=VALUE]... [FLAGS]"
    parts = [program.doc, f"Usage\n  {usage}"]
    for name, verb in program.verbs.items():
        parts[-1] += f"\n  {program.command} {verb.usage(name)}"
    parts += [*_config(program, argv), "Flags\n" + _columns(_flag(flag) for flag in FLAGS)]
    for name, verb in program.verbs.items():
        rows = [(word.upper(), text) for word, text in verb.words.items()]
        rows += [
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
    order = sorted(leaves, key=lambda key: comment(notes, key)[0])
    shown = [(f"--config.{key}={leaves[key]!r}", comment(notes, key)[1]) for key in order]
    yield f"Config keys ({variant})\n" + _columns(shown)


def _columns(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> str:
    rows = list(rows)
    width = min(48, max((len(left) for left, _ in rows), default=0))
    return "\n".join(f"  {left.ljust(width)}  {right}".rstrip() for left, right in rows)


def comments(path: Path) -> dict[str, tuple[int, str]]:
    """Place in the file's order, and trailing comment, of each dotted key that get_config sets.

    Understood are `config.model.width = 64  # ...`, nested `dict(...)`, `ConfigDict(...)` or
    `{...}` with one key a line, and sections that come from functions of the file. Sections made
    for several names at once have `*` in place of the name.
    """
    source = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found: dict[str, tuple[int, str]] = {}
    for key, line in _keys("", functions.get("get_config"), functions, depth=0):
        found.setdefault(key, (len(found), by_line.get(line, "")))
    return found


def comment(notes: dict[str, tuple[int, str]], key: str) -> tuple[int, str]:
    """The place and the comment of one key; what is not found comes last."""
    if key in notes:
        return notes[key]
    parts = key.split(".")
    for name, note in notes.items():
        pattern = name.split(".")
        if len(pattern) == len(parts) and all(map(_fits, pattern, parts)):
            return note
    return sys.maxsize, ""


def _fits(pattern: str, part: str) -> bool:
    return pattern in ("*", part)


def _keys(
    prefix: str, function: ast.AST | None, functions: dict[str, ast.FunctionDef], depth: int
) -> Iterator[tuple[str, int]]:
    """(dotted key, line) of what a function assigns or returns, under `prefix`."""
    for node in ast.walk(function) if function is not None and depth < 4 else ():
        names: list[str] = []
        value = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            names, value = _target(node.targets[0]), node.value
        elif isinstance(node, ast.Return):
            names, value = [""], node.value
        for name in names if value is not None else ():
            yield from _leaves(_join(prefix, name), value, functions, depth)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _target(node: ast.expr) -> list[str]:
    """`config.model.width` may be the key model.width, or (`model.width`) that of a section."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    return [".".join(parts), ".".join([node.id, *parts])]


def _leaves(
    key: str, value: ast.AST | None, functions: dict[str, ast.FunctionDef], depth: int
) -> Iterator[tuple[str, int]]:
    """(dotted key, line of its end) of a value that may be a nested section."""
    if key and isinstance(value, ast.expr):
        yield key, value.end_lineno or value.lineno
    items: list[tuple[str, ast.AST]] = []
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Name) and value.func.id in functions:
            yield from _keys(key, functions[value.func.id], functions, depth + 1)
            return
        items = [(word.arg, word.value) for word in value.keywords if word.arg]
        items += [("", argument) for argument in value.args]
    elif isinstance(value, ast.DictComp):
        items = [("*", value.value)]
    elif isinstance(value, ast.Dict):
        items = [
            (name.value, item)
            for name, item in zip(value.keys, value.values, strict=True)
            if isinstance(name, ast.Constant) and isinstance(name.value, str)
        ]
    for name, item in items:
        if name or isinstance(item, ast.Dict | ast.DictComp | ast.Call):
            yield from _leaves(_join(key, name), item, functions, depth)
