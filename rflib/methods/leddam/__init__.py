"""Leddam (ICML 2024): forecasting with a learnable decomposition and dual attention."""

from rflib.methods.leddam.ablations import ABLATIONS
from rflib.methods.leddam.baselines import DLinear, ITransformer
from rflib.methods.leddam.decomposition import LearnableDecomposition, kernel_mask
from rflib.methods.leddam.export import export_arrays
from rflib.methods.leddam.losses import mae, mse
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.plugin import PlugIn
from rflib.methods.leddam.quantile_head import QuantileHead
from rflib.methods.leddam.similarity import dtw_similarity, spectral_similarity
from rflib.methods.leddam.theory import parameter_count, training_flops

__all__ = [
    "ABLATIONS",
    "DLinear",
    "ITransformer",
    "LearnableDecomposition",
    "Leddam",
    "PlugIn",
    "QuantileHead",
    "dtw_similarity",
    "export_arrays",
    "kernel_mask",
    "mae",
    "mse",
    "parameter_count",
    "spectral_similarity",
    "training_flops",
]
