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
from rflib.run.verbs import Verb

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
    from experiments.jacobian_regularisation.checks import check_config, check_rows
    from experiments.jacobian_regularisation.data import labelled

    on_rows = {
        "constancy": constancy,
        "dynamics": dynamics,
        "spectrum": spectrum,
        "features": features,
        "regression": regression,
    }
    studies: dict[str, Any] = {"kernel_init": kernel_init, **on_rows}
    chosen = {name: choose("config.exp", name, studies) for name in distinct("exp", config.exp)}
    check_config(config)
    raw = ()
    if chosen.keys() & on_rows.keys():
        raw = (labelled(config, run),)
        check_rows(config, raw[0])
    found = {}
    for name, study in chosen.items():
        found[name] = study.run_study(config, run, *(raw if name in on_rows else ()))
        figures.draw(config, run, name, found[name])
    claims.state(config, run, found)


def advise(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.jacobian_regularisation.advise import advise

    advise(**flags)


VERBS = {
    "advise": Verb(
        advise,
        words={"csv": "a file with a header: columns of numbers, and one of labels"},
        flags={
            "label": ("", "column of labels (the last if empty)"),
            "positive": ("", "cell that stands for +1 (labels are numbers if empty)"),
            "columns": ("", "columns of inputs, with commas between (all others if empty)"),
            "lam": ("0.01", "coefficient of the Jacobian penalty, > 0"),
            "kappa": ("0.1", "output multiplier of the network, > 0: times go with its square"),
            "lr": ("1", "step of gradient descent, in which times are told"),
            "rows": ("128", "most rows used, drawn at random; the time grows with their cube"),
            "seed": ("0", "of that draw, and of the networks whose width is judged"),
            "output": ("", "JSON file to write the advice to (none if empty)"),
        },
        help="say what a Jacobian penalty will do on a CSV file: rank, depth, width, time scales",
        needs_run=False,
    ),
}

if __name__ == "__main__":
    cli(main, verbs=VERBS)
