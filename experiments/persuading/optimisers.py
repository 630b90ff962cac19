"""Extra-gradient against ascent and optimism: on learned fields, and where the answer is known."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.persuading import searching
from experiments.persuading.equilibria import best
from rflib.methods.persuasion.game import relative
from rflib.optim.extragradient import extragradient, optimistic, simultaneous
from rflib.optim.mirror_prox import mirror_descent, mirror_prox
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

ETA = 0.3  # of the bilinear game
STEPS = 100
TEXT = "extra-gradient converges on a bilinear game, on which simultaneous ascent diverges"
ROW_PAYOFF = ((0.0, -1.0, 2.0), (1.0, 0.0, -1.0), (-2.0, 1.0, 0.0))  # rows maximise x' M y


def known(config: Any, run: Any) -> dict[str, Metrics]:
    """Games with a known answer; a cell is one game."""
    games = {"bilinear": _bilinear, "strongly monotone": _monotone, "zero-sum": _zero_sum}
    cells = [Cell(name, {"eta": ETA, "steps": STEPS}) for name in games]
    run_one = Study(cells, lambda cell, key: games[cell.name](key))
    return study(run_one, run, name="known-games", seed=config.seed)


def _distances(field: Any, start: jax.Array, methods: Mapping[str, Any], steps: int) -> Metrics:
    found = {}
    for name, method in methods.items():

        @jax.jit
        def walk(start: jax.Array, method: Any = method) -> jax.Array:
            def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
                carry = method.step(*carry, field)
                return carry, jnp.linalg.norm(carry[0])

            return jax.lax.scan(step, (start, method.init(start)), None, steps)[1]

        found[name] = np.asarray(walk(start))
    return found


def _bilinear(key: Key) -> Metrics:
    """min_x max_y x y from (1, 0): the distance to (0, 0)."""
    del key
    sgd = optax.sgd(ETA)
    methods = {
        "extragradient": extragradient(sgd),
        "optimistic": optimistic(ETA),
        "simultaneous": simultaneous(sgd),
    }
    return _distances(lambda z: jnp.stack([z[1], -z[0]]), jnp.asarray([1.0, 0.0]), methods, STEPS)


def _monotone(key: Key) -> Metrics:
    """F(z) = (S + K) z in six dimensions, S positive definite, K skew: the distance to 0."""
    first, second = jax.random.split(key)
    half = jax.random.normal(first, (6, 6)) / 6
    skew = jax.random.normal(second, (6, 6))
    matrix = half @ half.T + 0.1 * jnp.eye(6) + skew - skew.T
    eta = 0.25 / float(jnp.linalg.norm(matrix, 2))
    sgd = optax.sgd(eta)
    methods = {
        "extragradient": extragradient(sgd),
        "optimistic": optimistic(eta),
        "simultaneous": simultaneous(sgd),
    }
    return _distances(lambda z: matrix @ z, jnp.ones(6), methods, STEPS)


def _zero_sum(key: Key) -> Metrics:
    """A 3 x 3 game on simplices, entropy geometry: the duality gap."""
    del key
    payoff = jnp.asarray(ROW_PAYOFF)
    start = {"x": jnp.asarray([0.6, 0.3, 0.1]), "y": jnp.asarray([0.2, 0.2, 0.6])}

    def field(z: Any) -> Any:
        return {"x": -payoff @ z["y"], "y": payoff.T @ z["x"]}

    found = {}
    for name, method in {
        "extragradient": mirror_prox(0.1, "entropy"),
        "simultaneous": mirror_descent(0.1, "entropy"),
    }.items():

        @jax.jit
        def walk(start: Any, method: Any = method) -> jax.Array:
            def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
                carry = method.step(*carry, field)
                z = carry[0]
                return carry, jnp.max(payoff @ z["y"]) - jnp.min(payoff.T @ z["x"])

            return jax.lax.scan(step, (start, method.init(start)), None, 10 * STEPS)[1]

        found[name] = np.asarray(walk(start))[9::10]
    return found


def state_known(run: Any, found: Mapping[str, Metrics]) -> None:
    """The table of known games and the claim about the bilinear one."""
    rows = []
    for game, curves in found.items():
        row: dict[str, Any] = {"game": game}
        row |= {name: float(curve[-1]) for name, curve in curves.items()}
        rows.append(row)
    run.table(
        "known_games",
        rows,
        caption="Distance to the solution (zero-sum: duality gap of the last iterate) at the end.",
    )
    last = {name: float(curve[-1]) for name, curve in found["bilinear"].items()}
    closed = (1 - ETA**2 + ETA**4) ** (STEPS / 2)
    good = last["extragradient"] < 1 < last["simultaneous"]
    run.claim(
        "extra-gradient",
        TEXT,
        measured=", ".join(f"{name} {value:.3g}" for name, value in last.items()),
        unit=f"distance after {STEPS} steps of {ETA:g} from 1; closed form for extra-gradient "
        f"{closed:.3g}",
        verdict="holds" if good else "refuted",
    )


def learned_table(config: Any, found: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One row an optimiser, on the fields of the first network: what its ends are worth."""
    first = config.search.kinds[0]
    titles = {
        method: title
        for method, title in searching.methods(config).items()
        if searching.network_of(method) == first
    }
    certified = {
        name: {method: best(config, game, method, "after") for method in titles}
        for name, game in found.items()
    }
    rows = []
    for method, title in titles.items():
        own = [game["methods"][method] for game in found.values()]
        # Sums are compared over the games in which every optimiser has one.
        sums = [
            relative(np.array(each["utilities"]), np.array(found[name]["spans"])).sum()
            for name, row in certified.items()
            if None not in row.values() and (each := row[method]) is not None
        ]
        closed = [each["closed_form"] for each in own if each["closed_form"] is not None]
        rows.append(
            {
                "method": title,
                "best true sum of an end": float(np.mean([each["best_sum"] for each in own])),
                "games with a certified equilibrium": float(
                    np.mean([row[method] is not None for row in certified.values()])
                ),
                "best certified sum": float(np.mean(sums)) if sums else None,
                "distinct ends": float(np.mean([each["distinct"] for each in own])),
                "ends that pass the exact test": float(np.mean(closed)) if closed else None,
            }
        )
    return rows
