"""The config against the games, before anything is trained: hours later a mistake is dear.

Only the sections that the run's parts read are looked at, so that a key without effect can still
be reported as one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.persuading import networks, searching
from experiments.persuading.games import SizeClass
from rflib.core.checks import distinct, in_range, multiple_of, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion import sampling
from rflib.methods.persuasion.game import check_tie
from rflib.methods.persuasion.search import PARAMETRISATIONS
from rflib.run.seeds import seeds

PARTS = ("surfaces", "approx", "equilibria", "ground_truth", "hardness", "optimiser")
JUDGED = {"equilibria", "optimiser"}  # parts that search in the config's games
SEARCHED = JUDGED | {"ground_truth"}
TRAINED = SEARCHED | {"surfaces", "approx"}


def check(config: Any, classes: Sequence[SizeClass], truth: SizeClass) -> None:
    """Raises a UserError that names the first key whose value cannot be played."""
    parts = set(distinct("config.parts", config.parts))
    for part in config.parts:
        one_of("config.parts", part, PARTS)
    distinct("classes of games", [size.name for size in (*classes, truth)])
    used = [*(classes if parts & (TRAINED - {"ground_truth"}) else ())]
    used += [truth] if "ground_truth" in parts else []
    for size in used:
        check_tie(config.tie, size.games[0].n_senders)
    if "hardness" in parts:
        _hardness(config.hardness)
    if parts & TRAINED:
        _training(config, parts, used)
    if parts & SEARCHED:
        _search(config)
        _snap(config)
        _verify(config.verify)
    if parts & JUDGED:
        _judged(config)
    if "ground_truth" in parts and positive_int("config.refine.rounds", config.refine.rounds,
                                                zero=True):  # fmt: skip
        positive_int("config.refine.profiles", config.refine.profiles)
        in_range("config.refine.delta", config.refine.delta, 0, 1)


def _training(config: Any, parts: set[str], classes: Sequence[SizeClass]) -> None:
    seeds(config)
    in_range("config.data.validation", config.data.validation, 0, 1, open_high=True)
    share = sampling.shares(networks.mixture(config))
    count = positive_int("config.data.profiles", config.data.profiles)
    each = np.array(sampling.counts(count, share))
    held = int(np.round(config.data.validation * each).sum())
    if config.data.validation and not held:
        raise UserError(
            f"config.data.profiles={count} with config.data.validation={config.data.validation} "
            "leaves no profile to validate on: take more, or 0"
        )
    if positive_int("config.evals.patience", config.evals.patience, zero=True) and not (
        held and positive_int("config.evals.every", config.evals.every, zero=True)
    ):
        raise UserError(
            f"config.evals.patience={config.evals.patience} needs config.evals.every and "
            "config.data.validation above 0: there is nothing to stop on"
        )
    batch = positive_int("config.batch", config.batch)
    if batch > count - held:
        raise UserError(
            f"config.batch={batch} must be at most {count - held}, the profiles that are trained on"
        )
    for name in ("steps", "optim.scan", "log.every"):
        section, _, key = name.rpartition(".")
        positive_int(
            f"config.{name}", getattr(getattr(config, section) if section else config, key)
        )
    in_range("config.optim.lr", config.optim.lr, 0, open_low=True)
    for kind in distinct("config.model.kinds", config.model.kinds):
        for size in classes:
            networks.network(config, kind, size)
    if "approx" in parts:
        positive_int("config.data.test", config.data.test)
        positive_int("config.evals.segments", config.evals.segments)
        positive_int("config.expect.bootstrap", config.expect.bootstrap)


def _search(config: Any) -> None:
    c = config.search
    for name in ("kinds", "baselines", "optimisers"):
        if len(set(getattr(c, name))) < len(getattr(c, name)):
            raise UserError(f"config.search.{name}={getattr(c, name)!r} must hold each name once")
    if not searching.methods(config):
        raise UserError("config.search.kinds and config.search.baselines are both empty")
    one_of("config.search.param", c.param, PARAMETRISATIONS)
    in_range("config.search.eta", c.eta, 0, open_low=True)
    positive_int("config.search.starts", c.starts)
    positive_int("config.search.steps", c.steps)
    multiple_of("config.search.steps", c.steps, "iterates kept", min(searching.KEPT, c.steps))
    used = set(c.optimisers) if c.kinds else set()
    for kind in sorted(used | {"extragradient"}):
        searching.search(config, kind)
    if "iterated" in c.baselines:
        positive_int("config.search.rounds", c.rounds)
        positive_int("config.search.iterated_starts", c.iterated_starts)


def _snap(config: Any) -> None:
    in_range("config.snap.delta", config.snap.delta, 0, 1)
    in_range("config.snap.kappa", config.snap.kappa, 0)
    positive_int("config.snap.rounds", config.snap.rounds)
    if "ground_truth" in config.parts:
        positive_int("config.snap.starts", config.snap.starts)


def _verify(v: Any) -> None:
    for delta in distinct("config.verify.deltas", v.deltas):
        in_range("config.verify.deltas", delta, 0, 1, open_low=True)
    for ratio in distinct("config.verify.ratios", v.ratios):
        in_range("config.verify.ratios", ratio, 0, open_low=True)
    in_range("config.verify.deviations", positive_int("deviations", v.deviations), 4)
    positive_int("config.verify.shortlist", v.shortlist)
    positive_int("config.verify.global_cap", v.global_cap)
    for name in ("exact_cap", "reach_cap"):
        positive_int(f"config.verify.{name}", getattr(v, name), zero=True)


def _judged(config: Any) -> None:
    distinct("config.search.kinds", config.search.kinds)  # the first is what is reported on
    one_of("config.verify.delta", config.verify.delta, config.verify.deltas)
    one_of("config.verify.ratio", config.verify.ratio, config.verify.ratios)
    for name in ("top", "null"):
        positive_int(f"config.verify.{name}", getattr(config.verify, name))
    for name in ("tau", "tau_prime"):
        in_range(f"config.pareto.{name}", getattr(config.pareto, name), 0)
    positive_int("config.expect.bootstrap", config.expect.bootstrap)


def _hardness(h: Any) -> None:
    for pair in h.games:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise UserError(f"config.hardness.games: {pair!r} must be (states, actions)")
    for pair in distinct("config.hardness.games", map(tuple, h.games)):
        for count in pair:
            positive_int("config.hardness.games", count)
    in_range("config.hardness.signals", positive_int("signals", h.signals), 2)
    positive_int("config.hardness.repeats", h.repeats)
    positive_int("config.hardness.budget", h.budget)
