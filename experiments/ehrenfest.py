"""The Ehrenfest process: diffusion on integers, driven by ratios or by scores.

Winkler, Richter and Opper, "Bridging discrete and continuous state spaces: Exploring the Ehrenfest
process in time-continuous diffusion models", ICML 2024. Measures how the jump process tends to its
continuous limit, trains it with all losses on laws that can be integrated exactly and on images,
and says which of the paper's claims held.
"""

from typing import Any

from rflib.core.checks import one_of
from rflib.run.cli import cli

# What needs jax is imported where it is used: a mistake in a flag is answered before that.

PARTS = ("mixture", "letter", "images", "transfer")


def main(config: Any, run: Any) -> None:
    for part in config.parts:
        one_of("config.parts", part, PARTS)
    if "mixture" in config.parts:
        _mixture(config, run)
    if "letter" in config.parts:
        _letter(config, run)


def _mixture(config: Any, run: Any) -> None:
    from experiments.jumps import mixture, mixture_figures

    found = mixture.measure(config, run)
    mixture.state(config, run, found)
    mixture_figures.draw(config, run, found)


def _letter(config: Any, run: Any) -> None:
    from experiments.jumps import letter, letter_verdicts

    letter_verdicts.state(config, run, letter.measure(config, run))


if __name__ == "__main__":
    cli(main)
