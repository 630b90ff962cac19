"""Jacobian NTK (ICML 2024): Jacobian-regularised training of infinitely wide networks."""

from rflib.methods.jacobian_ntk.advisor import advise
from rflib.methods.jacobian_ntk.duals import ACTIVATIONS, Activation, Dual, dual, from_function
from rflib.methods.jacobian_ntk.dynamics import (
    decompose,
    kernel_regression,
    make_targets,
    predict,
    residuals,
    robust_loss,
)
from rflib.methods.jacobian_ntk.empirical import (
    empirical_jnngp,
    empirical_jntk,
    empirical_matvec,
    leibniz,
)
from rflib.methods.jacobian_ntk.features import eigen_features
from rflib.methods.jacobian_ntk.kernels import (
    flatten,
    gram,
    jacobian_nngp,
    jacobian_ntk,
    nngp,
    ntk,
    pairs,
    sweep,
)
from rflib.methods.jacobian_ntk.monte_carlo import monte_carlo
from rflib.methods.jacobian_ntk.network import Mlp
from rflib.methods.jacobian_ntk.products import jntk_matvec, largest_eigenvalue, solve
from rflib.methods.jacobian_ntk.spectra import extremes

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Dual",
    "Mlp",
    "advise",
    "decompose",
    "dual",
    "eigen_features",
    "empirical_jnngp",
    "empirical_jntk",
    "empirical_matvec",
    "extremes",
    "flatten",
    "from_function",
    "gram",
    "jacobian_nngp",
    "jacobian_ntk",
    "jntk_matvec",
    "kernel_regression",
    "largest_eigenvalue",
    "leibniz",
    "make_targets",
    "monte_carlo",
    "nngp",
    "ntk",
    "pairs",
    "predict",
    "residuals",
    "robust_loss",
    "solve",
    "sweep",
]
