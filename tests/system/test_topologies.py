"""One run on one device, on eight, on a mesh of two axes, sharded, and on two processes."""

import numpy as np
import pytest

from tests.system.starting import (
    EVERY_STEP,
    assert_same,
    checkpoints,
    ended,
    here,
    lines,
    results,
    rewound,
    start,
)

pytestmark = pytest.mark.multiprocess

MESHES = {
    "one": {"mesh": {"data": 1}},
    "data": {"mesh": {"data": 8}},
    "model": {"mesh": {"data": 4, "model": 2}, "rules": "model"},
    "fsdp": {"mesh": {"data": 8}, "rules": "fsdp"},
}


@pytest.fixture(scope="module")
def on(tmp_path_factory, undisturbed):
    """on(topology): the directory of a run of 100 steps there."""
    made = {}

    def run(topology):
        if topology == "processes":
            return undisturbed(*EVERY_STEP, processes=2)
        if topology not in made:
            workdir = tmp_path_factory.mktemp(topology) / "run"
            made[topology] = here(workdir, *EVERY_STEP, **MESHES[topology])
        return made[topology]

    return run


def losses(workdir):
    return np.array([line["train/loss"] for line in lines(workdir) if "train/loss" in line])


@pytest.mark.parametrize("topology", ["data", "model", "fsdp", "processes"])
def test_every_topology_gives_the_losses_of_one_device(on, topology):
    """float32 sums in another order: relative 2e-6 at the first step, 1e-5 over 100 steps."""
    expected, found = losses(on("one")), losses(on(topology))
    assert found.shape == expected.shape == (100,)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("topology", MESHES)
def test_the_same_topology_twice_gives_the_same_bits(on, tmp_path, topology):
    assert_same(here(tmp_path / "run", *EVERY_STEP, **MESHES[topology]), on(topology))


@pytest.mark.parametrize(
    ("source", "target"),
    [("data", "one"), ("one", "model"), ("model", "fsdp"), ("processes", "model")],
)
def test_a_run_goes_on_where_another_topology_left_it(on, tmp_path, source, target):
    workdir = rewound(on(source), tmp_path / "run", checkpoint=False)
    assert checkpoints(workdir)[-1] == 80
    here(workdir, *EVERY_STEP, **MESHES[target])
    assert results(workdir)["status"] == "done"
    assert len(lines(workdir)) == len(lines(on("one")))
    np.testing.assert_allclose(losses(workdir), losses(on("one")), rtol=1e-5)


def test_two_processes_go_on_where_eight_devices_left(on, tmp_path):
    workdir = rewound(on("fsdp"), tmp_path / "run", checkpoint=False)
    ended(start(workdir, *EVERY_STEP, processes=2), 0)
    assert len(lines(workdir)) == len(lines(on("one")))
    np.testing.assert_allclose(losses(workdir), losses(on("one")), rtol=1e-5)
