"""Searches that learn nothing: a softened receiver, and trial and error on the true game.

The honest competitors of a search on learned utilities, with its interface: starts [M, W, S_j] in,
kept iterates [M, kept, W, S_j] out. Both are this project's. Full revelation and silence are in
`game`, iterated exact best response in `iterated`, single-sender optima in `mediated`; random
profiles are `sampling.dirichlet`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core.checks import positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.oracle import (
    Payoffs,
    Profile,
    contract,
    joint,
    spans,
    utilities,
)
from rflib.methods.persuasion.search import Utilities

RARE = 1e-12  # a signal's probability is taken to be at least this
FIRST, LAST = 0.3, 0.003  # temperatures, of max u - min u
CONCENTRATION = 0.3  # of the rows that are proposed
SIZES = (0.01, 1.0)  # of a proposal's step
LEAST_GAIN = 1e-12  # in spans: where a policy changes nothing, rounding is no reason to move


def soft_utilities(
    payoffs: Payoffs, profile: Profile, temperature: Float[Array, ""] | float
) -> Float[Array, " senders"]:
    """U_j when the receiver takes action a with probability softmax_a(E[u(., a) | s]/temperature).

    The posterior mean divides by p(s) = sum_w p(w, s), floored at 1e-12. Smooth in the profile;
    tends to the game's utilities as the temperature falls to 0.
    """
    p = joint(payoffs.mu, profile)
    signal = jnp.maximum(jnp.sum(p, 0), RARE)
    scores = contract(p, payoffs.u) / (temperature * signal[:, None])
    taken = jnp.sum(p[:, :, None] * jax.nn.softmax(scores, -1)[None], 1)
    return jnp.sum(payoffs.v * taken[None], (1, 2))


def annealed(payoffs: Payoffs, steps: int) -> Utilities:
    """Utilities for `search.trajectory`: the exact game with a receiver that hardens.

    The temperature falls geometrically from 0.3 to 0.003 of max u - min u over the search's
    `steps`; utilities are in spans.

    Raises:
        UserError: steps < 1.
    """
    positive_int("steps", steps)
    width = jnp.max(payoffs.u) - jnp.min(payoffs.u)
    width = jnp.where(width > 0, width, 1)
    span = spans(payoffs)
    span = jnp.where(span > 0, span, 1)

    def values(profile: Profile, step: Array) -> Array:
        done = step / max(steps - 1, 1)
        temperature = width * FIRST * (LAST / FIRST) ** done
        return soft_utilities(payoffs, profile, temperature) / span

    return values


def proposals(
    signals: tuple[int, ...],
    states: int,
    starts: int,
    count: int,
    kept: int,
    rng: np.random.Generator,
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """What `zeroth_order` tries, drawn outside the program, where it would cost a compilation.

    (rows [M, R, W, S_j] a sender with Dirichlet(0.3) rows, sizes [M, R, n] log-uniform on
    [0.01, 1]), float64. R rounds of one proposal a sender: the fewest that make at least `count`
    proposals a start and are a multiple of `kept`.

    Raises:
        UserError: a number below 1.
    """
    for name, value in (("starts", starts), ("count", count), ("kept", kept)):
        positive_int(name, value)
    rounds = kept * -(-count // (len(signals) * kept))
    rows = tuple(
        rng.dirichlet(np.full(s, CONCENTRATION), (starts, rounds, states)) for s in signals
    )
    low, high = np.log(SIZES)
    sizes = np.exp(rng.uniform(low, high, (starts, rounds, len(signals))))
    return rows, sizes


def zeroth_order(
    payoffs: Payoffs,
    start: Profile,
    rows: tuple[Array, ...],
    sizes: Float[Array, "rounds senders"],
    kept: int,
    tie: str = "index",
) -> Profile:
    """Trial and error on the true utilities, from one start: [kept, W, S_j] a sender.

    Senders in turn propose pi_j' = (1 - size) pi_j + size rows and move there if U_j rises (by more
    than 1e-12 spans). rows:
    [R, W, S_j] a sender, with R a multiple of `kept`; see `proposals`. The last kept profile is the
    search's last.

    Raises:
        UserError: R is no multiple of `kept`.
    """
    rounds = sizes.shape[0]
    if rounds % kept:
        raise UserError(f"rows hold {rounds} rounds, which must be a multiple of kept={kept}")

    span = spans(payoffs)

    def turn(profile: Profile, tried: tuple) -> tuple[Profile, None]:
        for sender in range(len(profile)):
            size = tried[1][sender]
            new = (1 - size) * profile[sender] + size * tried[0][sender]
            moved = (*profile[:sender], new, *profile[sender + 1 :])
            before, after = (utilities(payoffs, at, tie)[sender] for at in (profile, moved))
            better = after - before > LEAST_GAIN * span[sender]
            chosen = jnp.where(better, new, profile[sender])
            profile = (*profile[:sender], chosen, *profile[sender + 1 :])
        return profile, None

    def stretch(profile: Profile, tried: tuple) -> tuple[Profile, Profile]:
        profile, _ = jax.lax.scan(turn, profile, tried)
        return profile, profile

    grouped = jax.tree.map(
        lambda part: part.reshape(kept, rounds // kept, *part.shape[1:]), (rows, sizes)
    )
    return jax.lax.scan(stretch, start, grouped)[1]
