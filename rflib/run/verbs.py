"""Verbs: what a method does on a user's own data without training."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rflib.core.errors import UserError
from rflib.run.arguments import Flag

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


class Verb(NamedTuple):
    """`python -m experiments.<name> <verb> --workdir RUN [flags]`.

    run(config, workdir, flags): config is the one that the run in `workdir` recorded, frozen;
        flags maps each flag's name to its text, or to None where it has no value.
    flags: name -> (default, help); the default is text, None, or REQUIRED.
    needs_run: False for a verb that works without a run: config is then that of --config, or the
        default one, where no --workdir is given.
    """

    run: Callable[[Any, Path, Mapping[str, str | None]], None]
    flags: Mapping[str, tuple[Any, str]] = {}
    help: str = ""
    needs_run: bool = True

    def definitions(self) -> list[Flag]:
        """Its flags as the parser takes them."""
        return [
            Flag(name, None if default is REQUIRED else default, text)
            for name, (default, text) in self.flags.items()
        ]

    def given(self, name: str, parsed: Any) -> dict[str, str | None]:
        """The values of its flags; UserError naming the required ones that are missing."""
        found = {flag: parsed[flag].value for flag in self.flags}
        missing = [
            f"--{flag} ({text})"
            for flag, (default, text) in self.flags.items()
            if default is REQUIRED and found[flag] is None
        ]
        if missing:
            raise UserError(f"{name} needs {', '.join(missing)}")
        return found
