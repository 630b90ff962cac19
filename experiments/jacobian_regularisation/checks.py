"""The config against the studies, before the first of them: a mistake is dear an hour later.

Only the sections of the chosen studies are looked at, so that a key without effect can still be
reported as one.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rflib.core.checks import distinct, in_range, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.jacobian_ntk.data import STATISTICS, Labelled
from rflib.methods.jacobian_ntk.dynamics import REDUCTIONS
from rflib.methods.jacobian_ntk.network import Mlp, check

TRAINED = {"constancy", "dynamics"}
TESTED = {"dynamics", "features", "regression"}  # need test rows
GROUPS = 10  # of networks, over which the error of a kurtosis is taken


def check_config(config: Any) -> None:
    """Raises a UserError that names the first key whose value no study can use."""
    chosen = set(config.exp)
    positive_int("config.seed", config.seed, zero=True)
    if chosen - {"kernel_init"}:
        one_of("config.data.standardise", config.data.standardise, STATISTICS)
        positive_int("config.data.split", config.data.split, zero=True)
    if chosen & (TRAINED | {"kernel_init"}):
        _net("config.model", config.model.activation, config.model.depth)
        _bounds("config.expect.slope", config.expect.slope)
    if chosen & TRAINED:
        _training(config)
    if "kernel_init" in chosen:
        _kernel_init(config.kernel_init)
    for name in chosen & TRAINED:
        section = config[name]
        _widths(f"config.{name}.widths", section.widths)
        _counts(f"config.{name}", section, ("rows", "repeats"))
    if "dynamics" in chosen:
        _counts("config.dynamics", config.dynamics, ("test_rows",))
        positive_int("config.dynamics.linearised", config.dynamics.linearised, zero=True)
    if "spectrum" in chosen:
        _spectrum(config.spectrum)
    if "features" in chosen:
        _features(config.features)
    if "regression" in chosen:
        _regression(config.regression)


def check_rows(config: Any, raw: Labelled) -> None:
    """Raises a UserError if the rows are too few to train and to test on."""
    if set(config.exp) & TESTED and len(raw.x) < 3:
        raise UserError(
            f"{raw.origin} has {len(raw.x)} rows: the studies {', '.join(sorted(TESTED))} need 3, "
            "of which one is a test row"
        )


def _net(name: str, activation: Any, depth: Any) -> None:
    try:
        net = check(Mlp(depth, activation))
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if not net.phi.smooth:
        raise UserError(
            f"{name}: activation={activation!r} has no Jacobian kernel: E[φ''(u) φ''(u')] is "
            "infinite at u = u'"
        )


def _counts(name: str, section: Any, keys: Iterable[str]) -> None:
    for key in keys:
        positive_int(f"{name}.{key}", section[key])


def _number(name: str, value: Any, *, above: bool = False) -> None:
    """A finite number >= 0, or > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name}={value!r} must be a number")
    in_range(name, value, 0, math.inf, open_low=above, open_high=True)


def _numbers(name: str, values: Iterable[Any], *, above: bool = False) -> None:
    for value in distinct(name, values):
        _number(name, value, above=above)


def _ascending(name: str, values: Sequence[Any], least: int = 1) -> None:
    found = [positive_int(name, value) for value in values]
    if len(found) < least or any(b <= a for a, b in itertools.pairwise(found)):
        raise UserError(f"{name}={tuple(values)!r} must be {least} or more, ascending")


def _widths(name: str, values: Sequence[Any]) -> None:
    _ascending(name, values, 2)  # a slope takes two


def _bounds(name: str, bounds: Sequence[Any]) -> None:
    if len(bounds) != 2 or not bounds[0] <= bounds[1]:
        raise UserError(f"{name}={tuple(bounds)!r} must be the lower and the upper bound")


def _training(config: Any) -> None:
    _number("config.model.kappa", config.model.kappa, above=True)
    _number("config.optim.lr", config.optim.lr, above=True)
    _number("config.optim.lam", config.optim.lam)
    one_of("config.optim.reduction", config.optim.reduction, REDUCTIONS)
    positive_int("config.optim.vectorise", config.optim.vectorise, zero=True)
    positive_int("config.steps", config.steps)
    positive_int("config.log.every", config.log.every)
    positive_int("config.checkpoint.every", config.checkpoint.every, zero=True)


def _kernel_init(c: Any) -> None:
    _widths("config.kernel_init.widths", c.widths)
    _ascending("config.kernel_init.depths", c.depths)
    _ascending("config.kernel_init.draw_widths", c.draw_widths)
    _counts("config.kernel_init", c, ("points", "repeats", "resamples", "check_points"))
    in_range("config.kernel_init.draws", positive_int("draws", c.draws), GROUPS)


def _spectrum(c: Any) -> None:
    _ascending("config.spectrum.depths", c.depths)
    for activation in distinct("config.spectrum.activations", c.activations):
        _net("config.spectrum.activations", activation, 1)
    positive_int("config.spectrum.rows", c.rows)
    positive_int("config.spectrum.sphere", c.sphere, zero=True)
    if positive_int("config.spectrum.sampled_rows", c.sampled_rows, zero=True):
        _ascending("config.spectrum.sampled_depths", c.sampled_depths)
        _counts("config.spectrum", c, ("joint", "pairs", "sampled_repeats"))


def _features(c: Any) -> None:
    for pair in c.nets:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise UserError(f"config.features.nets: {pair!r} must be (activation, depth)")
    for activation, depth in distinct("config.features.nets", map(tuple, c.nets)):
        _net("config.features.nets", activation, depth)
    _numbers("config.features.lams", c.lams)
    one_of("config.features.attack_lam", c.attack_lam, [lam for lam in c.lams if lam])
    for split in distinct("config.features.splits", c.splits):
        positive_int("config.features.splits", split, zero=True)
    _counts("config.features", c, ("rows", "attack_steps"))
    positive_int("config.features.attacked", c.attacked, zero=True)
    _number("config.features.eps", c.eps)
    in_range("config.features.tol", c.tol, 0, 1, open_low=True, open_high=True)


def _regression(c: Any) -> None:
    _net("config.regression", c.activation, c.depth)
    positive_int("config.regression.rows", c.rows)
    _numbers("config.regression.lams", c.lams)
    _numbers("config.regression.times", c.times)
    _numbers("config.regression.eps", c.eps)
    _numbers("config.regression.ridges", c.ridges, above=True)
