"""When a round was: kept in UTC, covered by the chain, and of no influence on anything else."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from fedcrab import DamagedError, History, RecordError, Round, Updates
from fedcrab.history.ledger_state import untimed_head
from fedcrab.report.tables import to_table
from torture import forge

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def one_round(index: int = 0, **times: datetime | None) -> Round:
    updates = Updates(("a", "b"), np.eye(2, dtype=np.float32), np.ones(2))
    start = np.full(2, index / 2, np.float32)
    return Round(index, start, updates, np.full(2, 0.5, np.float32), 1.0, 0.1, **times)


def record(path: Path, *rounds: Round, clock: Callable[[], datetime] | None = None) -> History:
    with History.create(path, np.zeros(2, np.float32), initial_loss=1.0, seed=1, clock=clock) as history:
        for each in rounds:
            history.record(each)
    return History.open(path)


def test_times_come_back_in_utc(tmp_path: Path) -> None:
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    later = NOON + timedelta(microseconds=7)
    history = record(tmp_path / "h", one_round(0, began=tokyo, ended=later), one_round(1))
    assert [(e.began, e.ended) for e in history.rounds] == [(NOON, later), (None, None)]
    first, second = to_table(history)["rounds"]
    assert (first["began"], first["ended"]) == ("2026-05-01T12:00:00.000000Z", "2026-05-01T12:00:00.000007Z")
    assert (second["began"], second["ended"]) == (None, None)


def test_times_that_nobody_gave_are_those_of_recording(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with History.create(tmp_path / "h", np.zeros(2, np.float32)) as history:
        for index in range(3):
            history.record(one_round(index))
    first, second, third = History.open(tmp_path / "h").rounds
    assert before <= first.began <= first.ended == second.began <= second.ended == third.began <= third.ended


def hours(*given: int) -> Callable[[], datetime]:
    """A clock: hours after noon, one after the other."""
    ticks = iter(given)
    return lambda: NOON + timedelta(hours=next(ticks))


def test_a_round_begins_where_the_last_ended_or_when_the_history_was_opened(tmp_path: Path) -> None:
    at = [NOON + timedelta(hours=hour) for hour in range(10)]
    history = History.create(tmp_path / "h", np.zeros(2, np.float32), clock=hours(0, 1, 2))
    history.record(one_round(0))
    history.record(one_round(1))
    history.record(one_round(1))  # again: as it was
    history.release()
    with History.resume(tmp_path / "h", clock=hours(5, 6, 7)) as history:
        history.record(one_round(2))
        history.record(one_round(3, began=at[6]))
        history.record(one_round(4, ended=at[9]))
    times = [(entry.began, entry.ended) for entry in History.open(tmp_path / "h").rounds]
    assert times == [(at[0], at[1]), (at[1], at[2]), (at[5], at[6]), (at[6], at[7]), (at[7], at[9])]


def test_a_clock_that_was_set_back_leaves_a_time_unknown(tmp_path: Path) -> None:
    rounds = one_round(0), one_round(1, began=NOON), one_round(2, ended=NOON - timedelta(hours=9))
    history = record(tmp_path / "h", *rounds, clock=hours(0, -1, -2))
    times = [(entry.began, entry.ended) for entry in history.rounds]
    early = NOON - timedelta(hours=1), NOON - timedelta(hours=9)
    assert times == [(None, early[0]), (NOON, None), (None, early[1])]
    assert History.verify(history.path) == []


@pytest.mark.parametrize(
    "times",
    [
        {"began": datetime(2026, 5, 1)},
        {"began": 1.0},
        {"ended": "2026-05-01T12:00:00Z"},
        {"ended": datetime.max.replace(tzinfo=timezone(timedelta(hours=-9)))},
        {"began": NOON, "ended": NOON - timedelta(seconds=1)},
    ],
    ids=str,
)
def test_a_time_that_is_none_is_refused(times: dict[str, object]) -> None:
    with pytest.raises(RecordError, match=r"time|end"):
        one_round(**times)


def test_the_chain_covers_times_and_nothing_else_depends_on_them(tmp_path: Path) -> None:
    later = NOON + timedelta(days=1)
    plain = record(tmp_path / "plain", one_round())
    timed = record(tmp_path / "timed", one_round(began=NOON, ended=NOON))
    other = record(tmp_path / "other", one_round(began=later, ended=later))
    assert len({h.contents.head for h in (plain, timed, other)}) == 3
    assert {untimed_head(h.contents) for h in (plain, timed, other)} == {plain.contents.head}


def put(path: Path, column: str, text: object) -> tuple[bytes, int, str]:
    """The ledger with this time in it, and its chain made to fit again."""
    ledger = (path / "ledger.sqlite").read_bytes()
    return forge.edited(ledger, lambda c: c.execute(f"UPDATE rounds SET {column} = ?", (text,)))


@pytest.mark.parametrize("text", ["2026-05-01T12:00:00Z", "2026-05-01 12:00:00.000000+00:00", "soon", "", 5])
def test_a_time_that_is_not_written_as_ours_is_refused(text: object, tmp_path: Path) -> None:
    path = tmp_path / "h"
    record(path, one_round(began=NOON, ended=NOON))
    forge.put_ledger(path, *put(path, "ended", text))
    with pytest.raises(DamagedError, match="round at entry 1"):
        History.open(path)


def test_a_round_that_ended_before_it_began_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h"
    record(path, one_round(began=NOON, ended=NOON))
    forge.put_ledger(path, *put(path, "ended", "2026-05-01T11:00:00.000000Z"))
    with pytest.raises(DamagedError, match="ended before it began"):
        History.open(path)


def test_an_edited_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h"
    head = record(path, one_round(began=NOON, ended=NOON)).contents
    content, entries, digest = put(path, "ended", "2026-05-01T12:00:01.000000Z")
    assert digest != head.head  # so a forged chain is another chain
    forge.put_ledger(path, content, entries, head.head)
    (problem,) = History.verify(path)
    assert problem.endswith("the last entry is not the one that ledger.head names")
