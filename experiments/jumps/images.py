"""Images of integers: the data, the networks and losses of each model, and its training."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import Array

from experiments.jumps import training
from rflib.core.checks import choose, one_of
from rflib.core.errors import UserError
from rflib.data import read_npz, shuffled
from rflib.methods.ehrenfest import baselines, chains, data, losses, model, reverse
from rflib.methods.ehrenfest.data import Embedding, Images
from rflib.methods.ehrenfest.process import Process, make_process
from rflib.train.task import Key

NAMED = {
    "digits": data.digits,
    "mnist": data.mnist,
    "mnist_pooled": lambda: data.mnist(pooled=True),
    "cifar": data.cifar_subset,
}
BASELINES = {"ddpm": "eps", "d3pm": "posterior", "tauldr": "posterior"}
TITLES = {
    "ou": "Ehrenfest, OU (score)",
    "ou_score": "Ehrenfest, OU (weighted)",
    "taylor1": "Ehrenfest, Taylor 1",
    "taylor2": "Ehrenfest, Taylor 2",
    "ratio": "Ehrenfest, exact ratio",
    "gauss": "Ehrenfest, Gaussian ratio",
    "ce": "Ehrenfest, cross-entropy (tauLDR sampler)",
    "tauldr": "tauLDR (bound + cross-entropy)",
    "d3pm": "D3PM, Gaussian transitions",
    "ddpm": "DDPM, rounded",
}


class Problem(NamedTuple):
    """Images of the shape (h, w, c), how their values become states, and the process of these."""

    images: Images
    embedding: Embedding
    process: Process
    shape: tuple[int, int, int]


def problem(config: Any) -> Problem:
    """The data of a config, with a process of the size that the embedding asks for."""
    d, p = config.data, config.process
    if d.path:
        images = data.read_images(d.path, d.levels, d.held_out)
    else:
        images = choose("config.data.name", d.name, NAMED)()
    embedding = Embedding(d.embedding, images.levels)
    made = make_process(
        embedding.size, p.schedule, t_min=p.t_min, t_max=p.t_max, bmin=p.bmin, bmax=p.bmax
    )
    height, width, channels = images.train.shape[1:]
    return Problem(images, embedding, made, (height, width, channels))


def head(config: Any, name: str) -> str:
    """The kind of output that the rates of a model are read from."""
    if name in BASELINES:
        return BASELINES[name]
    kind = losses.find_loss(name).head
    return config.loss.head if kind == "ratio" else kind


def check(config: Any, found: Problem) -> None:
    """Names of models, before anything is trained."""
    known = (*losses.LOSSES, *BASELINES)
    tables = ("ratio", "ce", "d3pm", "tauldr")
    for name in config.model.names:
        one_of("config.model.names", name, known)
        if found.embedding.kind != "small" and name in tables:
            raise UserError(
                f"config.model.names: {name} has tables over all {found.process.size + 1} states; "
                "it needs config.data.embedding='small'"
            )
    for name in config.sampler.ablated:
        one_of("config.sampler.ablated", name, known)


def network(config: Any, found: Problem, name: str) -> Any:
    """The network of a model by name: what differs between models is the number of heads."""
    heads = reverse.HEADS[head(config, name)] or found.process.size + 1
    return network_of(config, found, heads)


def network_of(config: Any, found: Problem, heads: int) -> Any:
    """The configured network with so many outputs a coordinate."""
    m = config.model
    if one_of("config.model.net", m.net, ("residual", "unet")) == "residual":
        return model.ResidualMlp(found.process, heads, m.width, m.blocks)
    options = {
        "base": m.base,
        "mult": tuple(m.mult),
        "blocks": m.res_blocks,
        "attn_levels": tuple(m.attention),
        "dropout": m.dropout,
    }
    scale = float(np.sqrt(found.process.size)) if found.embedding.kind == "small" else 1.0
    return model.UNetHeads(heads, options, scale)


def value(config: Any, found: Problem, name: str) -> training.Value:
    """The loss of a model as `training.train` takes it."""
    process = found.process
    if name == "d3pm":
        tables = baselines.d3pm_gauss(process.size + 1, config.model.d3pm_steps)

        def d3pm(apply: Any, params: Any, key: Key, k0: Array) -> Any:
            def logits(params: Any, x: Array, t: Array) -> Array:
                return apply(params, process.to_x(x), t)

            result, aux = baselines.d3pm_loss(logits, params, key, k0, tables)
            return result, aux._asdict()

        return d3pm
    if name == "tauldr":
        chain = chains.ehrenfest(process.size)

        def bound(apply: Any, params: Any, key: Key, k0: Array) -> Any:
            def logits(params: Any, x: Array, t: Array) -> Array:
                out = apply(params, process.to_x(x).reshape(k0.shape), t)
                return out.reshape(*x.shape, -1)

            flat = k0.reshape(k0.shape[0], -1)
            result, aux = baselines.bound_loss(logits, params, key, flat, chain, process)
            return result, aux._asdict()

        return bound
    loss = losses.find_loss("ou" if name == "ddpm" else name)
    options = training.loss_options(config, name)
    if name == "ddpm":
        options = {"noise_kind": "gaussian"}

    def regression(apply: Any, params: Any, key: Key, k0: Array) -> Any:
        result, aux = loss.value(apply, params, key, k0, process, **options)
        return result, training.described(aux)

    return regression


def train(config: Any, run: Any, found: Problem, name: str, seed: int) -> Any:
    """The averaged weights of a model; also kept in the run for the verb `sample`."""
    states = found.embedding.encode(found.images.train)
    count = min(config.batch, len(found.images.train))
    result = training.train(
        config, run, f"{name}-{seed}", network(config, found, name), value(config, found, name),
        shuffled(len(found.images.train), count, seed=seed),
        shape=found.shape, steps=config.steps, ema=config.optim.ema, data=states, seed=seed,
    )  # fmt: skip
    params = training.averaged(result)
    keep(run, f"model-{name}-{seed}", params)
    return params


def keep(run: Any, name: str, params: Any) -> None:
    """Weights as arrays by path."""
    flat: Any = traverse_util.flatten_dict(params, sep="/")
    run.array(name, caption="averaged weights, by path", **flat)


def kept(workdir: Any, name: str) -> Any:
    """What `keep` wrote."""
    return read_weights(workdir / "arrays" / f"{name}.npz")


def read_weights(path: Any) -> Any:
    """A tree of weights from an .npz whose names are paths with /."""
    return traverse_util.unflatten_dict(read_npz(path), sep="/")


def fitted(start: Any, into: Any) -> Any:
    """`into` with the leaves of `start` wherever path and shape agree: other heads stay fresh."""
    flat: list[Any] = [traverse_util.flatten_dict(each, sep="/") for each in (start, into)]
    old, new = flat
    same = {
        path: old[path] if path in old and jnp.shape(old[path]) == leaf.shape else leaf
        for path, leaf in new.items()
    }
    return jax.tree.map(np.asarray, traverse_util.unflatten_dict(same, sep="/"))
