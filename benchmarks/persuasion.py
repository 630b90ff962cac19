"""Persuasion's hot paths against their naive forms, in one process.

    python -m benchmarks.persuasion

Oracle: exact utilities of random profiles, as four loops in Python, vectorised in NumPy, and
compiled. Training: 32 DNL networks as one vectorised program against 32 calls of the program of
one, compilation and running apart. Search: extra-gradient from 300 starts at once against one
start a call. Best response: every action profile in the program against the pruned one. Blocks
alternate, so that other programs' load meets all alike; results are medians.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rflib.methods.persuasion import losses, model, oracle
from rflib.methods.persuasion.best_response import best_response
from rflib.methods.persuasion.game import Game, outcome
from rflib.methods.persuasion.generators import random_profile, uniform
from rflib.methods.persuasion.model import Network
from rflib.methods.persuasion.search import Search, learned, trajectory
from rflib.train.host import tune_allocator

NETWORKS, PROFILES, BATCH, STEPS, RATE = 32, 5000, 256, 100, 3e-3


def loops(game: Game, profile: Sequence[np.ndarray]) -> list[float]:
    """The game as one writes it down first: utilities of one profile."""
    totals = [0.0] * game.n_senders
    for signal in itertools.product(*(range(count) for count in game.signals)):
        chance = [
            game.mu[w] * np.prod([profile[j][w, signal[j]] for j in range(game.n_senders)])
            for w in range(game.n_states)
        ]
        scores = [
            sum(chance[w] * game.u[w, a] for w in range(game.n_states))
            for a in range(game.n_actions)
        ]
        action = max(range(game.n_actions), key=scores.__getitem__)
        for j in range(game.n_senders):
            totals[j] += sum(chance[w] * game.v[j, w, action] for w in range(game.n_states))
    return totals


def alternate(variants: Mapping[str, Callable[[], Any]], blocks: int) -> dict[str, list[float]]:
    """Seconds of every block of every variant, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(blocks):
        for name, run in variants.items():
            begun = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def ratios(seconds: Mapping[str, list[float]], base: str) -> dict[str, float]:
    """How many times `base` each variant takes, by neighbouring blocks."""
    return {
        name: statistics.median(a / b for a, b in zip(each, seconds[base], strict=True))
        for name, each in seconds.items()
    }


def oracle_rates(
    game: Game, blocks: int, *, many: int = 20_000, few: int = 200
) -> dict[str, float]:
    """Profiles a second by variant; the loops see the first `few` of `many`."""
    profile = random_profile(game, np.random.default_rng(0), many)
    first = [[part[m] for part in profile] for m in range(few)]
    with jax.enable_x64(True):
        payoffs = oracle.from_game(game)
        arrays = tuple(jnp.asarray(part) for part in profile)
        compiled = jax.jit(jax.vmap(partial(oracle.utilities, payoffs)))
        expected = [loops(game, each) for each in first]
        np.testing.assert_allclose(compiled(arrays)[:few], expected, atol=1e-9)
        seconds = alternate(
            {
                "loops in Python": lambda: [loops(game, each) for each in first],
                "vectorised NumPy": lambda: outcome(game, profile).utilities,
                "compiled, float64": lambda: compiled(arrays),
            },
            blocks,
        )
    counts = {"loops in Python": few}
    return {
        name: counts.get(name, many) / statistics.median(each) for name, each in seconds.items()
    }


def bench_oracle(blocks: int) -> None:
    print("oracle                          profiles/s   times the loops")
    for senders, states, actions, signals in ((2, 2, 2, 2), (2, 3, 3, 3), (4, 2, 2, 2)):
        game = uniform(0, senders=senders, states=states, actions=actions, signals=signals)
        rates = oracle_rates(game, blocks)
        for name, rate in rates.items():
            size = f"{senders}x{states}x{actions}x{signals}"
            print(f"  {size:8} {name:20} {rate:12,.0f} {rate / rates['loops in Python']:12.0f}")


