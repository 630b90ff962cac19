"""The game of several senders and one receiver, exactly, in NumPy and float64.

Hossain et al., "Multi-Sender Persuasion: A Computational Perspective" (ICML 2024). A state w is
drawn from the prior mu and seen by n senders, who send signals s_j independently with probability
pi_j(s_j | w). One receiver sees the joint signal s = (s_1, ..., s_n) and takes the action that is
best for it:

    p(w, s) = mu(w) prod_j pi_j(s_j | w)          unnormalised posterior
    a*(s) in argmax_a sum_w p(w, s) u(w, a)
    U_j(pi) = sum_s sum_w p(w, s) v_j(w, a*(s))   ex-ante utility of sender j

Signals of probability zero add nothing, and nothing is divided by a probability. A profile is one
array [*lead, W, S_j] for each sender, rows (states) on the simplex; leading axes are a batch.
`oracle` is the same game as a compiled function, for learning.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rflib.core.checks import positive_int
from rflib.core.errors import UserError

Profile = Sequence[np.ndarray]
TOLERANCE = 1e-9
TIES = ("index", "sum", "sender:j", "adversarial:j", "uniform")


class Game(NamedTuple):
    """A game; `make_game` checks its arrays. Utilities are in any unit, each sender in its own.

    mu: prior [W], positive, sums to 1. u: receiver's utility [W, A]. v: senders' [n, W, A].
    signals: number of signals S_j of each sender. seed: of its generator, or None.
    """

    mu: np.ndarray
    u: np.ndarray
    v: np.ndarray
    signals: tuple[int, ...]
    name: str = ""
    seed: int | None = None

    @property
    def n_senders(self) -> int:
        return self.v.shape[0]

    @property
    def n_states(self) -> int:
        return self.u.shape[0]

    @property
    def n_actions(self) -> int:
        return self.u.shape[1]


class Outcome(NamedTuple):
    """What happens under a profile. Joint signals S = prod_j S_j: the last sender's runs fastest.

    utilities: U_j [*lead, n]. actions: a*(s) [*lead, S], for ties "uniform" the lowest of the tied.
    margins: best less second best expected score [*lead, S], unnormalised (each counts the
    probability of its signal), infinite with one action: how close the profile is to a cliff.
    receiver: sum_s max_a of the receiver's expected score [*lead].
    """

    utilities: np.ndarray
    actions: np.ndarray
    margins: np.ndarray
    receiver: np.ndarray


def _finite(name: str, value: Any, shape: tuple[int, ...], meaning: str) -> np.ndarray:
    try:
        if np.iscomplexobj(value):
            raise TypeError("they are complex")
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must be numbers of shape {meaning}: {error}") from error
    if array.ndim != len(shape) or any(
        size < 1 or want not in (0, size) for size, want in zip(array.shape, shape, strict=True)
    ):
        wanted = ", ".join(str(size) if size else "any" for size in shape)
        raise UserError(f"{name} has shape {array.shape}; {meaning} must be ({wanted})")
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds a value that is not finite")
    return array


def make_game(
    mu: Any, u: Any, v: Any, signals: Any, name: str = "", seed: int | None = None
) -> Game:
    """A checked Game from anything that NumPy can read as arrays.

    Raises:
        UserError: a wrong shape, a value that is not finite, a prior that is not positive or does
            not sum to 1 within 1e-6 (it is rescaled to sum to 1), or a wrong number of signals.
    """
    mu = _finite("mu", mu, (0,), "(states,)")
    if not (mu > 0).all() or abs(mu.sum() - 1) > 1e-6:
        raise UserError(f"mu={mu.tolist()} must be positive and sum to 1; it sums to {mu.sum()}")
    u = _finite("u", u, (len(mu), 0), "(states, actions)")
    v = _finite("v", v, (0, *u.shape), "(senders, states, actions)")
    counts = tuple(positive_int("signals", count) for count in np.atleast_1d(signals).tolist())
    if len(counts) != len(v):
        raise UserError(f"signals={counts} must have one number for each of {len(v)} senders")
    return Game(mu / mu.sum(), u, v, counts, str(name), seed)


def check_profile(game: Game, profile: Sequence[Any]) -> list[np.ndarray]:
    """The profile as float64 arrays [*lead, W, S_j] with rows that sum to 1.

    Raises:
        UserError: naming the policy that has a wrong shape, a negative entry or a row whose sum
            differs from 1 by more than 1e-6.
    """
    if len(profile) != game.n_senders:
        raise UserError(f"{len(profile)} policies for {game.n_senders} senders")
    found = []
    for j, (policy, count) in enumerate(zip(profile, game.signals, strict=True)):
        array = np.asarray(policy, dtype=np.float64)
        if array.shape[-2:] != (game.n_states, count):
            raise UserError(
                f"policy pi_{j} has shape {array.shape}; it must end in "
                f"({game.n_states}, {count}): rows are states, columns signals"
            )
        total = array.sum(-1, keepdims=True)
        if not (array >= -1e-9).all() or not (np.abs(total - 1) <= 1e-6).all():
            row = np.argwhere((array < -1e-9).any(-1) | ~(np.abs(total[..., 0] - 1) <= 1e-6))[0]
            raise UserError(
                f"policy pi_{j}, row {tuple(row.tolist())}: {array[tuple(row)].tolist()} must be "
                "probabilities that sum to 1"
            )
        found.append(array)
        if array.shape[:-2] != found[0].shape[:-2]:
            raise UserError(
                f"policy pi_{j} has leading axes {array.shape[:-2]}, pi_0 {found[0].shape[:-2]}"
            )
    return found


def check_tie(tie: str, n_senders: int) -> tuple[str, int]:
    """(rule, sender) of a rule for ties; the sender is 0 where the rule names none.

    index: the lowest action. sum: the largest sum of the senders' expected utilities, then the
    lowest action. sender:j and adversarial:j: best and worst for sender j (from 0), then the
    lowest action. uniform: the mean over tied actions.

    Raises:
        UserError: none of these, or no such sender.
    """
    rule, _, place = tie.partition(":")
    if rule in ("index", "sum", "uniform") and not place:
        return rule, 0
    if rule in ("sender", "adversarial") and place.isdecimal() and int(place) < n_senders:
        return rule, int(place)
    raise UserError(
        f"tie={tie!r} must be 'index', 'sum', 'uniform', 'sender:j' or 'adversarial:j' "
        f"with a sender j from 0 to {n_senders - 1}"
    )


def joint(game: Game, profile: Profile) -> Float[np.ndarray, "*lead states joint"]:
    """p(w, s) = mu(w) prod_j pi_j(s_j | w), the unnormalised posterior."""
    p = game.mu[:, None]
    for policy in profile:
        p = p[..., :, :, None] * policy[..., :, None, :]
        p = p.reshape(*p.shape[:-2], -1)
    return p


def others(game: Game, profile: Profile, sender: int) -> Float[np.ndarray, "*lead states rest"]:
    """Q(w, t) = mu(w) prod_{k != j} pi_k(t_k | w) over the joint signals t of the others."""
    rest = [policy for k, policy in enumerate(profile) if k != sender]
    lead = profile[sender].shape[:-2]
    if rest:
        return joint(game, rest)
    return np.broadcast_to(game.mu[:, None], (*lead, game.n_states, 1))


def action_weights(
    game: Game,
    p: Float[np.ndarray, "*lead states columns"],
    tie: str = "index",
    tol: float = TOLERANCE,
) -> tuple[Float[np.ndarray, "*lead columns actions"], Float[np.ndarray, "*lead columns actions"]]:
    """(probability of each action, expected score of each action) at each column of p.

    Scores within tol of the best are ties.
    """
    rule, sender = check_tie(tie, game.n_senders)
    columns = np.swapaxes(p, -1, -2)
    scores = columns @ game.u
    tied = scores >= scores.max(-1, keepdims=True) - tol
    if rule == "uniform":
        return tied / tied.sum(-1, keepdims=True), scores
    if rule != "index":
        second = columns @ (game.v.sum(0) if rule == "sum" else game.v[sender])
        second = np.where(tied, -second if rule == "adversarial" else second, -np.inf)
        # With a tolerance here too: otherwise the rounding of two equal sums chose the action.
        tied = second >= second.max(-1, keepdims=True) - tol
    first = tied.argmax(-1)[..., None] == np.arange(game.n_actions)
    return first.astype(np.float64), scores


def outcome(game: Game, profile: Profile, tie: str = "index", tol: float = TOLERANCE) -> Outcome:
    """Utilities, actions, margins and the receiver's value; see `Outcome` and `check_tie`."""
    p = joint(game, profile)
    weights, scores = action_weights(game, p, tie, tol)
    taken = p @ weights  # joint distribution of state and action: all utilities are linear in it
    utilities = np.einsum("...wa,jwa->...j", taken, game.v)
    best = scores.max(-1)
    if game.n_actions == 1:
        margins = np.full(best.shape, np.inf)
    else:
        margins = best - np.partition(scores, -2, axis=-1)[..., -2]
    return Outcome(utilities, (weights > 0).argmax(-1), margins, best.sum(-1))


