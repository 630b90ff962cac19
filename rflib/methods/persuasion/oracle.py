"""What a profile of signalling policies is worth: the exact game as a compiled function.

Hossain et al., "Multi-Sender Persuasion: A Computational Perspective" (ICML 2024). A state w of W
is drawn from the prior mu; n senders see it and send signals s_j independently, sender j with
probability pi_j(s_j | w); one receiver sees all signals s = (s_1, ..., s_n) and takes the action of
A that is best for it:

    p(w, s) = mu(w) prod_j pi_j(s_j | w)          unnormalised posterior
    a*(s) in argmax_a sum_w p(w, s) u(w, a)
    U_j(pi) = sum_s sum_w p(w, s) v_j(w, a*(s))

Everything is for one profile and one game, `jax.vmap` outside, and in the precision of its
arguments: float64 inside `jax.enable_x64(True)` for every number that is reported, as rounding
alone flips actions near a tie. Nothing is divided by the probability of a signal.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from rflib.methods.persuasion.game import Game, check_tie

Profile = tuple[Array, ...]
"""One policy per sender: [W, S_j], rows (states) on the simplex."""


class Payoffs(NamedTuple):
    """A game as arrays. Further axes in front of all three are games, for `jax.vmap`.

    mu: prior, positive, sums to 1. u: receiver's utility. v: senders' utilities.
    """

    mu: Float[Array, "*games states"]
    u: Float[Array, "*games states actions"]
    v: Float[Array, "*games senders states actions"]


def from_game(game: Game, dtype: Any = None) -> Payoffs:
    """The arrays of a game in `dtype`; None: JAX's default, float64 in `jax.enable_x64(True)`."""
    return Payoffs(*(jnp.asarray(part, dtype) for part in (game.mu, game.u, game.v)))


class Outcome(NamedTuple):
    """What happens under a profile.

    utilities: U_j, ex ante. actions: a*(s), for the rule "uniform" the lowest of the tied.
    margins: expected score of the best action less that of the second best, unnormalised (it
    counts the signal's probability); infinite with one action. How close the profile is to a cliff.
    receiver: sum_s max_a of the receiver's expected score.
    Joint signals are in C order: the last sender's signal runs fastest.
    """

    utilities: Float[Array, " senders"]
    actions: Int[Array, " joint"]
    margins: Float[Array, " joint"]
    receiver: Float[Array, ""]


def default_tolerance(dtype: jnp.dtype) -> float:
    """Scores this close to the best are ties: 1e-9 in float64, 1e-6 in float32."""
    return 1e-9 if dtype == jnp.float64 else 1e-6


def joint(mu: Float[Array, " states"], profile: Profile) -> Float[Array, "states joint"]:
    """p(w, s): one outer product a sender, so that no array is larger than the result."""
    p = mu[:, None]
    for policy in profile:
        p = (p[:, :, None] * policy[:, None, :]).reshape(p.shape[0], -1)
    return p


def contract(
    left: Float[Array, "states rows"], right: Float[Array, "states columns"]
) -> Float[Array, "rows columns"]:
    """leftᵀ right, one state after the other: under `vmap` a product this small is faster than a
    batched matrix product, and no accelerator rounds its terms to fewer bits."""
    total = left[0, :, None] * right[0, None, :]
    for state in range(1, left.shape[0]):
        total = total + left[state, :, None] * right[state, None, :]
    return total


def _weights(payoffs: Payoffs, p: Array, scores: Array, tie: str, tol: float) -> Array:
    """[S, A]: probability of each action at each joint signal, rows summing to 1."""
    rule, sender = check_tie(tie, payoffs.v.shape[0])
    tied = scores >= jnp.max(scores, -1, keepdims=True) - tol
    if rule == "uniform":
        return tied / jnp.sum(tied, -1, keepdims=True, dtype=scores.dtype)
    if rule != "index":
        second = jnp.sum(payoffs.v, 0) if rule == "sum" else payoffs.v[sender]
        second = contract(p, -second if rule == "adversarial" else second)
        reach = jnp.max(jnp.where(tied, second, -jnp.inf), -1, keepdims=True)
        # With a tolerance here too: otherwise the rounding of two equal sums chose the action.
        tied = tied & (second >= reach - tol)
    first = jnp.argmax(tied, -1)[:, None] == jnp.arange(scores.shape[-1])[None]
    return first.astype(scores.dtype)


def _margins(scores: Array) -> Array:
    if scores.shape[-1] == 1:
        return jnp.full(scores.shape[:1], jnp.inf, scores.dtype)
    best = jnp.argmax(scores, -1)[:, None] == jnp.arange(scores.shape[-1])[None]
    return jnp.max(scores, -1) - jnp.max(jnp.where(best, -jnp.inf, scores), -1)


def _evaluate(payoffs: Payoffs, profile: Profile, tie: str, tol: float | None) -> tuple[Array, ...]:
    p = joint(payoffs.mu, profile)
    scores = contract(p, payoffs.u)
    tol = default_tolerance(scores.dtype) if tol is None else tol
    stopped = jax.lax.stop_gradient
    weights = stopped(_weights(payoffs, stopped(p), stopped(scores), tie, tol))
    # Joint distribution of state and action: all utilities are linear in it.
    taken = jnp.sum(p[:, :, None] * weights[None], 1)
    utilities = jnp.sum(payoffs.v * taken[None], (1, 2))
    return utilities, weights, scores


def utilities(
    payoffs: Payoffs, profile: Profile, tie: str = "index", tol: float | None = None
) -> Float[Array, " senders"]:
    """U_j(pi). Its derivative is that of the multilinear piece around the profile: a*(s) is held.

    tie: see `game.check_tie`.
    tol: scores within it of the best are ties; None: `default_tolerance`.
    """
    return _evaluate(payoffs, profile, tie, tol)[0]


def outcome(
    payoffs: Payoffs, profile: Profile, tie: str = "index", tol: float | None = None
) -> Outcome:
    """Utilities, actions, margins and the receiver's value under a profile."""
    values, weights, scores = _evaluate(payoffs, profile, tie, tol)
    actions = jnp.argmax(weights > 0, -1)
    return Outcome(values, actions, _margins(scores), jnp.sum(jnp.max(scores, -1)))


def spans(payoffs: Payoffs) -> Float[Array, " senders"]:
    """sum_w mu(w) (max_a v_j(w, a) - min_a v_j(w, a)): the unit of every normalised number."""
    width = jnp.max(payoffs.v, -1) - jnp.min(payoffs.v, -1)
    return jnp.sum(payoffs.mu[None] * width, -1)


def normalised_sum(
    values: Float[Array, " senders"], span: Float[Array, " senders"]
) -> Float[Array, ""]:
    """sum_j U_j / span_j; a sender whose span is 0 is indifferent and adds nothing."""
    return jnp.sum(jnp.where(span > 0, values / jnp.where(span > 0, span, 1), 0))
