"""A writer that is killed at random moments, again and again, and a reader that looks on all the while.

Run as a process of its own; reads one JSON request, prints one JSON answer.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fedcrab import History, HistoryError
from torture import recording

ROUNDS = 24


class Board:
    """Numbers that all processes see at once."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def _number(place: int) -> property:  # noqa: N805
        def read(self: Board) -> int:
            return int(struct.unpack_from("=q", self._memory, place * 8)[0])

        def write(self: Board, value: int) -> None:
            struct.pack_into("=q", self._memory, place * 8, value)

        return property(read, write)

    history = _number(0)  # the number of the history that is being written
    acknowledged = _number(1)  # rounds acknowledged in it, -1 before it is created
    closed = _number(2)
    stop = _number(3)
    looks = _number(4)  # how often the reader has read a history


def expected_heads(directory: Path) -> list[str]:
    """The head of the ledger after each round, and after closing."""
    path, heads = directory / "undisturbed", []
    with recording.create(path, "selective") as history:
        heads.append(history.contents.head)
        for each in recording.rounds(ROUNDS):
            history.record(each)
            heads.append(history.contents.head)
    return [*heads, history.contents.head]


class Race:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.board = Board()
        self.board.acknowledged = -1
        self.rng = random.Random(seed)
        began = time.monotonic()
        self.heads = expected_heads(directory)
        self.longest = (time.monotonic() - began) / 5  # seconds that a writer lives: a few rounds, see _adapt

    def path(self, number: int) -> Path:
        return self.directory / f"history-{number}"

    def write(self) -> None:
        """Record as fast as possible, from wherever the one before was killed."""
        path = self.path(self.board.history)
        try:
            history = History.resume(path) if path.exists() else recording.create(path, "selective")
        except HistoryError:
            if not History.open(path).closed:
                raise
            self.board.closed = 1
            return
        self.board.acknowledged = len(history.rounds)
        for each in recording.rounds(ROUNDS)[len(history.rounds) :]:
            history.record(each)
            self.board.acknowledged = each.index + 1
        history.close()
        self.board.closed = 1

    def read(self) -> None:
        """Look over and over: a committed prefix each time, all that was acknowledged in it."""
        while not self.board.stop:
            number, acknowledged = self.board.history, self.board.acknowledged
            if acknowledged >= 0 and number == self.board.history:
                self.look(self.path(number), acknowledged)
                self.board.looks += 1

    def look(self, path: Path, acknowledged: int) -> None:
        history = History.open(path)
        assert len(history.rounds) >= acknowledged, f"{len(history.rounds)} of {acknowledged} rounds"
        assert history.contents.head == self.heads[len(history.rounds) + history.closed], "other entries"

    def kill_once(self) -> bool:
        """Start a writer and kill it at a random moment; whether it was still there to be killed."""
        before = self.board.acknowledged
        writer = _fork(self.write)
        ended = os.pidfd_open(writer)
        select.select([ended], [], [], self.rng.uniform(0, self.longest))
        os.close(ended)
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed"
        self._adapt(self.board.acknowledged > before)
        self.check()
        return os.WIFSIGNALED(status)

    def _adapt(self, got_on: bool) -> None:
        """Let writers live so long that about half of them record something, however slow the machine."""
        self.longest *= 0.8 if got_on else 1.25

    def check(self) -> None:
        path = self.path(self.board.history)
        if not path.exists():
            assert self.board.acknowledged < 0, "a history is gone"
            return
        problems = [p for p in History.verify(path) if recording.NOT_SEALED not in p]
        assert problems == [], problems
        self.look(path, self.board.acknowledged)
        if self.board.closed:
            assert History.open(path).closed
            self.board.acknowledged, self.board.closed = -1, 0
            self.board.history += 1

    def run(self, kills: int) -> dict[str, int]:
        reader, done = _fork(self.read), 0
        try:
            while done < kills or self.board.looks <= kills:
                done += self.kill_once()
                assert done < 20 * kills, "the reader hardly ever gets to see a history"
                assert os.waitpid(reader, os.WNOHANG) == (0, 0), "the reader gave up"
        finally:
            self.board.stop = 1
        assert os.waitpid(reader, 0)[1] == 0, "the reader failed"
        return {"kills": done, "histories": self.board.history, "looks": self.board.looks}


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    request = json.load(sys.stdin)
    directory = Path(request["directory"])
    print(json.dumps(Race(directory, request["seed"]).run(request["kills"])))
    for path in directory.glob("history-*"):
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
