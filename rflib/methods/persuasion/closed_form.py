"""Exact best responses in games of two states, for thousands of profiles in one program.

With two states a signal's likelihoods (q(0), q(1)) matter up to scale only, so one number tells
signals apart and the receiver's changes of mind are points on a line. What `best_response` and
`local_response` solve by linear programs (or in NumPy) is here a maximum over those points, for one
profile and one game, `jax.vmap` outside. Ties are broken for the deviating sender j.

Run in `jax.enable_x64(True)`: in float32 the points are no ties any more.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from rflib.core.errors import UserError
from rflib.methods.persuasion.oracle import Payoffs, Profile, joint

SLACK = 1e-12  # ties at points computed to be ties, relative to the scale of the scores


class Response(NamedTuple):
    """The best that a sender can do: U_j there, and the policy [W, signals] that does it."""

    value: Float[Array, ""]
    policy: Float[Array, "states signals"]


def _two_states(payoffs: Payoffs) -> None:
    if payoffs.mu.shape[0] != 2:
        raise UserError(f"states={payoffs.mu.shape[0]}: the closed forms need two states")
    if payoffs.u.dtype != jnp.float64:
        raise UserError(
            f"payoffs are {payoffs.u.dtype}: the closed forms need float64, "
            "inside jax.enable_x64(True)"
        )


def others(payoffs: Payoffs, profile: Profile, sender: int) -> Float[Array, "states rest"]:
    """Q(w, t) = mu(w) prod_{k != j} pi_k(t_k | w) over the joint signals t of the others."""
    return joint(payoffs.mu, tuple(policy for k, policy in enumerate(profile) if k != sender))


def _differences(q: Array, u: Array) -> Array:
    """c(w) = Q(w, t) (u(w, a) - u(w, b)) for all t and a < b: [2, T A (A - 1)/2]."""
    first, second = np.triu_indices(u.shape[1], 1)
    gap = u[:, first] - u[:, second]
    return (q[:, :, None] * gap[:, None, :]).reshape(2, -1)


def _worth(likelihoods: Array, q: Array, u: Array, v: Array) -> Array:
    """[points]: sum_t of j's utility when a signal of these likelihoods [points, 2] is sent."""
    weight = likelihoods[:, :, None] * q[None]  # [point, w, t]
    scores = sum(weight[:, w, :, None] * u[w][None, None] for w in range(2))
    worth = sum(weight[:, w, :, None] * v[w][None, None] for w in range(2))
    scale = SLACK * jnp.max(jnp.abs(u)) * jnp.max(q, 0)
    tied = scores >= jnp.max(scores, -1, keepdims=True) - scale[None, :, None]
    return jnp.sum(jnp.max(jnp.where(tied, worth, -jnp.inf), -1), -1)


def best_response(payoffs: Payoffs, profile: Profile, sender: int) -> Response:
    """The best response of `sender` with any number of signals, of which two suffice.

    A signal of likelihoods (1 - x, x) is worth Val(x), linear between the x at which two actions
    tie for some t. Two signals c (1 - x, x) + d (1 - y, y) = (1, 1) on either side of x = 1/2, each
    at a breakpoint, are worth c Val(x) + d Val(y); the maximum is over all such pairs.

    Raises:
        UserError: other than two states, or not in float64.
    """
    _two_states(payoffs)
    q = others(payoffs, profile, sender)
    c = _differences(q, payoffs.u)
    crosses = c[0] * c[1] < 0
    found = jnp.where(crosses, c[0] / jnp.where(crosses, c[0] - c[1], 1), 0.5)
    x = jnp.concatenate([jnp.asarray([0.0, 0.5, 1.0], q.dtype), found])
    value = _worth(jnp.stack([1 - x, x], -1), q, payoffs.u, payoffs.v[sender])
    left, right = x[:, None], x[None, :]
    allowed = (left <= 0.5) & (right >= 0.5)
    apart = right - left > 0
    weight = jnp.where(apart, (2 * right - 1) / jnp.where(apart, right - left, 1), 2.0)
    total = weight * value[:, None] + (2 - weight) * value[None, :]
    total = jnp.where(allowed, total, -jnp.inf)
    place = jnp.argmax(total)
    i, k = place // len(x), place % len(x)
    mass = jnp.stack([weight[i, k], 2 - weight[i, k]])
    ends = jnp.stack([x[i], x[k]])
    return Response(total[i, k], jnp.stack([mass * (1 - ends), mass * ends]))


