"""Verbs: what a method does on a user's own data without training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rflib.core.errors import UserError
from rflib.run.arguments import Flag

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()


class Verb(NamedTuple):
    """`python -m experiments.<name> <verb> [words] --workdir RUN [flags]`.

    run(config, workdir, flags): config is the one that the run in `workdir` recorded, frozen;
        flags maps the name of each word and flag to its text, or to None where it has no value.
    flags: name -> (default, help); the default is text, None, or REQUIRED.
    words: name -> help of what must follow the verb without a flag, in this order.
    needs_run: False for a verb that works without any run: it takes no --workdir, its config is
        None, its workdir empty, and no device is prepared for it, so that it need not import jax.
    """

    run: Callable[[Any, Path, Mapping[str, str | None]], None]
    flags: Mapping[str, tuple[Any, str]] = {}
    help: str = ""
    words: Mapping[str, str] = {}
    needs_run: bool = True

    def usage(self, name: str) -> str:
        """`certify GAME POLICIES [FLAGS]`: what to write after the command."""
        words = "".join(f" {word.upper()}" for word in self.words)
        return f"{name}{words}{' --workdir RUN' if self.needs_run else ''} [FLAGS]"

    def named(self, name: str, words: Sequence[str]) -> dict[str, str]:
        """The words that follow the verb under their names; UserError if there are not as many."""
        if len(words) != len(self.words):
            had = f", not {' '.join(words)}" if words else ""
            wanted = " ".join(word.upper() for word in self.words)
            raise UserError(f"{name} takes {wanted or 'no words'}{had}: {self.usage(name)}")
        return dict(zip(self.words, words, strict=True))

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
