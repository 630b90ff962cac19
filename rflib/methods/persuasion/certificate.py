"""Is a profile stable? What each sender gains by deviating, near its policy and at all.

Every number says how it was found: "exact-local" and "exact-global" by linear programs that cover
all deviations, "upper bound" where the sender may have too few signals to reach it, "sampled" by
trying deviations (a lower bound), "unverified" where a cap stopped the search. Each comes with the
deviation that realises it, to be replayed. Gains are suprema: the sender breaks the receiver's
ties. Under the rule in use the same deviation may fall off the cliff, so what it attains is given
beside it, by a policy that leaves the receiver a margin where that is better.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from rflib.core.checks import distinct, in_range, one_of
from rflib.methods.persuasion import best_response as exact
from rflib.methods.persuasion.game import (
    Game,
    Profile,
    check_profile,
    joint,
    outcome,
    relative,
    spans,
)
from rflib.methods.persuasion.generators import random_profile
from rflib.methods.persuasion.local_response import (
    LocalResponse,
    local_best_response,
    local_best_response_lines,
    with_margin,
)
from rflib.methods.persuasion.sampled import NORMS, Sampled, sampled_gain

DELTAS = (0.01, 0.05, 0.2)
RATIOS = (0.01, 0.05, 0.1, 0.5)
MARGIN = 1e-5  # of the receiver, in units of max u - min u, where ties are not the sender's
SETTLED = 1e-9  # a gain of less, in spans, is rounding


class Gain(NamedTuple):
    """What one sender gains by deviating.

    gain: in utility, its ties broken for the sender unless sampled; NaN if unverified. relative: in
    spans. kind: see the module. policy: the deviation [W, S_j], None if there is none. attained:
    what it gains under the rule in use. message: why unverified.
    """

    sender: int
    gain: float
    relative: float
    kind: str
    policy: np.ndarray | None
    attained: float
    message: str = ""


class Certificate(NamedTuple):
    """All that is known about a profile's stability.

    utilities [n], receiver, actions [S], margins [S]: as in `Outcome`; probabilities [S]: of joint
    signals. cliff: the smallest margin of a joint signal that is sent.
    deltas, ratios: of the grid. local: gains [delta][sender]. best: gains by any deviation
    [sender]. passes [delta, ratio]: no sender gains more than ratio * delta of its span.
    gap: the largest gain in `best`, in utility; NaN if unverified. equilibrium: whether that is
    below 1e-9 spans, None if unverified.
    kind: "exact-global" if all of `best` is; else that of `local`, "exact-local" or "sampled".
    """

    tie: str
    norm: str
    utilities: np.ndarray
    spans: np.ndarray
    receiver: float
    actions: np.ndarray
    probabilities: np.ndarray
    margins: np.ndarray
    cliff: float
    deltas: tuple[float, ...]
    ratios: tuple[float, ...]
    local: tuple[tuple[Gain, ...], ...]
    best: tuple[Gain, ...]
    passes: np.ndarray
    gap: float
    equilibrium: bool | None
    kind: str


class _Judge(NamedTuple):
    """A profile and the rule under which it and its deviations are judged."""

    game: Game
    profile: list[np.ndarray]
    utilities: np.ndarray
    spans: np.ndarray
    tie: str

    def attains(self, sender: int, policy: np.ndarray) -> float:
        profile = [policy if k == sender else each for k, each in enumerate(self.profile)]
        value = outcome(self.game, profile, self.tie).utilities[sender]
        return float(value - self.utilities[sender])

    def result(
        self,
        sender: int,
        value: float,
        policies: Sequence[np.ndarray | None],
        kind: str,
        message: str = "",
    ) -> Gain:
        """The Gain of a value, with the one of `policies` that attains most."""
        gain = float(value - self.utilities[sender])
        share = float(relative(np.array([gain]), self.spans[sender : sender + 1])[0])
        tried = [(self.attains(sender, p), p) for p in policies if p is not None]
        attained, policy = max(tried, key=lambda pair: pair[0], default=(math.nan, None))
        return Gain(sender, gain, share, kind, policy, attained, message)

    def falls(self, sender: int, value: float, policy: np.ndarray) -> bool:
        """Whether a policy needs ties in its favour to reach its value."""
        short = value - self.utilities[sender] - self.attains(sender, policy)
        return bool(short > 1e-6 * max(float(self.spans[sender]), 1e-300))


def _steadied(judge: _Judge, sender: int, delta: float, found: LocalResponse) -> Gain:
    """The Gain of an exact response; its policy leaves the ties alone that it cannot count on."""
    policies = [found.policy]
    if found.policy is not None and judge.falls(sender, found.value, found.policy):
        margin = MARGIN * float(np.ptp(judge.game.u))
        policies.append(with_margin(judge.game, judge.profile, sender, delta, found.policy, margin))
    return judge.result(sender, found.value, policies, found.kind, found.message)


def _near(judge: _Judge, sender: int, delta: float, cap: int) -> Gain:
    found = local_best_response(judge.game, judge.profile, sender, delta, cap=cap)
    if found.policy is not None:
        found = found._replace(kind="exact-local")
    return _steadied(judge, sender, delta, found)


def _anywhere(judge: _Judge, sender: int, reach_cap: int, global_cap: int) -> Gain:
    game, profile = judge.game, judge.profile
    found = exact.best_response(game, profile, sender, cap=global_cap)
    policy, value, kind = found.policy, found.value, "exact-global"
    if policy is None:
        return judge.result(sender, value, [], "unverified", found.message)
    if found.kind == "upper bound":
        near = local_best_response(game, profile, sender, 1.0, cap=reach_cap)
        if near.policy is None:
            return judge.result(sender, value, [], "upper bound", near.message)
        policy, value = near.policy, near.value
    else:
        policy = exact.padded(game, sender, policy)
    return _steadied(judge, sender, 1.0, LocalResponse(value, policy, kind, found.programs))


def certify(
    game: Game,
    profile: Profile,
    *,
    deltas: Sequence[float] = DELTAS,
    ratios: Sequence[float] = RATIOS,
    tie: str = "index",
    norm: str = "inf",
    deviations: int = 1000,
    seed: int = 0,
    local_cap: int = 5000,
    global_cap: int = 5000,
    reach_cap: int = 1000,
    sampler: Callable[..., Sampled] = sampled_gain,
) -> Certificate:
    """Certifies one profile ([W, S_j] each).

    deltas: radii of neighbourhoods, in (0, 1]. ratios: epsilon / delta in spans, in (0, 1e6].
    tie: the receiver's rule. norm: of the neighbourhoods, "inf" or "l2" (of the whole policy of
    a sender); exact local gains are for "inf", so that "l2" is sampled. deviations, seed: of the
    sampling verifier, which is asked where an exact one is not available, and by itself if
    local_cap is 0. local_cap: most linear programs of an exact local gain. global_cap: most action
    profiles of a global one. reach_cap: most linear programs for the global gain of a sender with
    fewer signals than its unlimited best response uses; above it that response's value is an
    "upper bound".
    sampler: as `sampled_gain`.

    Raises:
        UserError: not a profile of the game, an unknown rule or norm, a value out of range.
    """
    profile = check_profile(game, profile)
    one_of("norm", norm, NORMS)
    for name, values in (("deltas", deltas), ("ratios", ratios)):
        for value in distinct(name, values):
            in_range(name, value, 0, 1 if name == "deltas" else 1e6, open_low=True)
    found = outcome(game, profile, tie)
    judge = _Judge(game, profile, found.utilities, spans(game), tie)

    def local(sender: int, delta: float) -> Gain:
        exactly = norm == "inf" and local_cap > 0
        gain = _near(judge, sender, delta, local_cap) if exactly else None
        if gain is not None and gain.kind != "unverified":
            return gain
        tried = sampler(
            game, profile, sender, delta, deviations=deviations, seed=seed, tie=tie, norm=norm
        )
        value, why = found.utilities[sender] + tried.gain, "" if gain is None else gain.message
        return judge.result(sender, value, [tried.policy], "sampled", why)

    senders = range(game.n_senders)
    near = tuple(tuple(local(j, delta) for j in senders) for delta in deltas)
    best = tuple(_anywhere(judge, j, reach_cap, global_cap) for j in senders)
    return _assembled(judge, found, norm, tuple(deltas), tuple(ratios), near, best)


def _assembled(
    judge: _Judge, found: tuple, norm: str, deltas: tuple, ratios: tuple, near: tuple, best: tuple
) -> Certificate:
    utilities, actions, margins, receiver = found
    probabilities = joint(judge.game, judge.profile).sum(0)
    sent = probabilities > 0
    largest = np.array([[gain.relative for gain in row] for row in near])
    kinds = {gain.kind for gain in best}
    local = {gain.kind for row in near for gain in row}
    kind = "sampled" if "sampled" in local else "exact-local"
    anywhere = np.array([gain.relative for gain in best])
    known = kinds == {"exact-global"}
    equilibrium = bool((anywhere <= SETTLED).all()) if known else None
    if not known and (anywhere <= SETTLED).all():
        equilibrium = True  # not even an upper bound leaves a gain
    return Certificate(
        judge.tie, norm, utilities, judge.spans, float(receiver), actions, probabilities, margins,
        float(margins[sent].min()), deltas, ratios, near, best,
        passing(largest[:, None], deltas, ratios)[0],
        float(max(gain.gain for gain in best)) if not np.isnan(anywhere).any() else math.nan,
        equilibrium, "exact-global" if known else kind,
    )  # fmt: skip


def passing(
    gains: Float[np.ndarray, "deltas batch senders"],
    deltas: Sequence[float],
    ratios: Sequence[float],
) -> Bool[np.ndarray, "batch deltas ratios"]:
    """Whether no sender's gain, in spans, is above ratio * delta."""
    limit = np.multiply.outer(np.asarray(deltas), np.asarray(ratios))
    largest = gains.max(-1).T
    return largest[:, :, None] <= limit