def spans(game: Game) -> Float[np.ndarray, " senders"]:
    """sum_w mu(w) (max_a v_j(w, a) - min_a v_j(w, a)): the unit of every normalised number."""
    return (game.v.max(-1) - game.v.min(-1)) @ game.mu


def relative(
    values: Float[np.ndarray, "*lead senders"], span: Float[np.ndarray, " senders"]
) -> Float[np.ndarray, "*lead senders"]:
    """values / span, and 0 for a sender whose span is 0: it is indifferent to everything."""
    return np.where(span > 0, values / np.where(span > 0, span, 1.0), 0.0)


def _revealed(game: Game, policy: np.ndarray, tie: str) -> Outcome:
    """One sender plays `policy` whatever its number of signals, the others are silent."""
    silent = [np.ones((game.n_states, 1)) for _ in game.signals[1:]]
    return outcome(game, [policy, *silent], tie)


def full_revelation(game: Game, tie: str = "index") -> Outcome:
    """The outcome when the state is known: U_j = sum_w mu(w) v_j(w, argmax_a u(w, a)).

    Joint signals are the states. It needs no sender with W signals: where nobody has them it is a
    value to compare with, not a profile (see `full_revelation_is_equilibrium`).
    """
    return _revealed(game, np.eye(game.n_states), tie)


def no_information(game: Game, tie: str = "index") -> Outcome:
    """The outcome when all senders are silent; one joint signal."""
    return _revealed(game, np.ones((game.n_states, 1)), tie)


def full_revelation_is_equilibrium(game: Game) -> bool:
    """Whether two senders are able to reveal the state: then the state is known even when any one
    of them deviates, so that full revelation is an exact Nash equilibrium."""
    return sum(count >= game.n_states for count in game.signals) >= 2
