"""The record of a run's configuration, `config.json`: enough to run it again, and to compare.

Strict JSON, exactly invertible: tuples are lists there and tuples again when read; a float that
is not finite is `{"float": "inf"}`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rflib import __version__
from rflib.core.errors import UserError
from rflib.run import files

FILE = "config.json"


class Record(NamedTuple):
    """What config.json holds.

    config: nested dict of the final values. overrides: flat {dotted key: value} of the command
    line. source: the config file, as it was given.
    """

    experiment: str
    variant: str
    source: str
    overrides: dict[str, Any]
    config: dict[str, Any]


def nested(config: Any) -> dict[str, Any]:
    """A config of any kind (ConfigDict, frozen or not, dict) as nested dicts, lists as tuples."""
    return {name: _value(config[name]) for name in config.keys()}  # noqa: SIM118 (ConfigDict)


def _value(value: Any) -> Any:
    if hasattr(value, "keys"):
        return nested(value)
    if isinstance(value, list | tuple):
        return tuple(_value(item) for item in value)
    return value


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """`{"model.width": 64, ...}`; an empty section is a leaf."""
    leaves: dict[str, Any] = {}
    for name, value in nested(config).items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            leaves |= flat(value, f"{path}.")
        else:
            leaves[path] = value
    return leaves


def encode(value: Any, path: str = "config") -> Any:
    """Config values as strict JSON; UserError naming the key whose value JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: encode(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item, path) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise UserError(
        f"{path}={value!r} is a {type(value).__name__}; a config holds numbers, strings, booleans, "
        "None, tuples of these and sections"
    )


def decode(value: Any) -> Any:
    """The inverse of `encode`, with tuples for lists."""
    if isinstance(value, Mapping):
        if list(value) == ["float"] and isinstance(value["float"], str):
            return float(value["float"])
        return {name: decode(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    return value


def write(workdir: Path, record: Record) -> None:
    """Writes config.json, with the version of rflib that did."""
    config = encode(record.config)
    overrides = encode(record.overrides)
    fields = record._replace(config=config, overrides=overrides)._asdict()
    files.write_json(workdir / FILE, {"rflib": __version__, **fields})


def read(workdir: Path) -> Record | None:
    """The record of the run in `workdir`; None if that is no run's directory."""
    found = files.read_json(workdir / FILE)
    if not isinstance(found, dict) or "rflib" not in found:
        return None
    try:
        return Record(**{name: decode(found[name]) for name in Record._fields})
    except KeyError:
        return None


def required(workdir: Path, flag: str = "--workdir") -> Record:
    """`read`, with a UserError where there is no run."""
    found = read(workdir)
    if found is None:
        what = "is no run's directory (it has no config.json)" if workdir.exists() else "is missing"
        runs = sorted(str(path.parent) for path in workdir.parent.glob(f"*/{FILE}"))[:5]
        near = f"; runs beside it: {', '.join(runs)}" if runs else ""
        raise UserError(f"{flag}={workdir} {what}{near}")
    return found


def difference(there: Any, here: Any) -> list[str]:
    """One readable item for each key whose value differs between two configs.

    Keys of the section `mesh` do not count: on which devices a run goes on is its own affair.
    """
    old, new = flat(there), flat(here)
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name.startswith("mesh."):
            continue
        if name not in new:
            lines.append(f"{name}: {old[name]!r} there, missing here")
        elif name not in old:
            lines.append(f"{name}: missing there, {new[name]!r} here")
        elif _shown(old[name]) != _shown(new[name]):
            lines.append(f"{name}: {old[name]!r} there, {new[name]!r} here")
    return lines


def _shown(value: Any) -> str:
    return files.dumps(encode(value))
