"""Processor seconds of tau-leaping with an analytic score: one scan, one call a step, and NumPy.

    python -m benchmarks.ehrenfest

S = 256, 64 coordinates, 256 images, 500 steps, the score of a mixture and no network, so that the
sampler alone is measured. The three sides take turns on one core (`taskset -c 0`), in processor
time, so that other programs change little; the result is the median of the ratios of neighbouring
rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rflib.methods.ehrenfest import process, reverse, samplers, theory

SIZE, WIDTH, BATCH, STEPS = 256, 64, 256, 500
MIXTURE = theory.BIMODAL


def numpy_side(made: process.Process, start: np.ndarray, steps: int) -> Callable[[], None]:
    """The same leaps as a loop over NumPy arrays, with its Poisson generator."""
    ts = np.linspace(made.t_max, made.t_min, steps + 1)
    w, rate = (np.asarray(f(jnp.asarray(ts))) for f in (made.w, made.rate))
    means, stds, weights = (np.array(each)[:, None, None] for each in MIXTURE)

    def run() -> None:
        rng, k = np.random.default_rng(0), start.copy()
        for i in range(steps):
            x = (2 * k - SIZE) / np.sqrt(SIZE)
            variance = (w[i] * stds) ** 2 + 1 - w[i] ** 2
            gap = (x - w[i] * means) / variance
            logs = np.log(weights) - np.log(variance) / 2 - gap**2 * variance / 2
            shares = np.exp(logs - logs.max(0))
            score = -(shares / shares.sum(0) * gap).sum(0)
            birth = rate[i] * (k + 1) / 2 * np.maximum(1 + made.delta * score, 0)
            death = rate[i] * (SIZE - k + 1) / 2 * np.maximum(1 - made.delta * score, 0)
            h = ts[i] - ts[i + 1]
            k = np.clip(k + rng.poisson(h * birth) - rng.poisson(h * death), 0, SIZE)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    made = process.make_process(SIZE, "song")
    key = jax.random.key(0)
    start = process.draw_initial(key, (BATCH, WIDTH), made)
    rates = reverse.rate_function(
        "score", lambda x, t: MIXTURE.score(x, made.w(t)[0])[..., None], made
    )
    ts = made.times(given.steps)
    whole = jax.jit(lambda key, k: samplers.sample(key, k, rates, made, ts).k)
    single = jax.jit(lambda key, k, ts: samplers.sample(key, k, rates, made, ts).k)

    def scan() -> None:
        whole(key, start).block_until_ready()

    def dispatched() -> None:
        k = start
        for i in range(given.steps):
            k = single(jax.random.fold_in(key, i), k, ts[i : i + 2])
        k.block_until_ready()

    sides = {
        "one scan": scan,
        "a call a step": dispatched,
        "NumPy": numpy_side(made, np.asarray(start), given.steps),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in (scan, dispatched):
        call()  # compile
    for _ in range(given.rounds):
        for name, call in sides.items():
            begin = time.process_time()
            call()
            times[name].append(time.process_time() - begin)
    for name, each in times.items():
        ratio = statistics.median(a / b for a, b in zip(each, times["one scan"], strict=True))
        print(f"{name:14s} {statistics.median(each):7.3f} s  {ratio:6.2f} x one scan")


if __name__ == "__main__":
    main()
