"""Command lines: absl flags and config_flags on a private FlagValues, errors of one line.

absl's own `app.run` exits 1 on a wrong flag and shows a traceback for a wrong config; here either
is a UserError with the nearest valid names.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_flags

from rflib.core import checks
from rflib.core.errors import UserError
from rflib.run import config as configs
from rflib.run import record as records

CONFIG = re.compile(r"--?config(?:=(.*))?", re.DOTALL)
OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)(?:=.*)?", re.DOTALL)
ILLEGAL = re.compile(r"flag --(config\.)?([^=]+)=(.*?): .*", re.DOTALL)


class Flag(NamedTuple):
    """A flag: text if its default is text or None, on or off if it is a bool."""

    name: str
    default: Any
    help: str


class _Literal(flags.ArgumentParser):
    """For a key whose value is None: a Python literal if it is one, else text."""

    syntactic_help = "a number, text, or None"

    def parse(self, argument: str) -> Any:
        try:
            return ast.literal_eval(argument)
        except (SyntaxError, ValueError):
            return argument

    def flag_type(self) -> str:
        return "literal"


def values(definitions: Iterable[Flag]) -> flags.FlagValues:
    """A private FlagValues with these flags; words may stand between them."""
    defined = flags.FlagValues()
    defined.set_gnu_getopt(True)
    for flag in definitions:
        switch = isinstance(flag.default, bool)
        define: Any = flags.DEFINE_boolean if switch else flags.DEFINE_string
        short = "h" if flag.name == "help" else None
        define(flag.name, flag.default, flag.help, flag_values=defined, short_name=short)
    return defined


def glance(argv: Sequence[str], definitions: Iterable[Flag]) -> tuple[flags.FlagValues, list[str]]:
    """Flags and leftover words before the config is known; config keys are among the words."""
    defined = values(definitions)
    try:
        words = defined(["", *argv], known_only=True)[1:]
    except flags.Error as error:
        raise _flag_error(error, None) from error
    return defined, words


def split_config(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Takes `--config FILE[:VARIANT]` out of argv: (the last one's text or None, the rest)."""
    text, rest, following = None, [], iter(argv)
    for argument in following:
        match = CONFIG.fullmatch(argument)
        if match is None:
            rest.append(argument)
            continue
        text = match[1] if match[1] is not None else next(following, "")
        if not text:
            raise UserError("--config needs a file: --config configs/<name>.py:<variant>")
    return text, rest


def overridden(argv: Iterable[str]) -> list[str]:
    """The dotted config keys that argv changes."""
    return [match[1] for argument in argv if (match := OVERRIDE.fullmatch(argument))]


def parse(
    argv: Sequence[str],
    definitions: Sequence[Flag],
    *,
    base: Any = None,
    source: str | None = None,
) -> tuple[flags.FlagValues, list[str], Any, dict[str, Any]]:
    """Parses argv (without --config): (flags, words, config, overrides as {dotted key: value}).

    base: the config that `--config.key=value` changes, or None where there are no such flags.
    source: `file:variant` from which config_flags shall read it (else `base` itself is changed).
    Raises UserError for an unknown flag or key, or a value of a wrong type.
    """
    defined = values(definitions)
    if base is None:
        words = _parsed(defined, argv, definitions, None)
        return defined, words, None, {}
    for key in overridden(argv):
        configs.known(base, key)
    config_flags.register_flag_parser_for_type(type(None), _Literal())
    arguments = list(argv) if source is None else [f"--config={source}", *argv]
    try:
        if source is None:
            config_flags.DEFINE_config_dict("config", base, flag_values=defined, sys_argv=arguments)
        else:
            config_flags.DEFINE_config_file("config", flag_values=defined, sys_argv=arguments)
    except (flags.Error, ValueError, KeyError, AttributeError) as error:
        raise UserError(_line(error)) from error
    words = _parsed(defined, arguments, definitions, base)
    flag: Any = defined["config"]
    config, changed = flag.value, dict(flag.override_values)
    moved = records.flat(config).keys() ^ records.flat(base).keys()
    if moved:
        raise UserError(f"a section must keep its keys; this changes config.{sorted(moved)[0]}")
    return defined, words, config, changed


def _parsed(
    defined: flags.FlagValues, argv: Sequence[str], definitions: Sequence[Flag], base: Any
) -> list[str]:
    try:
        words = defined(["", *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown_flag(error.flagname, definitions, base)) from None
    except (flags.Error, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _flag_error(error, base) from error
    return words


def _flag_error(error: Exception, base: Any) -> UserError:
    match = ILLEGAL.fullmatch(str(error))
    if match and match[1]:
        return UserError(configs.mistyped(base, match[2], match[3]))
    if match:
        return UserError(f"--{match[2]}={match[3]} must be true or false")
    return UserError(_line(error))


def _unknown_flag(name: str, definitions: Sequence[Flag], base: Any) -> str:
    near = [f"--{close}" for close in checks.nearest(name, [flag.name for flag in definitions])]
    if base is not None:
        near += [f"--config.{key}" for key in configs.nearest_keys(base, name)]
    hint = f"; nearest: {', '.join(near[:3])}" if near else ""
    return f"unknown flag --{name}{hint} (--help lists all)"


def unknown_word(word: str, known: Iterable[str], file: configs.ConfigFile | None = None) -> str:
    """The line for a word that is no verb, with what was probably meant."""
    known = list(known)
    near = checks.nearest(word, known) or known
    if file is not None and word in file.variants:
        near = [f"--config {file.path}:{word}"]
    elif Path(word.partition(":")[0]).suffix == ".py":
        near = [f"--config {word}"]
    elif "=" in word:
        near = [f"--{word}" if word.startswith("config.") else f"--config.{word}"]
    if not near:
        return f"unexpected {word!r}: this command has no verbs (--help lists its flags)"
    return f"{word!r} is no verb; nearest: {', '.join(near)}"


def _line(error: Exception) -> str:
    text = error.args[0] if error.args else type(error).__name__
    return " ".join(str(text).split())
