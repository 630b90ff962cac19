"""Which games are played: classes of one size, each a batch of one compiled program."""

import inspect
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rflib.core.checks import choose, distinct, in_range, positive_int
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
        stacked: Any = (
            np.stack([getattr(game, name) for game in self.games]) for name in ["mu", "u", "v"]
        )
        return Payoffs(*stacked)


def size_classes(config: Any) -> list[SizeClass]:
    """The classes of `config.game`: your own game, or generated ones."""
    game = config.game
    if game.path:
        own = data.read_game(game.path)
        own = own._replace(name=re.sub(r"[^\w.-]+", "-", own.name).strip(".-") or "own")
        return [SizeClass("own" if own.name == TRUTH else own.name, (own,))]
    positive_int("config.game.seed", game.seed, zero=True)
    seeds = range(game.seed, game.seed + positive_int("config.game.count", game.count))
    classes: list[SizeClass] = []
    for size in sizes(config):
        games = tuple(generate(config, seed, size) for seed in seeds)
        own, name = games[0], _shape(games[0])  # some generators have sizes of their own
        if name in [each.name for each in classes]:
            raise UserError(
                f"config.game.sizes: {size!r} is another class of {game.generator} games of {name} "
                "(senders x states x actions x signals); take one"
            )
        if any((own.u == each.u).all() and (own.v == each.v).all() for each in games[1:]):
            raise UserError(
                f"config.game.count={game.count}: {game.generator} makes the same game from every "
                "seed; take 1"
            )
        classes.append(SizeClass(name, games))
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
    if not len(config.game.sizes):
        raise UserError("config.game.sizes=() must hold at least one size")
    for size in config.game.sizes:
        if not isinstance(size, Sequence) or len(size) != 4:
            raise UserError(
                f"config.game.sizes: {size!r} must be (senders, states, actions, signals)"
            )
    return config.game.sizes


def _shape(game: Game) -> str:
    """senders x states x actions x signals; generators give every sender as many."""
    return "x".join(map(str, (game.n_senders, game.n_states, game.n_actions, game.signals[0])))


def generate(config: Any, seed: int, size: tuple[int, int, int, int]) -> Game:
    """One game of `config.game.generator`; arguments that it does not take are its own affair."""
    names = ("senders", "states", "actions", "signals", "platforms")
    sized = dict(zip(names, (*size, size[0]), strict=True))
    generator = choose("config.game.generator", config.game.generator, data.GENERATORS)
    arguments = sized | {"reject": config.game.reject_degenerate, "theta": config.game.thetas[0]}
    taken = inspect.signature(generator).parameters
    return generator(seed, **{name: value for name, value in arguments.items() if name in taken})


def interests(config: Any) -> SizeClass:
    """From opposed to common interest, one game for each of `config.game.thetas`."""
    distinct("config.game.thetas", [f"{theta:g}" for theta in config.game.thetas])
    games = []
    for theta in config.game.thetas:
        in_range("config.game.thetas", theta, 0, 1)
        game = data.GENERATORS["interpolated"](theta=theta)
        games.append(game._replace(name=f"interest {theta:g}"))
    return SizeClass(TRUTH, tuple(games))


def title(game: Game) -> str:
    """How a table names a game."""
    return game.name if game.seed is None else f"{game.name} {game.seed}"
