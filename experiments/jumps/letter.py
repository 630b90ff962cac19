"""Six losses on the law of a letter over a grid, judged by the exact law that they lead to."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.jumps import training
from rflib.core import keys
from rflib.diffusion.ctmc import Rates, tau_leap
from rflib.diffusion.master_equation import grid_sub_steps, integrate_grid
from rflib.diffusion.metrics import kl_divergence, total_variation
from rflib.methods.ehrenfest import data, losses, ratio, reverse, theory, transition
from rflib.methods.ehrenfest.model import Mlp
from rflib.methods.ehrenfest.process import Process, draw_initial, make_process
from rflib.run.seeds import seeds
from rflib.train.study import study
from rflib.train.task import Cell, Eval, Key, Metrics, Study

MOST_SUB_STEPS = 4096  # larger rates than these can follow are cut, and the share is reported
FLOORS = {"ou": "score", "ratio": "exact", "ce": "exact", "gauss": "gauss", "taylor1": "taylor1",
          "taylor2": "taylor2", "ou_score": "score"}  # fmt: skip


Tabulate = Callable[[Any, Array], tuple[Array, Array]]


class Letter(NamedTuple):
    """The process, the law at time 0 [S + 1, S + 1], and that at t_min."""

    process: Process
    law: np.ndarray
    end: np.ndarray


class Reached(NamedTuple):
    """The exact law that rates lead to. cut: share of the tabulated rates that were lowered."""

    law: np.ndarray
    leaked: float
    cut: float


def letter(config: Any) -> Letter:
    p = config.process
    made = make_process(
        config.letter.size, p.schedule, t_min=p.t_min, t_max=p.t_max, bmin=p.bmin, bmax=p.bmax
    )
    law = data.letter_e(made.size)
    kernel = np.exp(np.asarray(transition.log_pmf(made.size, made.w(made.t_min)), np.float64))
    return Letter(made, law, kernel @ law @ kernel.T)


def measure(config: Any, run: Any) -> dict[str, Any]:
    """floors by rate model, curves and ends by loss and seed, and how leaping adds to them."""
    found = letter(config)
    floors = _floors(config, run, found)
    curves, finals = {}, {}
    for name in config.letter.losses:
        kind = _head(config, name)
        tabulate = _tabulator(found.process, kind, _network(config, found, name))
        result = _train(config, run, found, name, tabulate)
        curves[name] = _curve(run, name, seeds(config))
        weights = {
            seed: training.averaged(result, place) for place, seed in enumerate(seeds(config))
        }
        finals[name] = _finals(config, run, found, name, tabulate, weights)
    return {"floors": floors, "curves": curves, "finals": finals, "letter": found}


def _network(config: Any, found: Letter, name: str) -> Mlp:
    heads = reverse.HEADS[losses.find_loss(name).head] or found.process.size + 1
    return Mlp(found.process, heads, config.letter.width)


def _batch(found: Letter, count: int, seed: int) -> Any:
    """step -> [count, 2] draws of the law by its distribution function."""
    edges = np.cumsum(found.law.ravel())
    edges /= edges[-1]

    def rows(step: int) -> np.ndarray:
        places = np.searchsorted(edges, np.random.default_rng([seed, step]).random(count), "right")
        return np.stack(np.unravel_index(places, found.law.shape), -1).astype(np.int32)

    return rows


def _train(config: Any, run: Any, found: Letter, name: str, tabulate: Tabulate) -> Any:
    m, loss = config.letter, losses.find_loss(name)
    options = training.loss_options(config, name)
    net, all_seeds = _network(config, found, name), seeds(config)

    def value(apply: Any, params: Any, key: Key, k0: Array) -> Any:
        result, aux = loss.value(apply, params, key, k0, found.process, **options)
        return result, training.described(aux)

    def exact(view: Any, key: Key) -> Metrics:
        del key
        return _judge(config, found, tabulate, view["ema"])

    return training.train(
        config, run, f"letter-{name}", net, value,
        [_batch(found, m.batch, seed) for seed in all_seeds],
        shape=(2,), steps=m.steps, ema=m.ema, seeds=all_seeds,
        evals={"law": Eval(exact, every=m.every)}, every=(m.every,),
    )  # fmt: skip


def _head(config: Any, name: str) -> str:
    head = losses.find_loss(name).head
    return config.loss.head if head == "ratio" else head


def _judge(config: Any, found: Letter, tabulate: Tabulate, params: Any) -> dict[str, float]:
    ts = _times(config, found)
    law = reached(config, found, tabulate(params, ts), ts)
    return {
        "tv": total_variation(law.law, found.end),
        "kl": min(kl_divergence(found.end, np.maximum(law.law, 1e-12)), 1e3),
        "leaked": law.leaked,
        "cut": law.cut,
    }


def _tabulator(process: Process, kind: str, net: Mlp) -> Tabulate:
    """(params, ts) -> rates in all states at the times ts, one batch of states a time."""

    def table(params: Any, ts: Array) -> tuple[Array, Array]:
        rates = reverse.rate_function(kind, training.fixed(net, params), process)
        return theory.tabulate(rates, process, ts, 2)

    return jax.jit(table)


def _times(config: Any, found: Letter) -> Array:
    p = found.process
    return jnp.asarray(np.geomspace(p.t_max, p.t_min, config.letter.grid), jnp.float32)


def reached(config: Any, found: Letter, table: tuple[Array, Array], ts: Array) -> Reached:
    """The law at t_min from Bin(S, ½)² with tabulated rates, by Runge-Kutta on all states."""
    birth, death = (np.asarray(each) for each in table)
    times = np.asarray(ts)
    wanted = grid_sub_steps(birth, death, times, share=2.0)
    steps = min(max(64, 1 << (wanted - 1).bit_length()), MOST_SUB_STEPS)
    cut = 0.0
    if wanted > steps:
        width = np.abs(np.diff(times))
        longest = np.maximum(np.append(width, 0), np.append(0, width))
        # Four directions share what a step can follow.
        bound = (2.0 * steps / longest / 4).astype(birth.dtype)[:, None, None, None]
        cut = float(np.mean((birth > bound) | (death > bound)))
        birth, death = np.minimum(birth, bound), np.minimum(death, bound)
    start = np.exp(np.asarray(transition.stationary_log_pmf(found.process.size), np.float64))
    law = _integrate(jnp.asarray(np.outer(start, start), birth.dtype), birth, death, times, steps)
    return Reached(np.asarray(law.p, np.float64), float(law.leaked), cut)


_integrate = jax.jit(integrate_grid, static_argnums=4)


def _curve(run: Any, name: str, all_seeds: tuple[int, ...]) -> dict[int, list[list[float]]]:
    """(step, TV) by seed, from what the phase logged."""
    import json

    curves: dict[int, list[list[float]]] = {seed: [] for seed in all_seeds}
    for text in (run.workdir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line.get("phase") == f"letter-{name}" and "law/tv" in line:
            curves[line["seed"]].append([line["step"], line["law/tv"]])
    return curves


# Exact rate models: what no training removes.


def exact_moments(found: Letter, t: Array) -> tuple[Array, Array, Array]:
    """p_t, and the posterior means and second moments of both coordinates of x_0, on the grid."""
    process, law = found.process, jnp.asarray(found.law)
    kernel = jnp.exp(transition.log_pmf(process.size, process.w(t)))
    p = kernel @ law @ kernel.T
    x = process.to_x(_grid(process.size), law.dtype)
    mean, second = (
        jnp.stack([kernel @ (x[d] ** power * law) @ kernel.T / p for d in (0, 1)])
        for power in (1, 2)
    )
    return p, mean, second


def _grid(size: int) -> Array:
    return jnp.stack(jnp.meshgrid(*[jnp.arange(size + 1)] * 2, indexing="ij"))


def _shifted(p: Array, step: int) -> Array:
    """p at x ± δ in each coordinate, 0 beyond the grid."""
    n, pad = len(p), jnp.pad(p, 1)
    return jnp.stack([pad[1 + step : 1 + step + n, 1:-1], pad[1:-1, 1 + step : 1 + step + n]])


def exact_rates(found: Letter, model: str, t: Array) -> Rates:
    """Reverse rates by a rate model fed with the exact moments: "exact", "score", "taylor1", …"""
    process, k = found.process, _grid(found.process.size)
    p, mean, second = exact_moments(found, t)
    x, w, variance, delta = process.to_x(k, p.dtype), process.w(t), process.sig2(t), process.delta
    m1 = x - w * mean
    m2 = jnp.square(x) - 2 * w * x * mean + w**2 * second
    ratios = {
        "exact": lambda: ratio.Ratios(_shifted(p, 1) / p[None], _shifted(p, -1) / p[None]),
        "score": lambda: ratio.score(-m1 / variance, delta),
        "taylor1": lambda: ratio.taylor1(x, w * mean, variance, delta),
        "taylor2": lambda: ratio.taylor2(m1, m2, variance, delta),
        "gauss": lambda: _smoothed(found, t),
    }[model]()
    return reverse.assemble(ratios, k, process.size, process.rate(t))


def _smoothed(found: Letter, t: Array) -> ratio.Ratios:
    """Ratios of the law that Gaussian noise leads to: the minimiser of the Gaussian-ratio loss."""
    process, law = found.process, jnp.asarray(found.law)
    x = process.to_x(jnp.arange(process.size + 1), law.dtype)
    w, variance = process.w(t), process.sig2(t)

    def log_kernel(shift: float) -> Array:
        gap = x[:, None] + shift - w * x[None]
        return -jnp.square(gap) / (2 * variance)

    def log_law(rows: float, columns: float) -> Array:
        one, other = log_kernel(rows), log_kernel(columns)
        tops = one.max(1, keepdims=True), other.max(1, keepdims=True)
        inner = jnp.exp(one - tops[0]) @ law @ jnp.exp(other - tops[1]).T
        return jnp.log(inner) + tops[0] + tops[1].T

    here, d = log_law(0, 0), process.delta
    up, down = (
        jnp.exp(jnp.stack([log_law(s * d, 0), log_law(0, s * d)]) - here[None]) for s in (1, -1)
    )
    return ratio.Ratios(up, down)


def _floors(config: Any, run: Any, found: Letter) -> dict[str, float]:
    wanted = sorted({"exact", *(FLOORS[name] for name in config.letter.losses)})
    cells = [
        Cell(each, {"size": config.letter.size, "grid": config.letter.grid}) for each in wanted
    ]

    def one(cell: Cell, key: Key) -> Metrics:
        del key
        with jax.enable_x64(True):
            ts = jnp.asarray(np.asarray(_times(config, found), np.float64))
            rates = jax.jit(
                lambda ts: jax.lax.map(lambda t: exact_rates(found, cell.name, t)[:2], ts)
            )
            law = reached(config, found, rates(ts), ts)
        return {"tv": total_variation(law.law, found.end), "cut": law.cut}

    result = study(Study(cells, one), run, name="letter-floors", seed=config.seed)
    return {name: each["tv"] for name, each in result.items()}


# Leaping.


@lru_cache(maxsize=4)
def _leaping(size: int, dimensions: int) -> Any:
    """Tau-leaping with tabulated rates, compiled once: rates depend on the state by look-up."""

    def walk(key: Array, k: Array, birth: Array, death: Array, ts: Array) -> Array:
        def body(k: Array, number: Array) -> tuple[Array, None]:
            place = tuple(k[:, d] for d in range(dimensions))
            rates = Rates(
                *(
                    jnp.stack([table[number, d][place] for d in range(dimensions)], -1)
                    for table in (birth, death)
                )
            )
            at = jax.random.fold_in(key, number)
            return tau_leap(at, k, rates, ts[number] - ts[number + 1], size).k, None

        return jax.lax.scan(body, k, jnp.arange(ts.shape[0] - 1))[0]

    return jax.jit(walk)


def _finals(
    config: Any,
    run: Any,
    found: Letter,
    name: str,
    tabulate: Tabulate,
    weights: Mapping[int, Any],
) -> dict[str, Metrics]:
    """The law of each seed at the end, and of the first seed's leaping samples."""
    m, size = config.letter, found.process.size
    base = {"loss": name, "steps": m.steps, "batch": m.batch}
    cells = [Cell(f"seed {seed}", base | {"seed": seed}) for seed in weights]
    cells += [Cell(f"{n} leaps", base | {"leaps": n, "samples": m.samples}) for n in m.leaps]
    first = next(iter(weights))

    def one(cell: Cell, key: Key) -> Metrics:
        if "leaps" not in cell.arguments:
            seed = cell.arguments["seed"]
            ts = _times(config, found)
            law = reached(config, found, tabulate(weights[seed], ts), ts)
            if seed == first:
                run.array(f"letter-{name}", law.law, caption="the exact law after training")
            return {"tv": total_variation(law.law, found.end), "leaked": law.leaked,
                    "cut": law.cut}  # fmt: skip
        ts = found.process.times(cell.arguments["leaps"])
        birth, death = tabulate(weights[first], ts)
        start = draw_initial(keys.named(key, "start"), (m.samples, 2), found.process)
        k = _leaping(size, 2)(key, start, birth, death, ts)
        flat = np.ravel_multi_index(tuple(np.asarray(k).T), found.law.shape)
        law = np.bincount(flat, minlength=found.law.size).reshape(found.law.shape) / m.samples
        return {"tv": total_variation(law, found.end)}

    return study(Study(cells, one), run, name=f"letter-{name}-law", seed=config.seed)


def sampling_floor(found: Letter, samples: int) -> float:
    """Expected TV of a histogram of so many true samples, by the normal approximation."""
    p = found.end.ravel()
    return float(0.5 * np.sum(np.sqrt(2 * p * (1 - p) / (np.pi * samples))))
