"""Configs: finding a config file, its variants, changing keys, with errors of one line."""

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import config_dict

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.run import record as records

DEFAULT = "default"
HOME = Path(__file__).resolve().parents[2]  # configs/ lies beside rflib/, in a clone or installed

KINDS = {
    "str": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "ConfigDict": "a section",
}


class ConfigFile(NamedTuple):
    """A loaded config file. variants: name -> one line (from its VARIANTS; may be empty)."""

    path: Path
    module: ModuleType
    variants: Mapping[str, str]


def load_config(
    name: str | Path, variant: str = DEFAULT, overrides: Mapping[str, Any] | None = None
) -> Any:
    """The frozen config of an experiment without a command line, for notebooks and tests.

    name: an experiment ("leddam") or a config file's path. overrides: {"model.width": 64, ...}.
    Returns a FrozenConfigDict. Raises UserError for an unknown name, variant, key or type.
    """
    text = str(name)
    file = load(text if text.endswith(".py") else f"configs/{text}.py")
    config = get(file, variant)
    change(config, overrides or {})
    return freeze(config)


def locate(text: str, home: Path = HOME) -> Path:
    """The config file `text`, looked for from here and then beside the experiments."""
    for path in (Path(text), home / text):
        if path.is_file():
            return path
    folders = [folder for folder in (Path(text).parent, home / "configs") if folder.is_dir()]
    found = {path.stem: path for folder in folders for path in sorted(folder.glob("[!_]*.py"))}
    near = checks.nearest(Path(text).stem, found) or list(found)[:5]
    hint = f"; nearest: {', '.join(f'configs/{stem}.py' for stem in near)}" if near else ""
    raise UserError(f"config file {text} does not exist{hint}")


def load(text: str, home: Path = HOME) -> ConfigFile:
    """Executes the config file `text`; UserError with file and line if that fails."""
    path = locate(text, home)
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"config file {text} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(_failure(path, error)) from error
    if not hasattr(module, "get_config"):
        raise UserError(f"config file {text} has no function get_config(variant)")
    return ConfigFile(path, module, getattr(module, "VARIANTS", {}))


def get(file: ConfigFile, variant: str) -> config_dict.ConfigDict:
    """get_config(variant), locked; UserError for an unknown variant or a failing file."""
    if file.variants:
        checks.one_of("variant", variant, file.variants)
    try:
        config = file.module.get_config(variant)
    except UserError:
        raise
    except Exception as error:
        raise UserError(_failure(file.path, error)) from error
    if isinstance(config, Mapping):
        config = config_dict.ConfigDict(config)
    return config.lock()


def _failure(path: Path, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    where = f"{path}:{line or (own[-1] if own else '?')}"
    text = error.args[0] if error.args else ""
    return f"{where}: {type(error).__name__}: {text}"


def known(config: Any, key: str, prefix: str = "config.") -> None:
    """UserError with the nearest keys unless the dotted `key` exists in `config`."""
    holder = config
    for part in key.split("."):
        if not hasattr(holder, "keys") or part not in holder.keys():  # noqa: SIM118
            break
        holder = holder[part]
    else:
        return
    near = nearest_keys(config, key)
    hint = f"; nearest: {', '.join(prefix + name for name in near)}" if near else ""
    raise UserError(f"{prefix}{key} is no key of this config{hint}")


def nearest_keys(config: Any, key: str) -> list[str]:
    """Up to three dotted keys like `key`: same last name in another section, or similar."""
    names = list(records.flat(config))
    names += [name for name, value in records.nested(config).items() if isinstance(value, dict)]
    last = key.rpartition(".")[2]
    moved = [name for name in names if name.rpartition(".")[2] == last]
    ends = {name.rpartition(".")[2]: name for name in reversed(names)}
    similar = [ends[end] for end in checks.nearest(last, ends)]
    return list(dict.fromkeys([*moved, *checks.nearest(key, names), *similar]))[:3]


def change(config: config_dict.ConfigDict, overrides: Mapping[str, Any]) -> None:
    """Sets dotted keys in place; UserError for an unknown key or a value of another type."""
    for key, value in overrides.items():
        known(config, key)
        section, _, last = key.rpartition(".")
        holder = value_of(config, section) if section else config
        old = holder[last]
        if isinstance(old, tuple) and isinstance(value, list):
            value = tuple(value)
        try:
            if hasattr(old, "keys") != hasattr(value, "keys"):
                raise TypeError
            holder[last] = value
        except (TypeError, ValueError, KeyError, AttributeError):
            raise UserError(mistyped(config, key, value)) from None


def value_of(config: Any, key: str) -> Any:
    """The value of a dotted key that exists."""
    for part in key.split("."):
        config = config[part]
    return config


def mistyped(config: Any, key: str, value: Any) -> str:
    """The line for a value whose type is not that of the key."""
    section, _, last = key.rpartition(".")
    holder = value_of(config, section) if section else config
    now = "" if hasattr(holder[last], "keys") else f" (now {holder[last]!r})"
    kind = holder.get_type(last).__name__
    return f"config.{key}={value!r} must be {KINDS.get(kind, f'a {kind}')}{now}"


def freeze(config: Any) -> Any:
    """A FrozenConfigDict: hashable, so that it can be closed over or be a static argument."""
    return config_dict.FrozenConfigDict(config)


def recorded(record: records.Record, home: Path = HOME) -> Any:
    """The config of an earlier run: get_config(variant) with the values that the run recorded.

    A key that the run did not have yet keeps today's value, and one that is gone is left out; both
    are named on standard error. Without the config file the record alone is the config.
    """
    source = record.source or f"configs/{record.experiment}.py"
    try:
        config = get(load(source, home), record.variant or DEFAULT)
    except UserError:
        return config_dict.ConfigDict(record.config).lock()
    today, then = records.flat(config), records.flat(record.config)
    for names, what in (
        (sorted(today.keys() - then.keys()), "is newer than the run and keeps today's value"),
        (sorted(then.keys() - today.keys()), "of the run no longer exists"),
    ):
        for name in names:
            print(f"note: config.{name} {what}", file=sys.stderr)
    with config.ignore_type():
        config.update_from_flattened_dict({k: v for k, v in then.items() if k in today})
    return config