class NullControl(NamedTuple):
    """How often random profiles pass the same test. rates: [deltas, ratios]. count: profiles.
    kind: of the verifier. gains: in spans [deltas, count, senders]."""

    rates: np.ndarray
    count: int
    kind: str
    gains: np.ndarray


def null_control(
    game: Game,
    *,
    count: int = 100,
    deltas: Sequence[float] = DELTAS,
    ratios: Sequence[float] = RATIOS,
    tie: str = "index",
    norm: str = "inf",
    seed: int = 0,
    cap: int = 5000,
    deviations: int = 1000,
) -> NullControl:
    """The local test on profiles with Dirichlet(1) rows: where these pass, passing says little.

    Exact; sampled where `cap` is exceeded and in the norm l2. With two states and two signals in
    closed form, fast.
    """
    profiles = random_profile(game, np.random.default_rng(seed), count)
    utilities, span = outcome(game, profiles, tie).utilities, spans(game)
    gains, kinds = np.empty((len(deltas), count, game.n_senders)), set()
    exactly = norm == "inf" and cap > 0

    def one(k: int, j: int, delta: float) -> tuple[float, str]:
        profile = [policy[k] for policy in profiles]
        if exactly:
            found = local_best_response(game, profile, j, delta, cap=cap)
            if found.policy is not None:
                return found.value - utilities[k, j], "exact-local"
        sampled = sampled_gain(
            game, profile, j, delta, deviations=deviations, seed=seed, tie=tie, norm=norm
        )
        return sampled.gain, "sampled"

    for d, delta in enumerate(deltas):
        for j in range(game.n_senders):
            if exactly and game.n_states == 2 and game.signals[j] == 2:
                values = local_best_response_lines(game, profiles, j, delta)[0]
                gains[d, :, j] = values - utilities[:, j]
                continue
            for k in range(count):
                gains[d, k, j], kind = one(k, j, delta)
                kinds.add(kind)
    kind = "sampled" if "sampled" in kinds else "exact-local"
    gains = relative(gains, span)
    return NullControl(passing(gains, deltas, ratios).mean(0), count, kind, gains)


def as_record(certificate: Certificate) -> dict[str, Any]:
    """The certificate under its names, nested, for JSON; NaN where unverified."""

    def named(gains: Sequence[Gain]) -> list[dict[str, Any]]:
        return [gain._asdict() for gain in gains]

    local = {
        str(d): named(row) for d, row in zip(certificate.deltas, certificate.local, strict=True)
    }
    return {**certificate._asdict(), "local": local, "best": named(certificate.best)}