def bench_training(blocks: int) -> None:
    network = Network("dnl", 2, (2, 2))
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.uniform(size=(PROFILES, network.inputs)), jnp.float32)
    targets = jnp.asarray(rng.normal(size=(PROFILES, 2)), jnp.float32)
    rows = jnp.asarray(rng.integers(0, PROFILES, (STEPS, BATCH)))
    adam = optax.adam(RATE)

    def train(params: Any, rows: Any) -> Any:
        def step(carry: Any, chosen: Any) -> tuple[Any, None]:
            params, state = carry
            grads = jax.grad(losses.loss)(params, network, inputs[chosen], targets[chosen])
            updates, state = adam.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, adam.init(params)), rows)[0][0]

    keys = jax.random.split(jax.random.key(0), NETWORKS)
    params = jax.vmap(lambda key: model.init(key, network))(keys)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(NETWORKS)]
    compiled, compile_seconds = {}, {}
    for name, function, arguments in (
        ("all at once", jax.vmap(train, (0, None)), (params, rows)),
        ("one after the other", train, (each[0], rows)),
    ):
        begun = time.perf_counter()
        compiled[name] = jax.jit(function).lower(*arguments).compile()
        compile_seconds[name] = time.perf_counter() - begun
    seconds = alternate(
        {
            "all at once": lambda: compiled["all at once"](params, rows),
            "one after the other": lambda: [
                compiled["one after the other"](own, rows) for own in each
            ],
        },
        blocks,
    )
    found = ratios(seconds, "all at once")
    print(
        f"training of {NETWORKS} networks, {STEPS} steps of {BATCH}     compile s    run s    ratio"
    )
    for name, own in seconds.items():
        print(
            f"  {name:32} {compile_seconds[name]:12.2f} {statistics.median(own):8.2f} "
            f"{found[name]:8.2f}"
        )


def bench_search(blocks: int) -> None:
    network = Network("dnl", 2, (2, 2))
    params = model.init(jax.random.key(0), network)
    how = Search(steps=500)
    rng = np.random.default_rng(0)
    starts = tuple(jnp.asarray(rng.dirichlet(np.ones(2), (300, 2)), jnp.float32) for _ in range(2))

    def one(start: Any) -> Any:
        return trajectory(learned(params, network), start, how)

    every, single = jax.jit(jax.vmap(one)), jax.jit(one)
    first = tuple(part[0] for part in starts)
    jax.block_until_ready((every(starts), single(first)))
    alone = [tuple(part[m] for part in starts) for m in range(300)]
    seconds = alternate(
        {
            "300 starts at once": lambda: every(starts),
            "one start a call": lambda: [single(start) for start in alone],
        },
        blocks,
    )
    found = ratios(seconds, "300 starts at once")
    print("extra-gradient, 500 steps             seconds    ratio")
    for name, own in seconds.items():
        print(f"  {name:32} {statistics.median(own):10.2f} {found[name]:8.1f}")


def bench_best_response(blocks: int) -> None:
    game = uniform(0, states=3, actions=3, signals=7, reject=False)
    profile = random_profile(game, np.random.default_rng(0))
    values = {}

    def solve(prune: str) -> None:
        values[prune] = best_response(game, profile, 0, method="program", prune=prune).value

    seconds = alternate(
        {"every action profile": lambda: solve("never"), "pruned": lambda: solve("always")}, blocks
    )
    found = ratios(seconds, "pruned")
    print("exact best response, 3 states, 3 actions, T = 7     seconds    ratio")
    for name, own in seconds.items():
        print(f"  {name:44} {statistics.median(own):12.3f} {found[name]:8.1f}")
    print(f"  values agree to {abs(values['never'] - values['always']):.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5, help="alternating blocks a variant")
    blocks = parser.parse_args().blocks
    tune_allocator()
    bench_oracle(blocks)
    bench_training(blocks)
    bench_search(blocks)
    bench_best_response(blocks)


if __name__ == "__main__":
    main()
