"""The report of a run, made from its directory alone: report.json and report.md."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.run import claims, files, lines
from rflib.run import record as records
from rflib.run.directory import METRICS, RESULTS
from rflib.run.progress import clock

JSON = "report.json"
MARKDOWN = "report.md"
CONFIG_HEADING = "## Config"


def build(workdir: Path, status: str) -> dict[str, Any]:
    """The contents of report.json for the run in `workdir`."""
    record = records.required(workdir)
    results = files.read_json(workdir / RESULTS) or {}
    speed = results.get("speed", {})
    longest = max(speed.values(), key=lambda entry: entry[0] / (entry[1] or 1), default=(0, None))
    return {
        "experiment": record.experiment,
        "variant": record.variant,
        "status": status,
        "seed": results.get("seed"),
        "config": records.encode(record.config),
        "overrides": records.encode(record.overrides),
        "claims": list(results.get("claims", {}).values()),
        "tables": _artefacts(results, "tables", "csv"),
        "figures": _artefacts(results, "figures", "png"),
        "arrays": _artefacts(results, "arrays", "npz"),
        "metrics": last_metrics(workdir / METRICS) | results.get("metrics", {}),
        "environment": files.read_json(workdir / "env.json") or {},
        "wall_seconds": results.get("wall_seconds", 0.0),
        "steps_per_second": longest[1],
    }


def _artefacts(results: Mapping[str, Any], kind: str, suffix: str) -> list[dict[str, str]]:
    return [
        {"name": name, "file": f"{kind}/{name}.{suffix}", "caption": caption}
        for name, caption in results.get(kind, {}).items()
    ]


def last_metrics(path: Path) -> dict[str, Any]:
    """The last logged value of each metric, under `phase/metric` (`phase/seed0/metric`)."""
    last: dict[str, Any] = {}
    for record in lines.each(path):
        seed = record.pop("seed", None)
        prefix = [record.pop("phase", ""), "" if seed is None else f"seed{seed}"]
        for name, value in record.items():
            if name not in ("step", lines.CLOCK):
                last["/".join(part for part in (*prefix, name) if part)] = value
    return last


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and len(value) > 8)


def write(workdir: Path, status: str) -> dict[str, Any]:
    """Writes both files and returns the report."""
    report = build(workdir, status)
    files.write_json(workdir / JSON, report)
    files.write_text(workdir / MARKDOWN, markdown(report, workdir))
    return report


def markdown(report: Mapping[str, Any], workdir: Path, width: int | None = None) -> str:
    """The report for people, with its tables and links to its figures; claims fit in `width`."""
    title = " ".join(part for part in (report["experiment"], report["variant"]) if part) or "run"
    parts = [f"# {title}: {report['status']}", _summary(report)]
    if report["claims"]:
        rows = claims.claim_rows(report["claims"])
        parts += ["## Claims", claims.markdown_table(rows, width)]
    # Lists and records (a cell's curves, policies) are in metrics.jsonl; in a cell of a table they
    # would make every row as long.
    plain = {name: value for name, value in report["metrics"].items() if not _nested(value)}
    if plain:
        rows = [{"metric": name, "value": value} for name, value in plain.items()]
        parts += ["## Metrics", claims.markdown_table(rows)]
    for table in report["tables"]:
        text = (workdir / "tables" / f"{table['name']}.md").read_text().strip()
        parts += [f"## Table: {table['name']}", table["caption"], text]
    for figure in report["figures"]:
        parts += [f"## Figure: {figure['name']}", figure["caption"]]
        parts += [f"![{figure['name']}]({figure['file']})"]
    config = [
        f"{name} = {value!r}"
        for name, value in records.flat(records.decode(report["config"])).items()
    ]
    parts += [CONFIG_HEADING, "```\n" + "\n".join(config) + "\n```"]
    parts += ["## Environment", f"```\n{files.dumps(report['environment'], indent=2)}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(report: Mapping[str, Any]) -> str:
    environment = report["environment"]
    devices = environment.get("devices") or []
    facts = [
        f"seed {report['seed']}" if report["seed"] is not None else "",
        f"{clock(report['wall_seconds'])} of wall time",
        f"{report['steps_per_second']:.4g} steps/s" if report["steps_per_second"] else "",
        f"{len(devices)} x {devices[0]}" if devices else "",
        f"jax {environment['jax']}" if "jax" in environment else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def printed(workdir: Path) -> str:
    """What the command line shows of a finished run: its report up to the config."""
    if not (workdir / MARKDOWN).exists():  # lost; the rest of the directory is enough
        write(workdir, "done")
    text = markdown(build(workdir, "done"), workdir, _screen())
    return text.partition(f"\n{CONFIG_HEADING}\n")[0].rstrip()


def closing(workdir: Path) -> str:
    """What the command line shows when a run ends: its claims and where the report is."""
    rows = claims.claim_rows(build(workdir, "done")["claims"])
    return f"{claims.markdown_table(rows, _screen())}\ndone: {workdir / MARKDOWN}".lstrip()


def _screen() -> int:
    return shutil.get_terminal_size((120, 24)).columns
