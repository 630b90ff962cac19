"""Persuasion: what several informed senders reveal to one receiver, learned and certified.

Hossain et al., "Multi-Sender Persuasion: A Computational Perspective", ICML 2024. Learns the
senders' discontinuous utilities with three kinds of networks, follows their gradients to local
Nash equilibria by extra-gradient, certifies exactly what was found, and says which of the paper's
claims held. `certify` judges a profile of your own without any of that.
"""

import functools
from typing import Any

from experiments.persuading.verbs import CERTIFY
from rflib.run.cli import cli

# What needs jax is imported where it is used: `certify` answers without it.


def main(config: Any, run: Any) -> None:
    from experiments.persuading import checks, equilibria, networks
    from experiments.persuading.games import SizeClass, interests, size_classes

    truth = interests(config)
    classes = size_classes(config)
    checks.check(config, classes, truth)

    @functools.cache
    def samples(name: str) -> Any:
        return networks.training_profiles(config, by_name[name])

    @functools.cache
    def kept(name: str, kind: str) -> networks.Trained:
        return networks.train(config, run, by_name[name], kind, samples(name))

    def trained(size: SizeClass, kind: str) -> networks.Trained:
        return kept(size.name, kind)

    by_name = {size.name: size for size in (*classes, truth)}
    provide = equilibria.provider(config, trained)
    _games(config, run, classes)
    if "hardness" in config.parts:
        _hardness(config, run)
    if "surfaces" in config.parts:
        _surfaces(config, run, classes[0], trained)
    if "approx" in config.parts:
        _approximation(config, run, classes, trained)
    if "ground_truth" in config.parts:
        _truth(config, run, truth, provide)
    if "equilibria" in config.parts or "optimiser" in config.parts:
        _equilibria(config, run, classes, provide)


def _games(config: Any, run: Any, classes: Any) -> None:
    from experiments.persuading.games import title
    from rflib.methods.persuasion import game as exact
    from rflib.methods.persuasion.data import write_game

    rows = []
    for size in classes:
        for game in size.games:
            write_game(run.workdir / "games" / f"{size.name}-{title(game)}.npz", game)
            rows.append(
                {
                    "class": size.name,
                    "game": title(game),
                    "joint signals": int(functools.reduce(lambda a, b: a * b, game.signals)),
                    "full revelation is an equilibrium": exact.full_revelation_is_equilibrium(game),
                    "full revelation": exact.full_revelation(game, config.tie).utilities.tolist(),
                    "silence": exact.no_information(game, config.tie).utilities.tolist(),
                }
            )
    run.table("games", rows, caption="Utilities of the senders, each in its own unit; in games/.")


def _hardness(config: Any, run: Any) -> None:
    from experiments.persuading import figures, hardness

    found = hardness.measure(config, run)
    hardness.state(config, run, found)
    figures.draw_hardness(config, run, found)


def _surfaces(config: Any, run: Any, size: Any, trained: Any) -> None:
    from experiments.persuading import figures, surfaces

    found = surfaces.measure(config, size, trained)
    surfaces.state(config, run, found)
    figures.draw_surfaces(run, found)


def _approximation(config: Any, run: Any, classes: Any, trained: Any) -> None:
    from experiments.persuading import approximation, figures

    found = approximation.measure(config, run, classes, trained)
    approximation.state(config, run, found, classes)
    figures.draw_approximation(run, found, classes)


def _truth(config: Any, run: Any, size: Any, provide: Any) -> None:
    from experiments.persuading import figures, truth

    found = truth.measure(config, run, size, provide)
    truth.state(config, run, found)
    figures.draw_truth(config, run, found)
    if config.refine.rounds and 1.0 in config.game.thetas:
        rows = truth.refine(config, run, size, config.search.kinds[0])
        caption = "Common interest: training, search, new samples around what was found, again."
        run.table("refinement", rows, caption=caption)


def _equilibria(config: Any, run: Any, classes: Any, provide: Any) -> None:
    from experiments.persuading import equilibria, figures, optimisers, profiles, verdicts

    found = equilibria.find(config, run, classes, provide, name="equilibria")
    if "equilibria" in config.parts:
        verdicts.state(config, run, found)
        profiles.keep(config, run.workdir / "equilibria", found)
        figures.draw_equilibria(config, run, found)
    if "optimiser" in config.parts:
        rows = optimisers.learned_table(config, found)
        caption = (
            "Optimisers on the same learned fields, means over games; sums in spans, the certified "
            "ones (after snap) over the games in which every optimiser has one. Ends that pass: of "
            "all last iterates, in games of two states and two signals."
        )
        run.table("optimisers", rows, caption=caption)
        known = optimisers.known(config, run)
        optimisers.state_known(run, known)
        figures.draw_known(run, known)


if __name__ == "__main__":
    cli(main, verbs={"certify": CERTIFY})
