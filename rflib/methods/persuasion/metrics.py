"""How well a network knows the utilities: by stratum, and where it puts the jumps."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rflib.methods.persuasion.game import Game, outcome
from rflib.methods.persuasion.sampling import STRATA, Profile, dirichlet


def normalised_mse(
    predicted: Float[np.ndarray, "*nets profiles senders"],
    truth: Float[np.ndarray, "profiles senders"],
    variance: Float[np.ndarray, " senders"] | None = None,
) -> Float[np.ndarray, "*nets"]:
    """Mean over senders of MSE_j / Var_j: 1 is what the mean alone would reach.

    variance: Var_j; None: over `truth`. A sender without variance is left out; with none left the
    result is NaN.
    """
    scale: np.ndarray = truth.var(0) if variance is None else variance
    errors = np.square(predicted - truth).mean(-2)
    varied = scale > 0
    if not varied.any():
        return np.full(errors.shape[:-1], np.nan)
    return np.asarray((errors[..., varied] / scale[varied]).mean(-1))


def by_stratum(
    predicted: Float[np.ndarray, "*nets profiles senders"],
    truth: Float[np.ndarray, "profiles senders"],
    labels: Int[np.ndarray, " profiles"],
) -> dict[str, Float[np.ndarray, "*nets"]]:
    """`normalised_mse` on each stratum that is there and on 'all', with Var_j over all of them, so
    that the strata add up to 'all' in their shares."""
    variance = truth.var(0)
    found = {"all": normalised_mse(predicted, truth, variance)}
    for label, name in enumerate(STRATA):
        rows = labels == label
        if rows.any():
            found[name] = normalised_mse(predicted[..., rows, :], truth[rows], variance)
    return found


class Segments(NamedTuple):
    """Straight lines between uniform profiles, on which each utility's largest step is known.

    profile: one [K, P, W, S_j] a sender, P points a line. position: of the middle of the largest
    step between neighbouring points, as a fraction of the line. jumps: whether the receiver's
    actions change in that step: elsewhere it is slope, not jump, and tells nothing.
    """

    profile: Profile
    position: Float[np.ndarray, "lines senders"]
    jumps: Bool[np.ndarray, "lines senders"]


def _largest_step(
    values: Float[np.ndarray, "*lead points senders"],
) -> Int[np.ndarray, "*lead senders"]:
    return np.abs(np.diff(values, axis=-2)).argmax(-2)


def segments(
    game: Game, seed: int, count: int = 200, points: int = 401, tie: str = "index"
) -> Segments:
    """`count` random lines of `points` points each, and where the true utilities jump on them."""
    rng = np.random.default_rng(seed)
    start, end = dirichlet(game, rng, count), dirichlet(game, rng, count)
    along = np.linspace(0, 1, points)[None, :, None, None]
    profile = tuple(
        (1 - along) * a[:, None] + along * b[:, None] for a, b in zip(start, end, strict=True)
    )
    truth = outcome(game, profile, tie)
    place = _largest_step(truth.utilities)
    changes = (truth.actions[:, 1:] != truth.actions[:, :-1]).any(-1)
    jumps = np.take_along_axis(changes, place, 1)
    return Segments(profile, (place + 0.5) / (points - 1), jumps)


def localisation_error(
    predicted: Float[np.ndarray, "*nets lines points senders"], lines: Segments
) -> Float[np.ndarray, "*nets"]:
    """|position of the largest step of the model - of the truth|, as a fraction of the line.

    Mean over the lines on which a sender's utility jumps, then over the senders for which there
    are such lines; NaN if there are none. A position at random has an error of about 1/3.
    """
    places = _largest_step(predicted)
    error = np.abs((places + 0.5) / (predicted.shape[-2] - 1) - lines.position)
    number = lines.jumps.sum(0)
    if not number.any():
        return np.full(error.shape[:-2], np.nan)
    sums = np.where(lines.jumps, error, 0).sum(-2)
    return np.asarray((sums[..., number > 0] / number[number > 0]).mean(-1))
