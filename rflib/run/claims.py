"""Claims of a paper and what a run measured of them."""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rflib.core import checks
from rflib.core.errors import UserError

VERDICTS = ("holds", "refuted", "undecided")


class Claim(NamedTuple):
    """One claim.

    measured, paper: the run's and the published value in `unit` (numbers, text, or None).
    verdict: "holds", "refuted", or "undecided", which needs a reason.
    """

    id: str
    text: str
    measured: Any
    unit: str
    paper: Any
    verdict: str
    reason: str


def checked(claim: Claim) -> Claim:
    """Returns the claim; UserError for an unknown verdict or an undecided one without reason."""
    checks.one_of("verdict", claim.verdict, VERDICTS)
    if claim.verdict == "undecided" and not claim.reason:
        raise UserError(f"claim {claim.id} is undecided: say why in reason=")
    return claim


def shown(value: Any) -> str:
    """A value for people: four significant digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:d}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return str(value)


def markdown_table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """A Markdown table, columns aligned in plain text; its columns are those of all rows.

    With `width` the widest columns are wrapped until the table fits, for a screen.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return ""
    cells = [[_cell(name) for name in columns]]
    cells += [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(columns))]
    while width is not None and sum(widths) + 3 * len(widths) + 1 > width and max(widths) > 10:
        widths[widths.index(max(widths))] -= 1
    lines = [part for line in cells for part in _wrapped(line, widths)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    lines.insert(len(_wrapped(cells[0], widths)), rule)
    return "\n".join(lines)


def _wrapped(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    parts = [textwrap.wrap(cell, size) or [""] for cell, size in zip(line, widths, strict=True)]
    return [
        "| " + " | ".join(p.ljust(w) for p, w in zip(row, widths, strict=True)) + " |"
        for row in itertools.zip_longest(*parts, fillvalue="")
    ]


def _cell(value: Any) -> str:
    return shown(value).replace("|", "\\|").replace("\n", " ")


def claim_rows(claims: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows of a claims table from claims as report.json has them."""
    return [
        {
            "claim": claim["id"],
            "text": claim["text"],
            "measured": _with_unit(claim["measured"], claim["unit"]),
            "paper": _with_unit(claim["paper"], claim["unit"]),
            "verdict": claim["verdict"] + (f" ({claim['reason']})" if claim["reason"] else ""),
        }
        for claim in claims
    ]


def _with_unit(value: Any, unit: str) -> str:
    return f"{shown(value)} {unit}".strip() if value is not None else ""
