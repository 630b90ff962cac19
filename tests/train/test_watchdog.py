"""A hung run ends with status 6 and says where it hung; a slow, paused or suspended one goes on."""

import subprocess
import sys

import pytest

from rflib.core.errors import UserError
from rflib.train.watchdog import Watchdog

CHILD = """
import sys, threading, time, timeit
from pathlib import Path
from rflib.train import watchdog

mode, directory = sys.argv[1], Path(sys.argv[2])
if mode == "blocked report":
    watchdog._GRACE = 0.2

def on_hang(line):
    print("told:", line, flush=True)
    if mode == "blocked report":
        time.sleep(60)

def stuck_in_a_collective():
    threading.Event().wait(60)

with watchdog.Watchdog(directory, factor=2.0, least=0.5, on_hang=on_hang) as dog:
    print("beat", min(timeit.repeat(dog.beat, number=10_000, repeat=7)) / 10_000)
    for _ in range(50):  # twice the limit, with steps
        time.sleep(0.02)
        dog.beat()
    with dog.paused():
        time.sleep(1.2)
        print("pause survived", flush=True)
    if mode == "finished":
        sys.exit(0)
    stuck_in_a_collective()
"""


def child(mode, directory):
    return subprocess.run(
        [sys.executable, "-c", CHILD, mode, str(directory)],
        capture_output=True,
        text=True,
        timeout=40,
    )


def test_a_hang_exits_6_with_the_stacks_of_all_threads_in_a_file(tmp_path):
    done = child("hung", tmp_path / "run")
    assert done.returncode == 6, done.stderr
    assert "pause survived" in done.stdout
    stacks = (tmp_path / "run" / "hang.txt").read_text()
    for text in (stacks, done.stderr):
        assert "stuck_in_a_collective" in text and "_watch" in text
        assert "hung: no step for" in text and "after 70050 steps" in text
    assert done.stdout.splitlines()[-1] == "told: " + stacks.splitlines()[0]
    assert float(done.stdout.split()[1]) < 0.3e-6  # seconds a beat


def test_a_report_that_blocks_does_not_keep_the_exit_from_coming(tmp_path):
    assert child("blocked report", tmp_path).returncode == 6


def test_a_run_that_ends_is_left_alone(tmp_path):
    assert child("finished", tmp_path).returncode == 0
    assert not list(tmp_path.iterdir())


def test_the_limit_follows_the_median_step_and_not_an_outlier(tmp_path):
    dog = Watchdog(tmp_path, factor=10, least=30)
    assert dog.limit == 30
    for seconds in (4, 4, 4, 4, 40, 4):
        for _ in range(seconds):
            dog.tick(1.0)
        dog.beat()
    dog.tick(1.0)
    assert dog.limit == 40


def test_a_hang_is_seen_right_after_the_limit_and_a_beat_resets_it(tmp_path):
    dog = Watchdog(tmp_path, factor=0.5, least=10.0)
    for _ in range(3):
        assert not any(dog.tick(1.0) for _ in range(10))
        dog.beat()
        assert not dog.tick(1.0)
    assert [dog.tick(1.0) for _ in range(11)] == [False] * 10 + [True]


def test_paused_time_does_not_count_and_a_pause_starts_the_count_anew(tmp_path):
    dog = Watchdog(tmp_path, least=10.0)
    assert not any(dog.tick(1.0) for _ in range(9))
    with dog.paused(), dog.paused():
        assert not any(dog.tick(1.0) for _ in range(100))
    assert [dog.tick(1.0) for _ in range(11)] == [False] * 10 + [True]


def test_a_suspended_process_is_not_taken_for_a_hung_one(tmp_path):
    dog = Watchdog(tmp_path, least=300.0)
    assert not dog.tick(86_400.0)


@pytest.mark.parametrize("wrong", [{"factor": 0}, {"least": -1.0}, {"least": float("nan")}])
def test_limits_have_to_be_positive(tmp_path, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Watchdog(tmp_path, **wrong)
