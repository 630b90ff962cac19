"""What experiments there are and what their runs found, without importing any of them."""

import ast
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rflib.core import checks
from rflib.core.errors import RflibError, UserError
from rflib.run import arguments, claims, config, files, report
from rflib.run.arguments import Flag

HELP = Flag("help", False, "this page")


class System(NamedTuple):
    """An experiment: its name, the first line of its docstring, its variants with their cost."""

    name: str
    line: str
    variants: Mapping[str, str]


def systems() -> list[System]:
    """Every experiments/<name>.py that has a configs/<name>.py, here or where rflib lies."""
    here = Path.cwd()
    home = here if (here / "experiments").is_dir() and (here / "configs").is_dir() else config.HOME
    found = []
    for path in sorted((home / "experiments").glob("[!_]*.py")):
        file = home / "configs" / path.name
        if file.is_file():
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            variants = config.load(str(file), home).variants
            found.append(System(path.stem, text.partition("\n")[0], variants))
    return found


def select(found: Sequence[System], names: str | None) -> list[System]:
    """The systems of a comma-separated list, all for None; UserError for an unknown one."""
    if names is None:
        return list(found)
    by_name = {system.name: system for system in found}
    return [checks.choose("only", name.strip(), by_name) for name in names.split(",")]


def reports(root: Path) -> list[dict[str, Any]]:
    """The report.json files under `root`, by experiment, variant and folder."""
    if not root.is_dir():
        raise UserError(f"{root} is no directory")
    found = []
    for path in sorted(root.rglob(report.JSON)):
        content = files.read_json(path)
        if isinstance(content, dict) and {"experiment", "claims", "status"} <= content.keys():
            found.append({**content, "workdir": str(path.parent)})
    return sorted(found, key=lambda r: (r["experiment"], r["variant"], r["workdir"]))


def table(found: Iterable[Mapping[str, Any]]) -> str:
    """The claims of many runs as Markdown, wrapped on a terminal; a run without any has a row."""
    rows: list[dict[str, Any]] = []
    for content in found:
        run = {"system": content["experiment"], "variant": content["variant"]}
        status = content["status"]
        lines = claims.claim_rows(content["claims"]) if status == "done" else []
        nothing = "no claims" if status == "done" else f"run {status}"
        rows += [run | line for line in lines or [{"claim": "", "text": "", "verdict": nothing}]]
    order = ("system", "variant", "claim", "text", "measured", "paper", "verdict")
    screen = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    full = [{name: row.get(name, "") for name in order} for row in rows]
    return claims.markdown_table(full, screen)


def verdicts(content: Mapping[str, Any]) -> str:
    """`3 hold, 1 refuted, 2 undecided`, or the status of a run that is not done."""
    if content["status"] != "done":
        return str(content["status"])
    given = [claim["verdict"] for claim in content["claims"]]
    words = {"holds": "hold", "refuted": "refuted", "undecided": "undecided"}
    counts = [f"{given.count(name)} {word}" for name, word in words.items() if name in given]
    return ", ".join(counts) or "done, no claims"


def command(
    body: Callable[[Any, list[str]], int], definitions: Sequence[Flag], doc: str | None
) -> NoReturn:
    """A small command line: parses, calls body(flags, words), and exits with its status."""
    try:
        flags, words, _, _ = arguments.parse(sys.argv[1:], [*definitions, HELP])
        if flags["help"].value:
            lines = [f"  --{flag.name.ljust(12)} {flag.help}" for flag in [*definitions, HELP]]
            print("\n".join([(doc or "").strip(), "", "Flags", *lines]))
            sys.exit(0)
        sys.exit(body(flags, words))
    except RflibError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.status)
