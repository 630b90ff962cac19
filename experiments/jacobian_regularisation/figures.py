"""The figures of a run, readable in grey: which study draws which."""

from collections.abc import Callable
from typing import Any

from experiments.jacobian_regularisation import limit_figures, network_figures

# Each returns name -> (function that draws, caption).
DRAWN: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "kernel_init": network_figures.of_kernel_init,
    "constancy": network_figures.of_constancy,
    "dynamics": network_figures.of_dynamics,
    "spectrum": limit_figures.of_spectrum,
    "features": limit_figures.of_features,
    "regression": limit_figures.of_regression,
}


def draw(config: Any, run: Any, study: str, found: Any) -> None:
    """Draws the figures of one study."""
    if not found:
        return
    for name, (make, caption) in DRAWN[study](config, found).items():
        run.figure(name, make, caption)
