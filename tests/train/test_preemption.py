"""SIGTERM: heard by one owner, told at safe points, at the same call on every process."""

import inspect
import signal
import threading
import timeit

import pytest

from rflib.core.errors import Stopped
from rflib.train import preemption
from rflib.train.preemption import Guard
from tests.spawn import together, told


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def former_handler():
    """A handler of the caller, which a guard must put back; a signal reaching it is recorded."""
    heard: list[int] = []

    def handler(number, frame):
        heard.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    yield heard
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before)


def test_the_signal_sets_a_flag_and_the_former_handler_comes_back(former_handler):
    with Guard() as guard:
        assert not guard.poll() and not guard.requested
        terminate()
        assert guard.requested and guard.poll() and guard.poll()
    assert former_handler == []
    terminate()
    assert former_handler == [signal.SIGTERM]
    with Guard() as guard:  # a later guard starts anew
        assert not guard.poll()


def test_the_former_handler_comes_back_after_an_error(former_handler):
    with pytest.raises(KeyError), Guard():
        terminate()
        raise KeyError  # and Stopped does not take the error's place
    terminate()
    assert former_handler == [signal.SIGTERM]


def test_an_inner_guard_is_the_outer_one():
    with Guard() as outer:
        with Guard() as inner:
            assert inner is outer
            terminate()
        assert outer.poll()  # still guarded, nothing lost by the inner end
        terminate()


def test_a_signal_that_nobody_polled_raises_on_leaving_the_outermost_guard():
    with pytest.raises(Stopped), Guard():
        with Guard():
            terminate()
        left_the_inner_one = True
    assert left_the_inner_one


def test_check_raises_stopped_only_under_a_guard_that_was_told():
    preemption.check()
    with pytest.raises(Stopped) as stopped, Guard():
        preemption.check()
        terminate()
        preemption.check()
    assert stopped.value.status == 4
    assert not preemption.poll()


def test_outside_the_main_thread_no_handler_is_installed(former_handler):
    seen = []

    def work():
        with Guard() as guard:
            seen.append((signal.getsignal(signal.SIGTERM), guard.poll()))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_a_poll_costs_less_than_a_microsecond():
    poll = inspect.unwrap(Guard.poll)  # without the type checks of the tests
    with Guard() as guard:
        times = timeit.repeat(lambda: poll(guard), number=10_000, repeat=7)
    assert min(times) / 10_000 < 1e-6


CHILD = """
import signal, time
import jax
from rflib.train.mesh import initialize_distributed
from rflib.train.preemption import Guard, poll

initialize_distributed()
index, count = jax.process_index(), jax.process_count()
with Guard() as guard:  # an earlier phase has polled already
    assert not any(guard.poll() for _ in range(20))
with Guard() as guard:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # the notifier's, not ours
    for call in range(10_000):
        if guard.poll():
            break
        if call == 5 and index == count - 1:
            signal.raise_signal(signal.SIGTERM)
        time.sleep(0.002 * (1 + index))
    print("fired", call, guard.requested, guard.poll(), poll())
jax.distributed.shutdown()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("count", [1, 2])
def test_with_jax_distributed_all_processes_stop_at_the_same_call(count):
    outputs = [told(text, "fired").split() for text in together(CHILD, count=count)]
    _, call, *flags = outputs[0]
    assert 5 < int(call) < 9_999 and flags == ["True"] * 3
    assert outputs == [outputs[0]] * count
