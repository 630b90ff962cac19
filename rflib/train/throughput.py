"""How fast a run is: steps, examples and floating-point operations a second, and the MFU."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from jax.sharding import Mesh

from rflib.core.checks import one_of

# Dense peak of one device in flop/s by the first words of its `device_kind`, from the vendors' data
# sheets: bfloat16 (float16 where there is no bfloat16), and float32 products as jax runs them by
# default: TF32 on tensor cores since Ampere, bfloat16 passes on TPUs. Longer names come first.
# A device of TPU v2 and v3 is one of the chip's two cores.
_PEAKS: dict[str, tuple[float, float]] = {
    "NVIDIA B200": (2250e12, 1125e12),
    "NVIDIA GH200": (989e12, 494e12),
    "NVIDIA H200 NVL": (835e12, 417e12),
    "NVIDIA H200": (989e12, 494e12),
    "NVIDIA H100 NVL": (835e12, 417e12),
    "NVIDIA H100 PCIe": (756e12, 378e12),
    "NVIDIA H100": (989e12, 494e12),
    "NVIDIA A100": (312e12, 156e12),
    "NVIDIA A10G": (70e12, 35e12),
    "NVIDIA L40S": (362e12, 183e12),
    "NVIDIA L4": (121e12, 60e12),
    "NVIDIA GeForce RTX 4090": (165e12, 82.6e12),
    "Tesla V100": (125e12, 15.7e12),
    "Tesla T4": (65e12, 8.1e12),
    "TPU v6 lite": (918e12, 918e12),
    "TPU v5 lite": (197e12, 197e12),
    "TPU v5": (459e12, 459e12),
    "TPU v4": (275e12, 275e12),
    "TPU v3": (61.5e12, 61.5e12),
    "TPU v2": (23e12, 23e12),
}


def peak_flops(device: Any, dtype: str = "bfloat16") -> float | None:
    """Peak flop/s of a jax device for products in `dtype` (bfloat16 or float32); None if unknown.

    CPUs are never known: their peak depends on clock and vector width, which jax does not tell.
    """
    column = ("bfloat16", "float32").index(one_of("dtype", dtype, ("bfloat16", "float32")))
    words = device.device_kind.replace("-", " ") + " "
    for kind, peaks in _PEAKS.items():
        if words.startswith(kind + " "):
            return peaks[column]
    return None


def peak_flops_of(mesh: Mesh, dtype: str = "bfloat16") -> float | None:
    """Peak flop/s of all devices of a mesh together; None if unknown."""
    peak = peak_flops(mesh.devices.flat[0], dtype)
    return None if peak is None else peak * mesh.size


class Meter:
    """Rates over intervals of steps, from which paused time (evals, saving) is left out.

    examples: examples (or tokens) of one step over all processes.
    flops: analytic floating-point operations of one step over all processes; XLA's own count takes
        the body of a scan once, whatever its length.
    peak: flop/s of all devices together, as `peak_flops_of(mesh)`; needed for the MFU.
    clock: seconds; for tests.
    """

    def __init__(
        self,
        *,
        examples: float | int | None = None,
        flops: float | int | None = None,
        peak: float | int | None = None,
        step: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._examples, self._flops, self._peak, self._clock = examples, flops, peak, clock
        self._step, self._begun = step, clock()
        self._pauses = 0
        self._lost = 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block does not count. Blocks may nest; `lap` belongs outside of them."""
        begun = self._clock()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._lost += self._clock() - begun

    def lap(self, step: int) -> dict[str, float]:
        """Rates since the last lap, at which `step` steps are done in all; begins the next one.

        steps_per_second, and where known examples_per_second, flops_per_second (model flop/s) and
        mfu (the share of `peak` that these are); paused_seconds. Empty if no time or step passed.
        """
        now = self._clock()
        steps, seconds, lost = step - self._step, now - self._begun - self._lost, self._lost
        self._step, self._begun, self._lost = step, now, 0.0
        if steps <= 0 or seconds <= 0:
            return {}
        rates = {"steps_per_second": steps / seconds, "paused_seconds": lost}
        if self._examples is not None:
            rates["examples_per_second"] = steps * self._examples / seconds
        if self._flops is not None:
            rates["flops_per_second"] = steps * self._flops / seconds
            if self._peak is not None:
                rates["mfu"] = rates["flops_per_second"] / self._peak
        return rates
