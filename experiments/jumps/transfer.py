"""A plain DDPM network drives the jump process, as it is: which sampler draws the better images?"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.jumps import drawing, images, judging, training
from experiments.jumps.images import Problem
from rflib.core import keys
from rflib.data import shuffled
from rflib.diffusion.schedule import DiscreteSchedule
from rflib.methods.ehrenfest import baselines, samplers, transfer
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study


def table(config: Any) -> DiscreteSchedule:
    """The DDPM's own discrete-time schedule, β linear."""
    t = config.transfer
    return DiscreteSchedule.from_betas(np.linspace(t.first, t.last, t.table))


def measure(config: Any, run: Any, judge: judging.Judge) -> dict[str, Any]:
    """Rows by sampler and number of steps, all with one network; share of times off its table."""
    found = judge.problem
    params = _trained(config, run, found)
    wanted = [
        Cell(f"{kind} {steps}", {"kind": kind, "steps": steps, "count": config.eval.samples})
        for kind in ("jump", "diffusion", "ddpm")
        for steps in config.transfer.steps
    ]

    def one(cell: Cell, key: Key) -> Metrics:
        call = _sampler(config, found, cell.arguments["kind"], cell.arguments["steps"])
        drawn = drawing.draw(config, call, params, key, config.eval.samples)
        run.array(f"transfer-{cell.name.replace(' ', '-')}", drawn.values.astype(np.int16))
        rest = drawn._asdict()
        del rest["values"]
        return judging.measure(judge, drawn.values) | rest

    rows = study(Study(wanted, one), run, name="transfer", seed=config.seed)
    outside = transfer.share_outside(table(config), found.process, max(config.transfer.steps))
    return {"rows": rows, "judge": judge, "outside": outside,
            "floors": judging.floors(judge, config.eval.samples, config.seed)}  # fmt: skip


def _trained(config: Any, run: Any, found: Problem) -> Any:
    if config.transfer.weights:
        return images.read_weights(Path(config.transfer.weights).expanduser())
    known = table(config)
    signal = jnp.asarray(np.sqrt(known.abar), jnp.float32)
    noise = jnp.asarray(np.sqrt(1 - np.asarray(known.abar)), jnp.float32)

    def value(apply: Any, params: Any, key: Key, k0: Array) -> Any:
        x0 = found.process.to_x(k0)
        index = jax.random.randint(keys.named(key, "index"), x0.shape[:1], 0, len(signal))
        eps = jax.random.normal(keys.named(key, "noise"), x0.shape)
        a, s = (each[index].reshape(-1, 1, 1, 1) for each in (signal, noise))
        guess = apply(params, a * x0 + s * eps, (index + 1) / len(signal))[..., 0]
        return jnp.mean(jnp.square(guess - eps)), {}

    count = len(found.images.train)
    result = training.train(
        config, run, "transferred", images.network_of(config, found, 1), value,
        shuffled(count, min(config.batch, count), seed=config.seed), shape=found.shape,
        steps=config.steps, ema=config.optim.ema, data=found.embedding.encode(found.images.train),
        seed=config.seed,
    )  # fmt: skip
    return training.averaged(result)


def _sampler(config: Any, found: Problem, kind: str, steps: int) -> drawing.Draw:
    net, known, made = images.network_of(config, found, 1), table(config), found.process
    shape, zero = (config.sampler.batch, *found.shape), jnp.zeros(())

    def call(params: Any, key: Key) -> Any:
        def eps(x: Array, time: Array) -> Array:
            return net.apply({"params": params}, x, time)[..., 0]

        network = transfer.transferred(eps, known, made)
        if kind == "jump":
            return drawing.jumps(config, found, "eps", network, key, steps)
        ts = made.times(steps)
        if kind == "ddpm":
            x0 = baselines.ddpm_sample(key, lambda x, t: network(x, t)[..., 0], made, shape, ts)
        else:
            start = jax.random.normal(keys.named(key, "start"), shape)

            def score(x: Array, t: Array) -> Array:
                return -network(x, t)[..., 0] / jnp.sqrt(made.sig2(t)).reshape(-1, 1, 1, 1)

            x0 = samplers.reverse_ou(key, start, score, made, ts).x0
        return found.embedding.decode_x(x0, made), zero + steps + 1, zero, zero

    return call


TITLES = {
    "jump": "Ehrenfest, tau-leaping",
    "diffusion": "reverse diffusion, Euler-Maruyama",
    "ddpm": "DDPM, ancestral",
}


def state(config: Any, run: Any, found: Any) -> None:
    """The table, and claim C4a on images: the jump process is no worse than the diffusion."""
    rows, judge = found["rows"], found["judge"]
    listed: list[dict[str, Any]] = []
    for cell, row in rows.items():
        kind, steps = cell.split()
        listed.append({"sampler": TITLES[kind], "steps": int(steps)} | dict(row))
    listed += [{"sampler": title} | values for title, values in found["floors"].items()]
    run.table(
        "transfer",
        listed,
        caption=f"One DDPM network, {config.steps} steps of training, never trained for jumps; "
        f"{found['outside']:.1%} of the sampler's times lie off its table.",
    )
    column = "fid_feat" if judge.features is not None else "tv_pixel"
    most = max(config.transfer.steps)
    one, other = (rows[f"{kind} {most}"][column] for kind in ("jump", "diffusion"))
    weak = judge.accuracy is not None and judge.accuracy < config.features.accuracy
    verdict = "holds" if one <= config.expect.transfer * other else "refuted"
    reason = f"the classifier's accuracy is {judge.accuracy:.3f} only" if weak else ""
    run.claim(
        "C4a transfer",
        "a DDPM network drives the jump process without retraining as well as its own diffusion",
        measured={"jumps": one, "diffusion": other},
        unit=f"{column} at {most} steps; at most {config.expect.transfer:g} times",
        verdict="undecided" if weak else verdict,
        reason=reason,
    )
