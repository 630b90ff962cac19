"""A trained Leddam or DLinear as plain arrays, which `numpy_forecast` turns into forecasts."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from rflib.core import trees
from rflib.core.errors import UserError
from rflib.methods.leddam.ablations import TOKEN_LENGTHS
from rflib.methods.leddam.baselines import DLinear
from rflib.methods.leddam.model import Leddam
from rflib.methods.leddam.numpy_forecast import FORMAT
from rflib.methods.leddam.quantile_head import LEAST_SCALE, QuantileHead

Variables = dict[str, Any]
# Parts that are exported as what they come to: reparametrised, mixed, or summed with a table.
_RESOLVED = ("embedding", "decomposition")


def export_arrays(
    module: nn.Module,
    variables: Variables,
    *,
    mean: Float[np.ndarray, " series"] | None = None,
    scale: Float[np.ndarray, " series"] | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Everything that `numpy_forecast(arrays, x)` needs, for `numpy.savez`; float32 weights.

    module: `Leddam` (any ablation and option) or `DLinear`, as such or in a `QuantileHead`.
    variables: its {"params", "extra"}. mean, scale: of the standardisation that the model was
    trained behind; 0 and 1, so that forecasts are on the standardised scale. columns: the names of
    the series; "0", "1", ...

    Raises:
        UserError: another module.
    """
    arrays: dict[str, np.ndarray] = {}
    if isinstance(module, QuantileHead):
        params = variables["params"]
        arrays["quantiles/levels"] = np.asarray(module.levels)
        arrays["quantiles/floor"] = np.asarray(LEAST_SCALE)
        for name in ("weight", "bias"):
            if name in params:
                arrays[f"quantiles/{name}"] = np.asarray(params[name], np.float32)
        inside = {name: tree["forecaster"] for name, tree in variables["extra"].items()}
        module, variables = module.forecaster, {"params": params["forecaster"], "extra": inside}
    if not isinstance(module, Leddam | DLinear):
        raise UserError(
            f"{type(module).__name__} cannot be exported to NumPy; Leddam and DLinear can"
        )
    size = module.n_series
    return arrays | {
        "model": np.asarray(json.dumps({"format": FORMAT, **_description(module)})),
        "columns": np.asarray(list(map(str, range(size) if columns is None else columns))),
        "mean": np.zeros(size) if mean is None else np.asarray(mean, np.float64),
        "scale": np.ones(size) if scale is None else np.asarray(scale, np.float64),
        **_weights(module, jax.tree.map(jnp.asarray, variables)),
    }


def _description(module: Leddam | DLinear) -> dict[str, Any]:
    sizes = {name: getattr(module, name) for name in ("n_series", "seq_len", "pred_len")}
    if isinstance(module, DLinear):
        return {"kind": "dlinear", **sizes}
    arm = module.arm
    return {
        "kind": "leddam",
        **sizes,
        "main": arm.main,
        "intra": arm.intra,
        "auto": arm.intra == "auto",
        "channel": arm.channel,
        "token_length": TOKEN_LENGTHS.get(arm.intra, 0),
        "n_layers": module.n_layers,
        "period": module.period,
        "positions": module.positions,
        "decompose_on": module.decompose_on,
        "instance_norm": module.instance_norm and arm.instance_norm,
    }


def _weights(module: Leddam | DLinear, variables: Variables) -> dict[str, np.ndarray]:
    """Parameters and running averages by name; embedding and kernel as they are applied."""
    found = {
        name: np.asarray(leaf, np.float32)
        for tree in (variables["params"], variables["extra"].get("batch_stats", {}))
        for name, leaf in trees.named_leaves(tree).items()
        if name.split("/")[0] not in _RESOLVED
    }

    def resolve(bound: Any) -> dict[str, Any]:
        if isinstance(bound, DLinear):
            return {}
        parts = {
            "embedding/weight": bound.embedding.weight,
            "embedding/rows": bound.embedding.rows,
        }
        if bound.arm.main:
            parts["decomposition/kernel"] = bound.decomposition.kernel
            parts["decomposition/bias"] = bound.decomposition.bias
        return parts

    collections = {"params": variables["params"], **variables["extra"]}
    found |= nn.apply(resolve, module)(collections)
    if isinstance(module, DLinear):
        place = variables["params"].get("decomposition")
        place = variables["extra"]["frozen"]["decomposition"] if place is None else place
        found |= {f"decomposition/{name}": place[name] for name in ("kernel", "bias")}
    return {name: np.asarray(leaf, np.float32) for name, leaf in found.items()}
