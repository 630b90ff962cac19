"""The verbs of persuasion; what they need is imported when they run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rflib.run.verbs import Verb


def _certify(config: Any, workdir: Path, flags: Mapping[str, str | None]) -> None:
    from experiments.persuading.certify import certify

    given: Any = {name: value for name, value in flags.items() if value is not None}
    certify(**given)


CERTIFY = Verb(
    _certify,
    words={
        "game": ".npz or .json file: mu [W], u [W, A], v [n, W, A], S [n]",
        "policies": ".npz or .json file: pi_0 [W, S_0], pi_1, ... of every sender",
    },
    flags={
        "tie": ("sum", "receiver's choice: index | sum | sender:J | adversarial:J | uniform"),
        "deltas": ("0.01,0.05,0.2", "radii of the neighbourhoods, in (0, 1]"),
        "ratios": ("0.01,0.05,0.1,0.5", "tolerances epsilon / delta, in units of a sender's span"),
        "norm": ("inf", "of a neighbourhood: inf, or l2 (by sampling)"),
        "deviations": ("1000", "sampled deviations a sender, where exact programs do not reach"),
        "exact_cap": ("5000", "most linear programs of an exact local gain; 0: sample"),
        "global_cap": ("5000", "most action profiles of an exact global gain"),
        "null": (None, "random profiles put to the same test (default: 200, or 10 where slow)"),
        "seed": ("0", "of sampled deviations and random profiles, >= 0"),
        "output": (None, "JSON file to write: everything, with the deviations"),
    },
    help="say whether a profile is an equilibrium, near its policies and at all; trains nothing",
    needs_run=False,
)
"""`python -m experiments.persuasion certify game.npz policies.npz`"""
