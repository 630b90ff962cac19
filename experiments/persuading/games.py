"""Which games are played: classes of one size, each a batch of one compiled program."""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rflib.core.checks import choose, in_range, positive_int
from rflib.core.errors import UserError
from rflib.methods.persuasion import data
from rflib.methods.persuasion.game import Game
from rflib.methods.persuasion.oracle import Payoffs

TRUTH = "interests"  # the class of games whose optimum is known


class SizeClass(NamedTuple):
    """Games of one shape. name: unique in the run, a part of file and phase names."""

    name: str
    games: tuple[Game, ...]

    @property
    def signals(self) -> tuple[int, ...]:
        return self.games[0].signals

    @property
    def payoffs(self) -> Payoffs:
        """All games at once, float64, games in front."""
        stacked = (
            np.stack([getattr(game, name) for game in self.games]) for name in ["mu", "u", "v"]
        )
        return Payoffs(*stacked)


def size_classes(config: Any) -> list[SizeClass]:
    """The classes of `config.game`: your own game, or generated ones."""
    game = config.game
    if game.path:
        own = data.read_game(game.path)
        return [SizeClass(own.name or "own", (own,))]
    positive_int("config.game.seed", game.seed, zero=True)
    seeds = range(game.seed, game.seed + positive_int("config.game.count", game.count))
    classes = []
    for senders, states, actions, signals in sizes(config):
        sized = {"senders": senders, "states": states, "actions": actions, "signals": signals}
        games = [generate(config, seed, sized) for seed in seeds]
        classes.append(SizeClass(f"{senders}x{states}x{actions}x{signals}", tuple(games)))
    if game.with_truth:
        first, aligned = classes[0], data.GENERATORS["aligned"]()
        if first.games[0].v.shape != aligned.v.shape or first.signals != aligned.signals:
            raise UserError(
                "config.game.with_truth=True needs (2, 2, 2, 2) as the first of config.game.sizes"
            )
        classes[0] = SizeClass(first.name, (*first.games, aligned))
    return classes


def sizes(config: Any) -> Sequence[tuple[int, int, int, int]]:
    """`config.game.sizes`, checked."""
    for size in config.game.sizes:
        if len(size) != 4:
            raise UserError(
                f"config.game.sizes: {size!r} must be (senders, states, actions, signals)"
            )
    return config.game.sizes


def generate(config: Any, seed: int, sized: dict[str, int]) -> Game:
    """One game of `config.game.generator`; arguments that it does not take are its own affair."""
    generator = choose("config.game.generator", config.game.generator, data.GENERATORS)
    arguments = sized | {"reject": config.game.reject_degenerate, "theta": config.game.thetas[0]}
    taken = inspect.signature(generator).parameters
    return generator(seed, **{name: value for name, value in arguments.items() if name in taken})


def interests(config: Any) -> SizeClass:
    """From opposed to common interest, one game for each of `config.game.thetas`."""
    games = []
    for theta in config.game.thetas:
        in_range("config.game.thetas", theta, 0, 1)
        game = data.GENERATORS["interpolated"](theta=theta)
        games.append(game._replace(name=f"interest {theta:g}"))
    return SizeClass(TRUTH, tuple(games))


def title(game: Game) -> str:
    """How a table names a game."""
    return game.name if game.seed is None else f"{game.name} {game.seed}"
