"""A closed history is read a round at a time: what is read when, what is held, and what is checked."""

import hashlib
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedcrab import DamagedError, History, plan
from fedcrab.history.chain import Head
from fedcrab.history.ledger_file import Shelf
from trials.trainings import Training, training


def record(path: Path, trained: Training) -> None:
    with History.create(path, trained.initial_model, initial_loss=trained.initial_loss, seed=0) as history:
        for each in trained.rounds:
            history.record(each)


def test_what_is_held_of_a_ledger_is_the_latest_and_bounded() -> None:
    shelf = Shelf(10)
    for key in range(5):
        shelf.put(key, str(key), 4)
    assert [shelf.get(key) for key in range(5)] == [None, None, None, "3", "4"]
    shelf.get(3)
    shelf.put(9, "nine", 4)
    assert [shelf.get(key) for key in (3, 4, 9)] == ["3", None, "nine"]
    shelf.put(7, "too large", 11)
    assert shelf.get(7) is None
    assert shelf.get(9) == "nine"


def test_a_closed_history_opens_without_reading_its_clients(tmp_path: Path) -> None:
    trained = training(rounds=6)
    record(tmp_path / "h", trained)
    history = History.open(tmp_path / "h")
    file = history.rounds[0].present._file
    assert [file.clients.get(t) for t in range(6)] == [None] * 6
    assert history.rounds[3].clients == trained.rounds[3].updates.clients
    assert [t for t in range(6) if file.clients.get(t)] == [3]
    assert [t for t in range(6) if file.numbers.get(t) is not None] == []


def test_a_rewritten_round_of_a_closed_history_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """Ledger and head are both exchanged, the seal fits, the chain does not."""
    record(tmp_path / "h", training(rounds=6))
    path = tmp_path / "h" / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (numbers,) = connection.execute("SELECT numbers FROM participants WHERE round = 2").fetchone()
        other = bytes([numbers[0] ^ 1]) + numbers[1:]
        connection.execute("UPDATE participants SET numbers = ? WHERE round = 2", (other,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    head = Head.read(tmp_path / "h")
    replace(head, ledger=hashlib.sha256(path.read_bytes()).hexdigest()).write(tmp_path / "h")
    history = History.open(tmp_path / "h")
    assert history.rounds[1].clients
    for use in (lambda: history.rounds[2].clients, lambda: plan(history, {"0"})):
        with pytest.raises(DamagedError, match="round 2 does not match its hash"):
            use()
    assert any("round 2" in problem for problem in History.verify(tmp_path / "h"))


def test_threads_read_one_history_together(tmp_path: Path) -> None:
    trained = training(rounds=12)
    record(tmp_path / "h", trained)
    history, wrong = History.open(tmp_path / "h"), []

    def read() -> None:
        for entry, r in zip(history.rounds, trained.rounds, strict=True):
            if entry.clients != r.updates.clients or entry.coordinates.points < len(entry.clients):
                wrong.append(entry.index)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
