"""A mixture on the line with its analytic score: how the jump process tends to its limit in S."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rflib.diffusion.ctmc import Rates
from rflib.diffusion.metrics import total_variation
from rflib.methods.ehrenfest import chains, process, ratio, reverse, theory, transition
from rflib.methods.ehrenfest import samplers as jumps
from rflib.methods.ehrenfest.process import Process
from rflib.train.study import study
from rflib.train.task import Cell, Key, Metrics, Study

MIXTURE = theory.BIMODAL
FRAMES = 200  # times of a drawn path
LIMIT_TIME = 0.7  # time at which the transition law is compared with its limit
MOMENT_TIME = 0.5  # time at which the reverse jump moments are


def measure(config: Any, run: Any) -> dict[str, Metrics]:
    """All numbers and drawn arrays, one cell a size, kept as they are finished."""
    cells = [
        Cell(f"S={size}", {"size": size, "t_max": config.mixture.t_max})
        for size in config.mixture.sizes
    ]
    cells.append(Cell("chains", {}))
    m = config.mixture
    shown = {"size": m.shown, "paths": m.paths, "samples": m.samples, "steps": m.steps}
    cells.append(Cell("paths", shown | {"t_max": m.t_max}))

    def one(cell: Cell, key: Key) -> Metrics:
        if cell.name == "chains":
            return other_chains()
        if cell.name == "paths":
            run.array(
                "paths", caption="what the figure of paths shows", **_paths(key, **cell.arguments)
            )
            return {}
        return of_size(**cell.arguments)

    return study(Study(cells, one), run, name="mixture", seed=config.seed)


def exact_rates(made: Process, p0: np.ndarray) -> reverse.RateFunction:
    """The true reverse rates of one coordinate with the law p0 at time 0."""

    def rates(k: Array, t: Array | float) -> Rates:
        table = transition.log_pmf(made.size, made.w(t))
        log_p = jax.scipy.special.logsumexp(table + jnp.log(jnp.asarray(p0))[None], axis=1)
        return reverse.assemble(ratio.marginal(log_p, k), k, made.size, made.rate(t))

    return rates


def score_rates(made: Process, rate_at: str = "shift") -> reverse.RateFunction:
    """Rates by the score of the continuous mixture, which knows nothing of the lattice."""
    return reverse.rate_function(
        "score", lambda x, t: MIXTURE.score(x, made.w(t)[0])[..., None], made, rate_at=rate_at
    )


def of_size(size: int, t_max: float) -> Metrics:
    """What is exact at one S: no samples, no steps, double precision."""
    with jax.enable_x64(True):
        made = process.make_process(size, "constant", t_max=t_max)
        p0 = MIXTURE.lattice(size)
        start = np.exp(np.asarray(transition.stationary_log_pmf(size), np.float64))
        end = theory.marginal(p0, float(made.w(made.t_min)))
        laws = {
            at: theory.reverse_law(score_rates(made, at), made, start) for at in ("shift", "here")
        }
        found: dict[str, Any] = {
            f"score_{at}": total_variation(law, end) for at, law in laws.items()
        }
        if size <= 100:  # the tables of larger S are slow to rebuild at every time
            first = theory.marginal(p0, float(made.w(made.t_max)))
            law = theory.reverse_law(exact_rates(made, p0), made, first, rtol=1e-9)
            found["exact"] = total_variation(law, end)
        return found | _limits(made, p0)


def _limits(made: Process, p0: np.ndarray) -> dict[str, Any]:
    """Distance of the transition law from its limit, and of reverse jump moments from theirs."""
    size = made.size
    k0 = round(size / 2 + 1 / made.delta)
    w = float(np.exp(-LIMIT_TIME))
    x0 = made.delta * (k0 - size / 2)
    forward = total_variation(theory.transition_column(size, k0, w), theory.limit_mass(size, x0, w))
    w = float(np.exp(-MOMENT_TIME))
    p = theory.marginal(p0, w)
    k = jnp.arange(size + 1)
    rates = reverse.assemble(ratio.marginal(jnp.log(jnp.asarray(p)), k), k, size, 1.0)
    drift, spread = process.jump_moments(rates, made.delta)
    x = made.to_x(k)
    limit = x + 2 * MIXTURE.score(x, w)
    return {
        "transition": forward,
        "drift": float(p @ np.abs(np.asarray(drift - limit))),
        "diffusion": float(p @ np.abs(np.asarray(spread) - 2)),
    }


def other_chains() -> Metrics:
    """The conditional expectation of ratios against the true ratio, for three kinds of chains."""
    rng, states = np.random.default_rng(0), 6
    with jax.enable_x64(True):
        kinds = {
            "Ehrenfest": chains.ehrenfest(states - 1),
            "uniform": chains.uniform(states),
            "absorbing": chains.absorbing(states),
        }
        gaps = {}
        for name, chain in kinds.items():
            p0, w = rng.dirichlet(np.ones(chain.values)), jnp.asarray(0.6)
            law = np.exp(np.asarray(chain.log_law(w)))[:, : chain.values] * p0[None]
            gap = 0.0
            truth = np.asarray(chains.marginal_ratios(chain, jnp.asarray(p0), w))
            for x in range(chain.states):
                places = np.flatnonzero(law[x] > 0)
                given = jnp.asarray(places, jnp.int32)
                targets = chains.conditional_ratios(chain, jnp.full(given.shape, x), given, w)
                mean = law[x, places] / law[x].sum() @ np.asarray(targets)
                gap = max(gap, float(np.abs(mean - truth[x]).max()))
            gaps[name] = gap
    return gaps


def _paths(
    key: Key, size: int, paths: int, samples: int, steps: int, t_max: float
) -> dict[str, Any]:
    """Paths of both reverse processes on one time grid, and samples for histograms."""
    made = process.make_process(size, "constant", t_max=t_max)
    keys = jax.random.split(key, 5)
    ts = made.times(FRAMES)
    k = process.draw_initial(keys[0], (paths, 1), made)
    exact = jax.jit(lambda key, k: jumps.simulate(key, k, score_rates(made), ts).states)(keys[1], k)

    def score(x: Array, t: Array) -> Array:
        return MIXTURE.score(x, made.w(t)[0])

    def walk(key: Array, k: Array) -> Array:
        found = jumps.reverse_ou(key, made.to_x(k), score, made, ts, trace_every=1)
        assert found.trace is not None
        return found.trace

    limit = jax.jit(walk)(keys[2], k)
    many = process.draw_initial(keys[3], (samples, 1), made)
    fine = made.times(steps)
    jumped = jax.jit(lambda key, k: jumps.sample(key, k, score_rates(made), made, fine))
    flowed = jax.jit(lambda key, k: jumps.reverse_ou(key, made.to_x(k), score, made, fine).x)
    counts = np.bincount(np.asarray(jumped(keys[4], many).k)[:, 0], minlength=size + 1)
    moved = np.asarray(made.to_k(flowed(keys[4], many)))[:, 0]
    return {
        "times": ts,
        "jump": np.concatenate([made.to_x(k)[:, None], made.to_x(exact)], 1)[..., 0],
        "limit": np.concatenate([made.to_x(k)[None], limit])[..., 0].T,
        "jump_histogram": counts / samples,
        "limit_histogram": np.bincount(moved, minlength=size + 1) / samples,
    }


def by_size(found: Mapping[str, Metrics], name: str) -> tuple[list[int], list[float]]:
    """(sizes, values) of a number that was measured at several S."""
    rows = [(int(cell[2:]), each[name]) for cell, each in found.items() if cell.startswith("S=")]
    return [size for size, _ in rows], [value for _, value in rows]


def slope(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """Least-squares slope of log value against log S; None for fewer than two sizes."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


