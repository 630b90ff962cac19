"""Milliseconds of one Leddam training step against an eager PyTorch peer, in one process.

    pip install torch==2.13.0 && python -m benchmarks.leddam

The peer is written lean from the paper's equations: one batched attention over the stacked delayed
copies, no loop, no mixed precision. Blocks of both sides alternate, so that the load of other
programs meets them alike; the result is the median of the ratios of neighbouring blocks, once with
one step a call and once with K steps a call (`lax.scan`).
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn
from torch.nn import functional

from rflib.methods.leddam import theory
from rflib.methods.leddam.losses import mse
from rflib.methods.leddam.model import Leddam
from rflib.nn import variables
from rflib.train.host import tune_allocator

BATCH, SERIES, PAST, FUTURE, WIDTH, PERIOD, TAPS, RATE = 128, 7, 96, 96, 256, 64, 25, 1e-4


class TorchAttention(nn.Module):
    """One head, D -> D maps with biases; queries [*, Q, D], tokens [*, J, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, queries: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.query(queries) @ self.key(tokens).transpose(-1, -2) * WIDTH**-0.5
        return self.output(torch.softmax(scores, -1) @ self.value(tokens))


class TorchBlock(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.attention = TorchAttention()
        self.batch_norm = nn.BatchNorm1d(SERIES)
        self.expand, self.contract = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "auto":
            tokens = torch.stack([x.roll(-j * PERIOD, -1) for j in range(WIDTH // PERIOD)], 2)
            attended = self.attention(x[:, :, None], tokens)[:, :, 0]
        else:
            attended = self.attention(x, x)
        x = self.batch_norm(attended + x)
        return self.layer_norm(self.contract(functional.gelu(self.expand(x))) + x)


class TorchLeddam(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(PAST, WIDTH)
        self.position = nn.Parameter(torch.randn(SERIES, WIDTH) * 0.1)
        bell = torch.exp(-(((torch.arange(TAPS) - TAPS // 2) / 2) ** 2))
        self.kernel = nn.Parameter(torch.softmax(bell, 0)[None, None])
        self.shift = nn.Parameter(torch.zeros(1))
        self.auto, self.channel = TorchBlock("auto"), TorchBlock("channel")
        self.main_head, self.residual_head = nn.Linear(WIDTH, FUTURE), nn.Linear(WIDTH, FUTURE)
        for head in (self.main_head, self.residual_head):
            nn.init.constant_(head.weight, 1 / WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        mean = x.mean(-1, keepdim=True)
        std = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        embedded = self.embedding((x - mean) / std) + self.position
        rows = functional.pad(embedded, (TAPS // 2, TAPS // 2), mode="replicate")
        main = functional.conv1d(rows.view(-1, 1, rows.shape[-1]), self.kernel, self.shift)
        main = main.view_as(embedded)
        residual = embedded - main
        mixed = self.auto(residual) + self.channel(residual)
        return ((self.main_head(main) + self.residual_head(mixed)) * std + mean).transpose(1, 2)


def torch_side(past: torch.Tensor, future: torch.Tensor, fused: bool) -> Callable[[int], float]:
    """block(n) -> seconds for n steps."""
    model = TorchLeddam()
    adam = torch.optim.Adam(model.parameters(), RATE, fused=fused)

    def block(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            adam.zero_grad()
            functional.mse_loss(model(past), future).backward()
            adam.step()
        return time.perf_counter() - begin

    return block


def jax_side(past: jax.Array, future: jax.Array, scan: int, form: str) -> Callable[[int], float]:
    """block(n) -> seconds for n steps, `scan` of them in one call."""
    model = Leddam(SERIES, PAST, FUTURE, WIDTH, TAPS, PERIOD, form=form)
    adam = optax.adam(RATE)

    def step(state: tuple, _: None) -> tuple[tuple, jax.Array]:
        params, extra, opt = state

        def loss(params: dict) -> tuple[jax.Array, dict]:
            both = {"params": params, "extra": extra}
            forecast, new = variables.apply(model, both, past, train=True)
            return jnp.mean(mse(forecast, future)), new

        (value, extra), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = adam.update(gradient, opt, params)
        return (optax.apply_updates(params, updates), extra, opt), value

    def call(state: tuple) -> tuple[tuple, jax.Array]:
        return step(state, None) if scan == 1 else jax.lax.scan(step, state, None, scan)

    def start(key: jax.Array) -> tuple:
        first = variables.init(model, key, (1, PAST, SERIES))
        return first["params"], first["extra"], adam.init(first["params"])

    state = jax.jit(start)(jax.random.key(0))
    run = jax.jit(call, donate_argnums=0).lower(state).compile()
    holder = [state]

    def block(steps: int) -> float:
        begin = time.perf_counter()
        state, value = holder[0], None
        for _ in range(steps // scan):
            state, value = run(state)
        jax.block_until_ready((state, value))
        holder[0] = state
        return time.perf_counter() - begin

    return block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scan", type=int, default=10, help="steps a call in the second row")
    parser.add_argument("--blocks", type=int, default=15, help="alternating blocks a side")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's; XLA takes all cores")
    parser.add_argument("--no-allocator", action="store_true", help="leave glibc's thresholds")
    arguments = parser.parse_args()
    tuned = False if arguments.no_allocator else tune_allocator()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    past = torch.randn(BATCH, PAST, SERIES).cumsum(1)
    future = torch.randn(BATCH, FUTURE, SERIES)
    arrays = jnp.asarray(past.numpy()), jnp.asarray(future.numpy())
    steps = arguments.scan
    sides = {
        "torch eager, default Adam": torch_side(past, future, fused=False),
        "torch eager, fused Adam": torch_side(past, future, fused=True),
        "rflib, 1 step a call": jax_side(*arrays, 1, "efficient"),
        f"rflib, {steps} steps a call": jax_side(*arrays, steps, "efficient"),
        "rflib, equations as printed, 1 step": jax_side(*arrays, 1, "literal"),
    }
    for block in sides.values():
        block(steps)
    seconds = {name: [] for name in sides}
    for _ in range(arguments.blocks):
        for name, block in sides.items():
            seconds[name].append(block(steps) / steps)

    flops = BATCH * theory.training_flops(SERIES, PAST, FUTURE, d_model=WIDTH, n_layers=1)
    print(f"D={WIDTH} N={SERIES} batch={BATCH}, {flops / 1e9:.1f} GFLOP a step by the equations")
    print(
        f"cores {os.cpu_count()}, torch threads {torch.get_num_threads()}, "
        f"allocator tuned {tuned}, load {os.getloadavg()[0]:.1f}"
    )
    report(seconds)


def report(seconds: dict[str, list[float]]) -> None:
    """The table: times, and how many times faster than the faster of the two peers."""
    peer = seconds["torch eager, fused Adam"]
    print("ratio: peer with fused Adam over row; on a busy machine trust best / best")
    print(f"{'':38}{'median ms':>10}{'best ms':>9}{'paired median':>15}{'best / best':>13}")
    for name, values in seconds.items():
        paired = statistics.median(p / v for p, v in zip(peer, values, strict=True))
        print(
            f"{name:38}{1e3 * statistics.median(values):10.1f}{1e3 * min(values):9.1f}"
            f"{paired:15.2f}{min(peer) / min(values):13.2f}"
        )


if __name__ == "__main__":
    main()
