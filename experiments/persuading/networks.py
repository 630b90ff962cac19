"""Networks that learn utilities: all games and seeds of a class and kind are one program."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.persuading.games import SizeClass
from rflib.core import keys
from rflib.core.checks import one_of
from rflib.core.errors import UserError
from rflib.data import shuffled
from rflib.methods.persuasion import losses, model, sampling
from rflib.methods.persuasion.game import Game
from rflib.methods.persuasion.losses import Normaliser
from rflib.methods.persuasion.model import Network, Params
from rflib.methods.persuasion.sampling import Samples
from rflib.run.seeds import seeds
from rflib.train.gradient import gradient_step
from rflib.train.loop import fit
from rflib.train.mesh import make_mesh
from rflib.train.task import Aux, Batch, Checkpoint, EarlyStop, Eval, Key, Metrics, Task, Variables

MATCHED = "-matched"
KINDS = ("dnl", "relu", "delu", f"relu{MATCHED}", f"delu{MATCHED}")
TITLES = {
    "dnl": "DNL",
    "relu": "ReLU",
    "delu": "DeLU",
    f"relu{MATCHED}": "ReLU, as many parameters",
    f"delu{MATCHED}": "DeLU, as many parameters",
}


class Trained(NamedTuple):
    """Networks of one kind for every game and seed of a class.

    params: games and seeds in front. scale: from targets to utilities, games in front.
    """

    network: Network
    params: Params
    scale: Normaliser

    def alone(self, game: int) -> "Trained":
        """The networks of one game of the class, by its place."""
        own = slice(game, game + 1)
        params = {name: value[own] for name, value in self.params.items()}
        return Trained(self.network, params, Normaliser(*(each[own] for each in self.scale)))


def mixture(config: Any) -> dict[str, float]:
    """The share of each stratum of profiles."""
    given = config.data.mixture
    if len(given) != len(sampling.STRATA):
        raise UserError(
            f"config.data.mixture={given!r} must hold {len(sampling.STRATA)} shares, of "
            f"{', '.join(sampling.STRATA)}"
        )
    return dict(zip(sampling.STRATA, given, strict=True))


def network(config: Any, kind: str, size: SizeClass) -> Network:
    """The network of a kind for a class; matched ones are widened to DNL's parameter count."""
    one_of("config.model.kinds", kind, KINDS)
    m = config.model
    found = Network(
        kind=kind.removesuffix(MATCHED),
        states=size.games[0].n_states,
        signals=size.signals,
        hidden=m.hidden,
        width=m.inner,
        features=m.features,
        piece=m.piece,
        ste=m.ste,
        temperature=m.ste_temperature,
        per_sender=m.per_sender,
        drop_last=config.data.drop_last,
    )
    if not kind.endswith(MATCHED):
        return found
    return model.match_parameters(found, model.parameter_count(network(config, "dnl", size)))


def draw(config: Any, game: Game, count: int, *parts: int) -> Samples:
    """Profiles of the mixture with exact utilities; `parts` tell draws of one game apart."""
    rng = np.random.default_rng([game.seed or 0, *parts])
    return sampling.sample(game, count, rng, mixture(config), config.tie)


TRAIN, TEST, LINES, STARTS = range(4)  # what a draw is for


def training_profiles(config: Any, size: SizeClass) -> list[Samples]:
    """What the networks of a class learn from, one set a game."""
    return [draw(config, game, config.data.profiles, TRAIN) for game in size.games]


