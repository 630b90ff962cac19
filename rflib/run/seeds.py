"""The seeds of a config that trains the same thing several times."""

from typing import Any

from rflib.core.checks import distinct, positive_int


def seeds(config: Any) -> tuple[int, ...]:
    """`config.seed` and `config.more_seeds`, in the order in which they are run.

    Raises:
        UserError: one that is no whole number >= 0, or named twice: its run would only come back.
    """
    found = (config.seed, *config.more_seeds)
    for seed in found:
        positive_int("config.seed and more_seeds", seed, zero=True)
    return distinct("config.seed and more_seeds", found)
