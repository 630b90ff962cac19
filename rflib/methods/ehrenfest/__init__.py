"""Ehrenfest processes: diffusion models whose states really are discrete (ICML 2024).

Winkler, Richter and Opper, "Bridging discrete and continuous state spaces: Exploring the Ehrenfest
process in time-continuous diffusion models".
"""

from rflib.methods.ehrenfest.data import Embedding
from rflib.methods.ehrenfest.losses import LOSSES, find_loss
from rflib.methods.ehrenfest.model import Mlp, ResidualMlp, UNetHeads
from rflib.methods.ehrenfest.process import Process, forward_rates, make_process
from rflib.methods.ehrenfest.reverse import HEADS, clean_estimate, rate_function
from rflib.methods.ehrenfest.samplers import Clamp, Corrector, ancestral, reverse_ou, sample
from rflib.methods.ehrenfest.transfer import transferred

__all__ = [
    "HEADS",
    "LOSSES",
    "Clamp",
    "Corrector",
    "Embedding",
    "Mlp",
    "Process",
    "ResidualMlp",
    "UNetHeads",
    "ancestral",
    "clean_estimate",
    "find_loss",
    "forward_rates",
    "make_process",
    "rate_function",
    "reverse_ou",
    "sample",
    "transferred",
]