def train(
    config: Any, run: Any, size: SizeClass, kind: str, samples: list[Samples], *, name: str = ""
) -> Trained:
    """Trains one network of `kind` a game and seed, as one resumable phase.

    samples: one set a game, all of one length. name: of the phase, "<class>-<kind>" by default.
    """
    chosen = network(config, kind, size)
    held = [sampling.split(each.labels, config.data.validation, seed=0) for each in samples]
    # Strata are whole numbers: all games hold out the same count of each.
    inputs = np.stack([model.flatten(each.profile, chosen.drop_last) for each in samples])
    utilities = np.stack([each.utilities for each in samples])
    rows = np.stack([kept for kept, _ in held])
    scale = losses.normaliser(np.take_along_axis(utilities, rows[..., None], 1))
    targets = losses.standardise(scale, jnp.asarray(utilities))
    data = {
        "inputs": jnp.asarray(inputs, jnp.float32),
        "targets": jnp.asarray(targets, jnp.float32),
    }
    batch = _batches(config, rows.shape[1])
    data |= {"kept": jnp.asarray(rows), "held": jnp.asarray(np.stack([each for _, each in held]))}
    every, stop = config.evals.every, None
    if config.evals.patience:
        stop = EarlyStop("valid", config.evals.patience)
    step = gradient_step(
        _task(chosen, len(size.games), seeds(config), batch, data),
        optax.adam(optax.cosine_decay_schedule(config.optim.lr, config.steps)),
    )
    intervals = (config.steps, config.log.every, every, config.checkpoint.every)
    result = fit(
        step,
        batch,
        run,
        name=name or f"{size.name}-{kind}",
        data=data,
        mesh=make_mesh({"data": config.mesh.data}),
        steps=config.steps,
        scan=math.gcd(config.optim.scan, *(each for each in intervals if each)),
        evals=_evals(config, chosen, data),
        log_every=min(config.log.every, config.steps),
        checkpoint=Checkpoint(every=config.checkpoint.every, keep=config.checkpoint.keep),
        stop=stop,
    )
    view = result.view if result.best is None else result.best
    return Trained(chosen, jax.device_get(view["params"]), jax.tree.map(np.asarray, scale))


def _batches(config: Any, count: int) -> Callable[[int], np.ndarray]:
    """step -> [rows, seeds] places among the kept profiles; every kind and game sees the same."""
    each = [shuffled(count, config.batch, seed=seed) for seed in seeds(config)]
    return lambda step: np.stack([rows(step) for rows in each], 1)


def _task(
    chosen: Network,
    games: int,
    seeds: tuple[int, ...],
    batch: Callable[[int], np.ndarray],
    data: Mapping[str, jax.Array],
) -> Task:
    """The sum over games and seeds of each network's error: their gradients do not meet."""

    def init(key: Key) -> Variables:
        del key  # every network has its own, so that it does not depend on its company
        roots = [keys.named(jax.random.key(seed), "network") for seed in seeds]
        own = jnp.stack(
            [jnp.stack([jax.random.fold_in(k, g) for k in roots]) for g in range(games)]
        )
        params = jax.vmap(jax.vmap(lambda key: model.init(key, chosen)))(own)
        return {"params": params, "extra": {}}

    def one(params: Params, inputs: jax.Array, targets: jax.Array, places: jax.Array) -> jax.Array:
        return losses.loss(params, chosen, inputs[places], targets[places])

    over_seeds = jax.vmap(one, (0, None, None, 0))

    def loss(values: Variables, batch: Batch, key: Key) -> tuple[jax.Array, Aux]:
        del key
        found, rows = batch
        places = jax.vmap(lambda kept: kept[rows.T])(found["kept"])
        each = jax.vmap(over_seeds)(values["params"], found["inputs"], found["targets"], places)
        return jnp.sum(each), Aux({"mse": jnp.mean(each)})

    return Task(init, loss, batch, data)


def _evals(config: Any, chosen: Network, data: Mapping[str, jax.Array]) -> dict[str, Eval]:
    if not config.data.validation:
        return {}

    @jax.jit
    def errors(params: Params) -> jax.Array:
        def one(params: Params, inputs: jax.Array, targets: jax.Array) -> jax.Array:
            return jnp.mean(jnp.square(losses.predict(params, chosen, inputs) - targets))

        def of_game(params: Params, inputs: jax.Array, targets: jax.Array, held: jax.Array) -> Any:
            return jax.vmap(one, (0, None, None))(params, inputs[held], targets[held])

        return jax.vmap(of_game)(params, data["inputs"], data["targets"], data["held"])

    def measure(view: Any, key: Key) -> Metrics:
        del key
        return {"mse": float(jnp.mean(errors(view["params"])))}

    best = "min" if config.evals.patience else None
    return {"valid": Eval(measure, every=config.evals.every, best=best, metric="mse")}


def predict(trained: Trained, inputs: Any) -> np.ndarray:
    """Utilities [games, seeds, profiles, senders] of inputs [games, profiles, D]."""
    found = _predict(trained.network, trained.params, jnp.asarray(inputs, jnp.float32))
    mean, std = (np.asarray(each)[:, None, None] for each in trained.scale)
    return mean + std * np.asarray(found)


@functools.partial(jax.jit, static_argnums=0)
def _predict(chosen: Network, params: Params, inputs: jax.Array) -> jax.Array:
    one = jax.vmap(lambda params, x: losses.predict(params, chosen, x), (0, None))
    return jax.vmap(one)(params, inputs)
