"""The Ehrenfest process: diffusion on integers, driven by ratios or by scores.

Winkler, Richter and Opper, "Bridging discrete and continuous state spaces: Exploring the Ehrenfest
process in time-continuous diffusion models", ICML 2024. Measures how the jump process tends to its
continuous limit, trains it with all losses on laws that can be integrated exactly and on images,
and says which of the paper's claims held.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.core.checks import one_of
from rflib.run.cli import cli
from rflib.run.verbs import REQUIRED, Verb

# What needs jax is imported where it is used: a mistake in a flag is answered before that.

PARTS = ("mixture", "letter", "images", "transfer")


def main(config: Any, run: Any) -> None:
    for part in config.parts:
        one_of("config.parts", part, PARTS)
    if "mixture" in config.parts:
        _mixture(config, run)
    if "letter" in config.parts:
        _letter(config, run)
    if "images" in config.parts or "transfer" in config.parts:
        _images(config, run)


def _mixture(config: Any, run: Any) -> None:
    from experiments.jumps import mixture, mixture_figures

    found = mixture.measure(config, run)
    mixture.state(config, run, found)
    mixture_figures.draw(config, run, found)


def _letter(config: Any, run: Any) -> None:
    from experiments.jumps import letter, letter_verdicts

    letter_verdicts.state(config, run, letter.measure(config, run))


def _images(config: Any, run: Any) -> None:
    from experiments.jumps import generating, image_verdicts, images, judging, transfer

    found = images.problem(config)
    if "images" in config.parts:
        images.check(config, found)
    judge = judging.judge(config, run, found)  # one for both parts: it trains a classifier
    if "images" in config.parts:
        image_verdicts.state(config, run, generating.measure(config, run, judge))
    if "transfer" in config.parts:
        transfer.state(config, run, transfer.measure(config, run, judge))


def sample(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.jumps.sample import sample

    sample(config, workdir, flags)


VERBS = {
    "sample": Verb(
        sample,
        flags={
            "output": (REQUIRED, "where to write: OUTPUT.png, a grid, and OUTPUT.npz, integers"),
            "model": (None, "model of the run (default: its first)"),
            "trained": (None, "seed of the training (default: the run's first)"),
            "count": ("64", "images"),
            "steps": (None, "steps of the sampler (default: the run's)"),
            "correctors": ("0", "corrector leaps a step near the end"),
            "seed": ("0", "of the drawing"),
        },
        help="draw images from a model of a finished run",
    ),
}

if __name__ == "__main__":
    cli(main, verbs=VERBS)
