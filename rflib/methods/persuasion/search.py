"""Search for local Nash equilibria by following every sender's own gradient at once.

Hossain et al. (ICML 2024) run extra-gradient on learned utilities. The game's vector field is

    F_j(pi) = gradient of U_j with respect to pi_j alone, ascent for every j,

with U any differentiable stand-in for the true utilities: a network (`learned`), or the exact game
with a soft receiver (`baselines.annealed`). A search keeps equally spaced iterates; which of them
is best is decided by TRUE utilities (`best_iterate`), never by the stand-in: good policies sit on
an edge that a smooth stand-in rounds off.

Functions are for one start, `jax.vmap` outside over starts and over networks.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from rflib.core.checks import in_range, multiple_of, one_of, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion.model import Network, Params, apply, flatten
from rflib.methods.persuasion.oracle import (
    Payoffs,
    Profile,
    default_tolerance,
    normalised_sum,
    spans,
    utilities,
)
from rflib.optim.extragradient import GameOptimiser, extragradient, optimistic, simultaneous
from rflib.optim.mirror_prox import mirror_descent, mirror_prox, optimistic_mirror_descent

PyTree = Any
Utilities = Callable[[Profile, Array], Array]
"""(profile, step) -> U_j [n], differentiable in the profile. step: the search's, from 0."""

KINDS = ("extragradient", "optimistic", "simultaneous", "mirror_prox")
PARAMETRISATIONS = ("softmax", "projection", "entropy")
LEAST = 1e-6  # of a probability whose logarithm starts a softmax search


@dataclasses.dataclass(frozen=True)
class Search:
    """How to search; hashable, so a static argument of jit.

    kind: 'extragradient' (two gradients a step), 'optimistic' or 'simultaneous' (one);
        'mirror_prox' is extra-gradient on the simplices themselves and excludes 'softmax'.
    parametrisation: 'softmax' (rows are the softmax of free logits), 'projection' (steps on the
        rows, projected on their simplices) or 'entropy' (multiplicative steps on the rows).
    learning_rate: eta. steps: of the optimiser. kept: iterates that are returned, equally spaced,
        the last one being the last of all; divides `steps`.

    Raises:
        UserError: a field out of range.
    """

    kind: str = "extragradient"
    parametrisation: str = "softmax"
    learning_rate: float = 0.1
    steps: int = 500
    kept: int = 50

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        one_of("parametrisation", self.parametrisation, PARAMETRISATIONS)
        if self.kind == "mirror_prox" and self.parametrisation == "softmax":
            raise UserError(
                "kind='mirror_prox' needs parametrisation='projection' or 'entropy': on logits "
                "there is no set to stay in, take kind='extragradient'"
            )
        in_range("learning_rate", self.learning_rate, 0, open_low=True)
        positive_int("steps", self.steps)
        positive_int("kept", self.kept)
        multiple_of("steps", self.steps, "kept", self.kept)


def optimiser(search: Search) -> GameOptimiser:
    """The optimiser of a search, from `rflib.optim`."""
    eta = search.learning_rate
    if search.parametrisation == "softmax":
        if search.kind == "optimistic":
            return optimistic(eta)
        plain = optax.sgd(eta)
        return simultaneous(plain) if search.kind == "simultaneous" else extragradient(plain)
    geometry = "entropy" if search.parametrisation == "entropy" else "euclidean"
    if search.kind == "optimistic":
        return optimistic_mirror_descent(eta, geometry)
    return (mirror_descent if search.kind == "simultaneous" else mirror_prox)(eta, geometry)


def own_gradients(values: Callable[[Profile], Array], profile: Profile) -> Profile:
    """F(pi): for each sender the gradient of its own utility in its own policy."""
    utility, pull = jax.vjp(values, profile)
    every = jax.vmap(pull)(jnp.eye(utility.shape[0], dtype=utility.dtype))[0]
    return tuple(gradient[sender] for sender, gradient in enumerate(every))


def learned(
    params: Params, network: Network, scale: Float[Array, " senders"] | None = None
) -> Utilities:
    """The network's standardised utilities, as the utilities to search on.

    They do not depend on the units in which utilities are stated, and neither does the search.
    scale: factors for them; None: 1. std_j / span_j would give utilities in spans, whose smaller
        gradients get less far in as many steps.
    """

    def values(profile: Profile, step: Array) -> Array:
        del step
        found = apply(params, network, flatten(profile, network.drop_last))
        return found if scale is None else scale * found

    return values


def trajectory(values: Utilities, start: Profile, search: Search) -> Profile:
    """`search.kept` equally spaced iterates from one start: [kept, W, S_j] a sender.

    start: [W, S_j] a sender, rows on the simplex. The last iterate is the search's last.
    """
    soft = search.parametrisation == "softmax"
    method = optimiser(search)

    def policies(point: Profile) -> Profile:
        return tuple(jax.nn.softmax(part, -1) for part in point) if soft else point

    def step(place: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        def field(point: Profile) -> Profile:
            ascent = own_gradients(lambda at: values(policies(at), place), point)
            return tuple(-part for part in ascent)  # the optimiser's sign is descent

        point, state = carry
        return method.step(point, state, field)

    every = search.steps // search.kept

    def stretch(carry: tuple, first: Array) -> tuple[tuple, Profile]:
        carry = jax.lax.fori_loop(0, every, lambda i, c: step(first + i, c), carry)
        return carry, policies(carry[0])

    point = tuple(jnp.log(jnp.maximum(part, LEAST)) for part in start) if soft else start
    begins = jnp.arange(search.kept) * every
    return jax.lax.scan(stretch, (point, method.init(point)), begins)[1]


def trajectories(values: Utilities, starts: Profile, search: Search) -> Profile:
    """`trajectory` from many starts [M, W, S_j]: [M, kept, W, S_j] a sender."""
    return jax.vmap(lambda start: trajectory(values, start, search))(starts)


def exact_rows(profile: Sequence[Array | np.ndarray]) -> tuple[np.ndarray, ...]:
    """Found policies in float64, with rows that sum to 1 to the last digit: to be evaluated."""
    found = [np.maximum(np.asarray(policy, np.float64), 0) for policy in profile]
    return tuple(policy / policy.sum(-1, keepdims=True) for policy in found)


def best_iterate(
    payoffs: Payoffs, kept: Profile, tie: str = "index"
) -> tuple[Int[Array, ""], Float[Array, "kept senders"]]:
    """(place of the iterate whose true sum_j U_j / span_j is largest, true utilities of all).

    kept: [kept, W, S_j] a sender, for one start. In the precision of its arguments: pass
    `exact_rows` inside `jax.enable_x64(True)`. Of equals (within `default_tolerance`: many policies
    have the same outcome up to rounding) the earliest.
    """
    values = jax.vmap(lambda profile: utilities(payoffs, profile, tie))(kept)
    span = spans(payoffs)
    total = jax.vmap(lambda value: normalised_sum(value, span))(values)
    return jnp.argmax(total >= jnp.max(total) - default_tolerance(total.dtype)), values
