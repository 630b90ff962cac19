"""A long run needs no more memory at its end than at its beginning."""

import json

import pytest

from tests.system.starting import ended, start

pytestmark = pytest.mark.multiprocess


def test_20_000_steps_grow_by_less_than_5_mb(tmp_path):
    """Resident memory of the loop with its lines; the first 2000 steps warm up.

    Without checkpoints: the first twenty grow orbax and its pools by 10 MB, each later one costs
    0.05 MB that tensorstore does not give back.
    """
    flags = ["--config.steps=22000", "--config.log=100", "--config.eval=0", "--config.save=0"]
    memory = tmp_path / "memory.json"
    ended(start(tmp_path / "run", *flags, memory=str(memory)), 0)
    resident = dict(json.loads(memory.read_text()))
    assert max(resident) == 22000
    growth = max(size for step, size in resident.items() if step > 2000) - resident[2000]
    assert growth < 5e6, f"{growth / 1e6:.1f} MB in 20 000 steps"