def _crossings(lines: Array, low: Array, high: Array, instead: Array) -> Array:
    """[points, 2] where two of the lines c_0 x + c_1 y = d cross inside the box, else `instead`."""
    i, k = np.triu_indices(lines.shape[0], 1)
    (a0, a1, a2), (b0, b1, b2) = lines[i].T, lines[k].T
    det = a0 * b1 - a1 * b0
    cross = jnp.abs(det) > 1e-14
    safe = jnp.where(cross, det, 1)
    points = jnp.stack([(a2 * b1 - a1 * b2) / safe, (a0 * b2 - a2 * b0) / safe], -1)
    inside = (points >= low[None] - SLACK) & (points <= high[None] + SLACK)
    points = jnp.clip(points, low[None], high[None])
    return jnp.where((cross & jnp.all(inside, -1))[:, None], points, instead[None])


def local_response(
    payoffs: Payoffs, profile: Profile, sender: int, delta: Float[Array, ""] | float
) -> Response:
    """The best policy of `sender` within |pi_j' - pi_j|_inf <= delta, with its two signals.

    U_j with ties for j is piecewise linear and upper semicontinuous in (x, y) = (pi_j(0 | 0),
    pi_j(0 | 1)), so its maximum over the box is where two of these lines cross: the box's edges,
    the ties c.(x, y) = 0 of signal 0 and c.(x, y) = c_0 + c_1 of signal 1, with
    c(w) = Q(w, t) (u(w, a) - u(w, b)) for all t and a < b.

    Raises:
        UserError: other than two states or two signals of the sender, or not in float64.
    """
    _two_states(payoffs)
    policy = profile[sender]
    if policy.shape[1] != 2:
        raise UserError(f"sender {sender} has {policy.shape[1]} signals: this form needs two")
    q = others(payoffs, profile, sender)
    point = policy[:, 0]
    low, high = jnp.maximum(point - delta, 0), jnp.minimum(point + delta, 1)
    c = _differences(q, payoffs.u).T
    ties = jnp.concatenate(
        [
            jnp.concatenate([c, jnp.zeros((len(c), 1), c.dtype)], -1),
            jnp.concatenate([c, jnp.sum(c, -1, keepdims=True)], -1),
        ]
    )
    size = jnp.max(jnp.abs(ties[:, :2]), -1, keepdims=True)
    ties = ties / jnp.where(size > 0, size, 1)
    sides = [[1, 0, low[0]], [1, 0, high[0]], [0, 1, low[1]], [0, 1, high[1]]]
    lines = jnp.concatenate([jnp.asarray(sides, c.dtype), ties])
    points = jnp.concatenate([_crossings(lines, low, high, point), point[None]])
    v = payoffs.v[sender]
    value = _worth(points, q, payoffs.u, v) + _worth(1 - points, q, payoffs.u, v)
    place = jnp.argmax(value)
    best = points[place]
    return Response(value[place], jnp.stack([best, 1 - best], -1))


def local_gains(
    payoffs: Payoffs, profile: Profile, deltas: Float[Array, " deltas"]
) -> Float[Array, "senders deltas"]:
    """What each sender gains at most within each radius, over U_j with ties for j itself.

    The part of a gain that comes from breaking ties for j alone is in neither number.
    """
    rows = []
    for sender in range(len(profile)):
        v, q = payoffs.v[sender], others(payoffs, profile, sender)
        own = jnp.sum(_worth(profile[sender].T, q, payoffs.u, v))
        reach = jax.vmap(lambda delta, j=sender: local_response(payoffs, profile, j, delta).value)
        rows.append(reach(deltas) - own)
    return jnp.stack(rows)
