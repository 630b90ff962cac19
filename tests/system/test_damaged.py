"""Checkpoints that are no longer what was written, and code that is no longer what wrote them."""

import shutil

import pytest

from tests.system.starting import assert_same, checkpoints, here, noted, rewound

pytestmark = pytest.mark.multiprocess

ONE = {"mesh": {"data": 1}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with the checkpoints 160, 180 and 200."""
    workdir = here(tmp_path_factory.mktemp("finished") / "run", **ONE)
    assert checkpoints(workdir) == [160, 180, 200]
    return workdir


def largest(directory):
    """The file with most of the arrays."""
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip_a_bit(checkpoint):
    content = bytearray(largest(checkpoint).read_bytes())
    content[len(content) // 2] ^= 16
    largest(checkpoint).write_bytes(content)
    return "has other content than was written"


def truncate(checkpoint):
    content = largest(checkpoint).read_bytes()
    largest(checkpoint).write_bytes(content[: len(content) // 2])
    return f"has {len(content) // 2} bytes where {len(content)} were written"


def empty(checkpoint):
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    return "it has no manifest.json"


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, empty])
def test_a_damaged_newest_checkpoint_is_set_aside_and_costs_nothing(finished, tmp_path, damage):
    workdir = rewound(finished, tmp_path / "run")
    kept = workdir / "phases/fit/checkpoints"
    said = damage(kept / "200")
    here(workdir, **ONE)
    assert noted(workdir, "resumed at step 180") == 1
    assert noted(workdir, "checkpoint 200 is set aside") == noted(workdir, said) == 1
    assert (kept / "bad-200-0").is_dir() and checkpoints(workdir)[-1] == 200
    assert_same(workdir, finished)


def test_without_a_good_checkpoint_nothing_runs_and_nothing_is_deleted(finished, tmp_path, capfd):
    workdir = rewound(finished, tmp_path / "run")
    kept, before = workdir / "phases/fit/checkpoints", (workdir / "metrics.jsonl").read_bytes()
    files = sum(path.is_file() for path in kept.rglob("*"))
    for step in checkpoints(workdir):
        truncate(kept / str(step))
    for _ in range(2):  # it does not begin anew the second time either
        here(workdir, status=5, **ONE)
        assert "verifies; nothing was deleted" in capfd.readouterr().err
    assert sorted(path.name for path in kept.iterdir()) == ["bad-160-0", "bad-180-0", "bad-200-0"]
    assert sum(path.is_file() for path in kept.rglob("*")) == files
    assert (workdir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"width": 8}, "state/params/hidden/kernel: float32[3,16] where float32[3,8] is expected"),
        ({"dtype": "bfloat16"}, "params/out/bias: float32[1] where bfloat16[1] is expected"),
        ({"ema": 0.9}, "state/ema/out/kernel: float32[16,1] is missing"),
    ],
    ids=["shape", "dtype", "tree"],
)
def test_other_code_is_refused_with_the_difference(finished, tmp_path, capfd, change, difference):
    """Same config, other arrays: status 2, and the checkpoints stay for the code they belong to."""
    workdir = rewound(finished, tmp_path / "run")
    here(workdir, status=2, **ONE, **change)
    said = capfd.readouterr().err
    assert difference in said and "was saved by other code" in said and "Traceback" not in said
    here(workdir, **ONE)
    assert_same(workdir, finished)
