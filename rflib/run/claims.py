"""Claims of a paper and what a run measured of them."""

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


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, columns aligned in plain text; its columns are those of all rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return ""
    cells = [[name.replace("|", "\\|") for name in columns]]
    cells += [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


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
