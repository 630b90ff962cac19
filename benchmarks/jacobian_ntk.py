"""Kernels of Kim and Yang (ICML 2024): the fast forms against what one would write first.

    python -m benchmarks.jacobian_ntk

Three comparisons in one process, float64 unless said: all blocks of the limit kernel by the
recursion and by differentiating the scalar kernel, written from its formula, twice; the kernel of
a finite network by layers and by the Jacobian over all parameters (float32), at the largest width
that fits the memory given; and one product with the kernel of images, which is never formed. Sides
alternate, so that the load of other programs meets them alike. Memory is the compiler's count of
temporaries and outputs.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rflib.methods.jacobian_ntk.data import unit_rows
from rflib.methods.jacobian_ntk.empirical import empirical_jntk
from rflib.methods.jacobian_ntk.kernels import jacobian_ntk
from rflib.methods.jacobian_ntk.network import Mlp, init
from rflib.methods.jacobian_ntk.products import jntk_matvec
from rflib.train.host import tune_allocator

MIB = 2**20


class Side(NamedTuple):
    """A compiled program: a call, the seconds its compilation took, bytes of its memory."""

    call: Callable[[], Any]
    compile: float
    memory: int


def compiled(function: Callable[..., Any], *arguments: Any) -> Side:
    """Compiles ahead of time and runs once."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    found: Any = program.memory_analysis()
    memory = found.temp_size_in_bytes + found.output_size_in_bytes
    jax.block_until_ready(program(*arguments))
    return Side(lambda: program(*arguments), seconds, memory)


