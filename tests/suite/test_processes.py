"""The executor of processes: one that dies takes only its own call with it."""

import os
import signal
import time
from concurrent.futures import BrokenExecutor, wait

import pytest

from fedcrab.experiment.processes import Processes, tell_parent


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_dies_alone_is_replaced_and_leaving_ends_the_rest() -> None:
    heard: list[object] = []
    executor = Processes(2, heard.append)
    try:
        first, dead = executor.submit(os.getpid), executor.submit(die)
        assert first.result() != os.getpid()
        with pytest.raises(BrokenExecutor):
            dead.result()
        alive = [executor.submit(os.getpid) for _ in range(3)]
        assert first.result() in {future.result() for future in alive}
        executor.submit(tell_parent, "a word").result()
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()
        asleep = [executor.submit(time.sleep, 600) for _ in range(2)]
        while not all(future.running() for future in asleep):
            time.sleep(0.01)
    finally:
        started = time.monotonic()
        executor.shutdown(cancel_futures=True)
    assert time.monotonic() - started < 300  # and not the 600 that they would sleep
    assert wait(asleep, timeout=0).not_done == set()
    assert heard == ["a word"]
