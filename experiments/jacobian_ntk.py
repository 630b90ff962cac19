"""Jacobian NTK: what a wide network with a penalty on its input-Jacobian learns, without training.

Kim and Yang, "An Infinite-Width Analysis on the Jacobian-Regularised Training of a Neural Network",
ICML 2024. Six studies compare networks with the limit of infinite width, at initialisation and in
training, and look at the limit itself: its smallest eigenvalues, its features, its stopping time.
`advise` says what a penalty will do on a CSV file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.core.checks import choose, distinct
from rflib.run.cli import cli
from rflib.run.verbs import REQUIRED, Verb

# What needs jax is imported where it is used: a mistake in a flag is answered before that.


def main(config: Any, run: Any) -> None:
    from experiments.jacobian_regularisation import (
        claims,
        constancy,
        dynamics,
        features,
        figures,
        kernel_init,
        regression,
        spectrum,
    )
    from experiments.jacobian_regularisation.data import labelled

    studies = {
        "kernel_init": lambda: kernel_init.run_study(config, run),
        "constancy": lambda: constancy.run_study(config, run, labelled(config, run)),
        "dynamics": lambda: dynamics.run_study(config, run, labelled(config, run)),
        "spectrum": lambda: spectrum.run_study(config, run, labelled(config, run)),
        "features": lambda: features.run_study(config, run, labelled(config, run)),
        "regression": lambda: regression.run_study(config, run, labelled(config, run)),
    }
    chosen = {name: choose("config.exp", name, studies) for name in distinct("exp", config.exp)}
    found = {}
    for name, study in chosen.items():
        found[name] = study()
        figures.draw(config, run, name, found[name])
    claims.state(config, run, found)


def advise(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.jacobian_regularisation.advise import advise

    advise(config, **flags)


VERBS = {
    "advise": Verb(
        advise,
        flags={
            "input": (REQUIRED, "CSV file with a header: columns of numbers and one of labels"),
            "label": ("", "column of labels (default: the last)"),
            "positive": ("", "cell that stands for +1 (default: labels are numbers)"),
            "columns": ("", "columns of inputs, with commas between (default: all others)"),
            "lam": (None, "coefficient of the Jacobian penalty (default: the config's)"),
            "rows": ("128", "most rows used, drawn at random; the time grows with their cube"),
            "output": ("", "JSON file to write the advice to (default: none)"),
        },
        help="say what a Jacobian penalty will do on a CSV file: rank, depth, width, time scales",
        needs_run=False,
    ),
}

if __name__ == "__main__":
    cli(main, verbs=VERBS)