def alternate(sides: list[Side], blocks: int) -> list[list[float]]:
    """Seconds of each side in each block, one call after the other."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(blocks):
        for side, times in zip(sides, seconds, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(side.call())
            times.append(time.perf_counter() - begin)
    return seconds


def gelu(a: jax.Array, b: jax.Array, s: jax.Array) -> jax.Array:
    """E[φ(u) φ(v)] of variances a and b and covariance s, as printed."""
    d = (1 + a) * (1 + b) - s * s
    inner = a * (b * (1 + a) - s * s) / (1 + a) + s * s / (1 + b)
    turn = jnp.arcsin(s / jnp.sqrt((1 + a) * (1 + b))) / (2 * math.pi)
    return s * (0.25 + turn) + inner / (2 * math.pi * jnp.sqrt(d))


def erf(a: jax.Array, b: jax.Array, s: jax.Array) -> jax.Array:
    return 2 / math.pi * jnp.arcsin(2 * s / jnp.sqrt((1 + 2 * a) * (1 + 2 * b)))


def twice(net: Mlp, x: jax.Array) -> jax.Array:
    """All blocks [N, N, 1+d, 1+d] by differentiating the scalar NTK in x and in x'."""
    dual = {"gelu": gelu, "erf": erf}[str(net.activation)]
    slope, gain = jax.grad(dual, 2), net.gain**2

    def scalar(u: jax.Array, v: jax.Array) -> jax.Array:
        def layer(state: tuple[jax.Array, ...], _: None) -> tuple[Any, None]:
            a, b, s, t = state
            sigma = gain * dual(a, b, s)
            theta = sigma + gain * t * slope(a, b, s)
            return (gain * dual(a, a, a), gain * dual(b, b, b), sigma, theta), None

        start = (u @ u, v @ v, u @ v, u @ v)
        return jax.lax.scan(layer, start, None, net.depth)[0][3]

    def left(u: jax.Array, v: jax.Array) -> jax.Array:
        value, slope = jax.value_and_grad(scalar)(u, v)
        return jnp.concatenate([value[None], slope])

    def block(u: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.concatenate([left(u, v)[:, None], jax.jacfwd(left, 1)(u, v)], 1)

    return jax.vmap(lambda u: jax.vmap(lambda v: block(u, v))(x))(x)


def rows(n: int, d: int) -> np.ndarray:
    return unit_rows(np.random.default_rng(0).normal(size=(n, d)))


def report(name: str, fast: Side, slow: Side, seconds: list[list[float]]) -> None:
    paired = statistics.median(s / f for f, s in zip(*seconds, strict=True))
    best = min(seconds[1]) / min(seconds[0])
    print(
        f"{name:28}{1e3 * min(seconds[0]):10.1f}{1e3 * min(seconds[1]):11.1f}{paired:9.1f}"
        f"{best:9.1f}{fast.compile:9.2f}{slow.compile:9.2f}{fast.memory / MIB:9.0f}"
        f"{slow.memory / MIB:9.0f}",
        flush=True,
    )


def limits(activation: str, sizes: list[int], blocks: int) -> None:
    """The recursion against double automatic differentiation."""
    for n in sizes:
        for d in (4, 11):
            for depth in (1, 3, 11):
                net = Mlp(depth, activation)
                with jax.enable_x64(True):
                    x = jnp.asarray(rows(n, d))
                    fast = compiled(lambda x, net=net: jacobian_ntk(net, x), x)
                    slow = compiled(lambda x, net=net: twice(net, x), x)
                    gap = jnp.abs(fast.call() - slow.call()).max() / jnp.abs(fast.call()).max()
                    assert float(gap) < 1e-12, f"the two kernels differ by {float(gap):.1e}"
                    seconds = alternate([fast, slow], blocks)
                report(f"limit  N={n} d={d} L={depth}", fast, slow, seconds)


def networks(activation: str, memory: float, blocks: int) -> None:
    """Contraction by layers against the Jacobian over all parameters."""
    n, d, depth = 32, 11, 2
    width = 64
    while 2.5 * 4 * n * (1 + d) * (2 * width) ** 2 < memory * 2**30:
        width *= 2
    net = Mlp(depth, activation)
    params = init(jax.random.key(0), net, d, width)
    x = jnp.asarray(rows(n, d), jnp.float32)

    def kernel(form: str) -> Callable[..., Any]:
        return lambda params, x: empirical_jntk(net, params, x, form=form)

    fast, slow = compiled(kernel("layers"), params, x), compiled(kernel("explicit"), params, x)
    gap = jnp.abs(fast.call() - slow.call()).max() / jnp.abs(fast.call()).max()
    assert float(gap) < 1e-4, f"the two kernels differ by {float(gap):.1e}"
    report(f"network N={n} d={d} n={width}", fast, slow, alternate([fast, slow], blocks))


def matrix_free(activation: str, blocks: int) -> None:
    """A product with the kernel of 1000 images of 784 pixels."""
    n, d, net = 1000, 784, Mlp(3, activation)
    with jax.enable_x64(True):
        x = jnp.asarray(rows(n, d))
        v = jnp.asarray(np.random.default_rng(1).normal(size=(n, 1 + d)))
        side = compiled(lambda x, v: jntk_matvec(net, x, v, chunk=250), x, v)
        seconds = alternate([side], blocks)[0]
    dense = 8 * (n * (1 + d)) ** 2
    print(
        f"\nproduct with the kernel of N={n}, d={d}, L=3: best {min(seconds):.2f} s, median "
        f"{statistics.median(seconds):.2f} s, {side.memory / MIB:.0f} MiB "
        f"(the matrix would take {dense / 2**40:.1f} TiB), compile {side.compile:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--activation", default="gelu", choices=("gelu", "erf"), help="φ")
    parser.add_argument("--blocks", type=int, default=5, help="alternating calls a side")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256], help="N of the limits")
    parser.add_argument("--memory", type=float, default=2.0, help="GiB for all parameter gradients")
    arguments = parser.parse_args()
    tuned = tune_allocator()
    print(
        f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}, allocator tuned {tuned}, "
        f"{arguments.activation}"
    )
    print("ratio: slow over fast; on a busy machine trust best / best")
    print(
        f"{'':28}{'fast ms':>10}{'slow ms':>11}{'paired':>9}{'best':>9}{'fast':>9}{'slow':>9}"
        f"{'fast':>9}{'slow':>9}\n{'':28}{'':10}{'':11}{'ratio':>9}{'ratio':>9}{'comp s':>9}"
        f"{'comp s':>9}{'MiB':>9}{'MiB':>9}"
    )
    limits(arguments.activation, arguments.rows, arguments.blocks)
    networks(arguments.activation, arguments.memory, arguments.blocks)
    matrix_free(arguments.activation, arguments.blocks)


if __name__ == "__main__":
    main()
