"""Leddam (ICML 2024): forecasting with a learnable decomposition and dual attention."""

from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.decomposition import LearnableDecomposition
from rflib.methods.leddam.losses import mae, mse
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.theory import parameter_count, training_flops

__all__ = [
    "DLinear",
    "ITransformer",
    "LearnableDecomposition",
    "Leddam",
    "mae",
    "mse",
    "parameter_count",
    "training_flops",
]