TITLES = {
    "transition": "forward transition law against its limit, TV",
    "drift": "reverse drift against x + 2 score, mean error",
    "diffusion": "reverse diffusion against 2, mean error",
    "score_shift": "law reached with the continuous score, TV",
    "score_here": "the same with rates at the state itself, TV",
}


def state(config: Any, run: Any, found: Mapping[str, Metrics]) -> None:
    """Table and claims C1 to C3, C4a and C5's closed form."""
    sizes, _ = by_size(found, "drift")
    slopes = {name: slope(*by_size(found, name)) for name in TITLES}
    rows = []
    for name, title in TITLES.items():
        values = by_size(found, name)[1]
        row: dict[str, Any] = {"distance": title}
        row |= {f"S={size}": value for size, value in zip(sizes, values, strict=True)}
        rows.append(row | {"slope in log S": slopes[name]})
    caption = "Exact, by the integrated master equation: nothing here is sampled."
    run.table("mixture", rows, caption=caption)
    exact = max(each["exact"] for each in found.values() if "exact" in each)
    _claim(
        run,
        "C1",
        "the time reversal of a jump process is exact: integrated with true ratios it returns p_t",
        exact,
        "TV at t = 0.01",
        exact < config.expect.exact,
    )
    low, high = config.expect.slope
    texts = {
        "C2": ("the scaled process tends to Ornstein-Uhlenbeck as S grows", ("transition",)),
        "C3": (
            "the reversed process tends to the reversed diffusion: both jump moments",
            ("drift", "diffusion"),
        ),
        "C4a": (
            "the score of the continuous process drives the reversed jump process, with an error "
            "of order 1/S",
            ("score_shift",),
        ),
    }
    for id, (text, names) in texts.items():
        chosen = [slopes[name] for name in names]
        if any(each is None for each in chosen):
            run.claim(id, text, measured=None, verdict="undecided", reason="one size has no slope")
            continue
        held = all(low <= each <= high for each in chosen if each is not None)
        _claim(run, id, text, chosen[0] if len(chosen) == 1 else chosen,
               "slope of log error in log S", held)  # fmt: skip
    gaps = dict(found["chains"])
    _claim(
        run,
        "C5",
        "conditional expectations of transition ratios are the ratios of marginals, for any chain",
        max(gaps.values()),
        "largest error over Ehrenfest, uniform and absorbing chains",
        max(gaps.values()) < 1e-10,
    )


def _claim(run: Any, id: str, text: str, measured: Any, unit: str, held: bool) -> None:
    verdict = "holds" if held else "refuted"
    run.claim(id, text, measured=measured, unit=unit, verdict=verdict)
