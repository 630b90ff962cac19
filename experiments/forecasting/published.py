"""What of a config makes a training run the published one, so that its errors may be judged."""

from collections.abc import Sequence
from typing import Any

from rflib.run import load_config
from rflib.run.record import flat

SHARED = (
    *("optim.loss", "optim.b1", "optim.b2", "optim.eps", "optim.compute_dtype"),
    *("optim.ld_lr_mult", "model.quantiles", "data.shuffle"),
)
# Another evaluation of the same function.
FREE = ("model.leddam.form", "model.leddam.remat")
PATIENCE = 3  # epochs; the authors wait 6, which costs more and was not seen to change a result


def departures(config: Any, names: Sequence[str]) -> list[str]:
    """Keys in which the training of the models `names` differs from the published settings."""
    usual, here = flat(load_config("leddam")), flat(config)
    sections = tuple(f"{part}.{name}" for part in ("model", "batch", "optim") for name in names)
    if "leddam" in names:
        sections += ("model.published",)
    decisive = [
        key
        for key in usual
        if key not in FREE
        and (key in SHARED or any(key == s or key.startswith(f"{s}.") for s in sections))
    ]
    changed = [key for key in decisive if here.get(key) != usual[key]]
    return changed + ["optim.patience"] * (config.optim.patience < PATIENCE)
