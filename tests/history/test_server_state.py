"""What a server keeps beside the model: with the models that are kept, whole, and checked."""

from pathlib import Path

import numpy as np
import pytest

from fedcrab import Compact, DamagedError, History, HistoryError, RecordError, Round, Selective, Updates
from fedcrab.history.limits import LONGEST_JSON
from fedcrab.history.server_state import parse_state, state_parts
from fedcrab.types import ServerState

STATE = ServerState(
    {"m": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.array(0.1), "n": np.array([], np.int64)},
    {"norm": 0.1, "seen": [1, None, "é"]},
)


def rounds(count: int, **more: object) -> list[Round]:
    made, model = [], np.zeros(4, np.float32)
    for t in range(count):
        updates = Updates.of({"a": (np.full(4, t + 1.0), 2), "b": (np.arange(4.0), 1)})
        step = updates.vectors.mean(axis=0)
        state = ServerState({"m": np.full(4, t + 1.0)}, {"round": t})
        settings = {"notes": f"sent {t}\n", "server": state, **more}
        made.append(Round(t, model, updates, step, 1.0 - 0.01 * t, float(t % 3), **settings))
        model = model + step
    return made


def recorded(path: Path, count: int = 7, selection=None, **more: object) -> History:
    chosen = selection or Selective(max_window=3)
    with History.create(path, np.zeros(4, np.float32), initial_loss=1.0, selection=chosen) as history:
        for each in rounds(count, **more):
            history.record(each)
    return History.open(path)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    again = parse_state(tmp_path, b"".join(bytes(part) for part in state_parts(STATE)))
    assert again.values == STATE.values
    for name, array in STATE.arrays.items():
        assert (again.arrays[name].dtype, again.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(again.arrays[name], array)


@pytest.mark.parametrize("selection", [Selective(max_window=3), Compact(max_window=3)])
def test_the_state_stays_with_the_kept_models_and_with_no_others(selection, tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", selection=selection)
    assert History.verify(tmp_path / "h") == []
    assert history.server_state(0) is None
    for t in (*history.kept[1:], 7):
        assert history.server_state(t).values == {"round": t - 1}
    dropped = next(t for t in range(1, 7) if t not in history.kept)
    with pytest.raises(HistoryError, match=f"state before round {dropped} was not kept"):
        history.server_state(dropped)
    assert [entry.notes for entry in history.rounds] == [f"sent {t}\n" for t in range(7)]


def test_an_open_history_has_the_state_after_its_last_round(tmp_path: Path) -> None:
    history = History.create(tmp_path / "h", np.zeros(4, np.float32), initial_loss=1.0)
    for each in rounds(3):
        history.record(each)
    history.record(rounds(3)[2])  # the same again changes nothing
    for name in ("notes", "server"):
        other = {"notes": "other", "server": STATE}[name]
        with pytest.raises(RecordError, match=f"with different {name}"):
            history.record(rounds(3, **{name: other})[2])
    history.release()
    history = History.resume(tmp_path / "h")
    assert history.server_state(3).values == {"round": 2}
    history.release()


def test_a_changed_state_is_found(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h")
    digest = history.rounds[-1].state_after
    file = tmp_path / "h" / "snapshots" / f"{digest}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert any("the server's state before round 7" in p for p in History.verify(tmp_path / "h"))
    with pytest.raises(DamagedError, match="sha256 differs"):
        history.server_state(7)


def test_plain_histories_have_neither(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", notes="", server=None)
    assert {(e.notes, e.state_before, e.state_after) for e in history.rounds} == {(None, None, None)}
    assert history.server_state(0) is history.server_state(7) is None


BAD = {
    "notes": {"notes": 3},
    "long notes": {"notes": "x" * (LONGEST_JSON + 1)},
    "no state": {"server": {"m": np.zeros(3)}},
    "text": {"server": ServerState({"m": np.array(["a"])})},
    "object": {"server": ServerState({}, {"a": object()})},
    "long": {"server": ServerState({}, {"a": "x" * 2**21})},
}


@pytest.mark.parametrize("name", BAD)
def test_what_could_not_be_read_back_is_refused(name: str, tmp_path: Path) -> None:
    history = History.create(tmp_path / "h", np.zeros(4, np.float32), initial_loss=1.0)
    with pytest.raises(RecordError):
        history.record(rounds(1, **BAD[name])[0])
    assert len(history.rounds) == 0
    history.release()


@pytest.mark.parametrize("at", range(0, 240, 7))
def test_a_file_of_a_stranger_is_one_sentence(at: int, tmp_path: Path) -> None:
    content = bytearray(b"".join(bytes(part) for part in state_parts(STATE)))
    content[at % len(content)] ^= 0xFF
    for damaged in (bytes(content), bytes(content[:at])):
        said = ""
        try:
            parse_state(tmp_path, damaged)  # some changes only change a number
        except DamagedError as error:
            said = str(error)
        assert not said or "not a server's state" in said
