"""Rates on a fake clock: what was paused is not counted, and the MFU follows analytic flops."""

from types import SimpleNamespace

import jax
import pytest

from rflib.core.errors import UserError
from rflib.train.throughput import Meter, peak_flops


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_rates_and_mfu_follow_from_steps_flops_and_seconds():
    clock = Clock()
    meter = Meter(examples=32, flops=4e10, peak=1e12, step=100, clock=clock)
    clock.sleep(2.0)
    assert meter.lap(110) == {
        "steps_per_second": 5.0,
        "paused_seconds": 0.0,
        "examples_per_second": 160.0,
        "flops_per_second": 2e11,
        "mfu": 0.2,
    }


@pytest.mark.parametrize("pause", [0.0, 3.0, 1e4])
def test_paused_time_changes_no_rate_and_nested_pauses_count_once(pause):
    clock = Clock()
    meter = Meter(examples=8, clock=clock)
    clock.sleep(1.0)
    with meter.paused():
        clock.sleep(pause)
        with meter.paused():
            clock.sleep(pause)
        clock.sleep(pause)
    clock.sleep(3.0)
    rates = meter.lap(8)
    assert rates["steps_per_second"] == pytest.approx(2.0)
    assert rates["examples_per_second"] == pytest.approx(16.0)
    assert rates["paused_seconds"] == pytest.approx(3 * pause)


def test_time_in_a_pause_that_raised_does_not_count_either():
    clock = Clock()
    meter = Meter(clock=clock)
    with pytest.raises(OSError), meter.paused():
        clock.sleep(9.0)
        raise OSError
    clock.sleep(1.0)
    assert meter.lap(1)["steps_per_second"] == 1.0


def test_each_lap_stands_for_itself():
    clock = Clock()
    meter = Meter(clock=clock)
    clock.sleep(1.0)
    assert meter.lap(10)["steps_per_second"] == 10
    with meter.paused():
        clock.sleep(5.0)
    clock.sleep(1.0)
    assert meter.lap(12) == {"steps_per_second": 2.0, "paused_seconds": 5.0}
    clock.sleep(1.0)
    assert meter.lap(12) == {}  # no step
    assert meter.lap(13) == {}  # no time


def test_without_examples_flops_or_peak_their_rates_are_absent():
    clock = Clock()
    for known, absent in (
        ({}, "flops_per_second"),
        ({"flops": 1.0}, "mfu"),
        ({"peak": 1.0}, "mfu"),
    ):
        meter = Meter(**known, clock=clock)
        clock.sleep(1.0)
        rates = meter.lap(1)
        assert absent not in rates and "examples_per_second" not in rates


@pytest.mark.parametrize(
    ("kind", "bfloat16", "float32"),
    [
        ("NVIDIA H200", 989e12, 494e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 494e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 156e12),
        ("NVIDIA L40S", 362e12, 183e12),
        ("NVIDIA L4", 121e12, 60e12),
        ("Tesla V100-SXM2-16GB", 125e12, 15.7e12),
        ("TPU v5 lite", 197e12, 197e12),
        ("TPU v5", 459e12, 459e12),
    ],
)
def test_a_device_kind_finds_its_own_peak_not_that_of_a_shorter_name(kind, bfloat16, float32):
    device = SimpleNamespace(device_kind=kind)
    assert (peak_flops(device), peak_flops(device, "float32")) == (bfloat16, float32)


def test_unknown_devices_have_no_peak():
    assert peak_flops(jax.devices("cpu")[0]) is None
    assert peak_flops(SimpleNamespace(device_kind="NVIDIA L40")) is None
    with pytest.raises(UserError, match="dtype"):
        peak_flops(jax.devices("cpu")[0], "int8")
