"""An audit on disk is a stranger's file: it comes back whole, or is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrab import DamagedError, HistoryError
from fedcrab.detect import Detection, Suspicion
from fedcrab.detect.saved_audit import SIDE, audit_path, picture, read_audit, write_audit

HEAD = "ab" * 32
ANSWER = Detection(
    "all", 9, {"a,b": 1.0, "c": 0.2}, {"a,b": Suspicion("taught it", 0.9)}, 1.5, ("n",), {"c": "long"}
)


def table() -> dict[str, Any]:
    image = picture(np.linspace(0, 1, 12).reshape(1, 3, 4))
    model = {"model": "final", "sha256": "0" * 64, "planted": True, "class": 3, "sizes": [1.5, 2.0]}
    model |= {"ratio": 0.2, "alarm": 0.5, "confidence": 0.99, "success": 0.97, "lift": 0.96}
    client = {"client": "a,b", "part": 1.0, "score": 0.9, "named": True, "since": 4}
    taught = {"about": "trigger", "class": 3, "rounds": 12, "strength": 2.0, "clients": [client], "notes": []}
    return {
        "history": HEAD,
        "models": [model],
        "pictures": dict.fromkeys(("mask", "trigger", "example", "stamped"), image),
        "timeline": {"planted": 5, "rounds": [0, 5], "lifts": [0.0, 0.9]},
        "taught": [taught],
        "notes": ["only patches"],
        "answer": ANSWER.to_table(),
    }


def test_it_comes_back_for_the_same_state_of_the_history(tmp_path: Path) -> None:
    assert read_audit(tmp_path, HEAD) is None
    path = write_audit(tmp_path, table())
    found = read_audit(tmp_path, HEAD)
    assert found is not None
    assert {name: found[name] for name in table()} == table()
    assert read_audit(tmp_path, "cd" * 32) is None
    assert path == tmp_path / "audit.json"
    assert Detection.from_table(found["answer"]) == ANSWER


def test_a_file_without_an_answer_is_one_of_an_earlier_version(tmp_path: Path) -> None:
    old = {name: value for name, value in table().items() if name != "answer"}
    write_audit(tmp_path, old)
    assert "answer" not in (read_audit(tmp_path, HEAD) or {"answer": 1})


def test_a_history_holds_no_file_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "ledger.sqlite").touch()
    assert audit_path(tmp_path / "h") == tmp_path / "h.audit.json"


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = write_audit(tmp_path, table())
    whole = path.read_text()
    path.write_text(whole.replace('"ratio":0.2', '"ratio":0.1'))
    with pytest.raises(DamagedError, match="changed since it was written"):
        read_audit(tmp_path, HEAD)
    for damaged in (whole[:-2], "[]", "", '{"format":1}'):
        path.write_text(damaged)
        with pytest.raises(DamagedError, match="audit"):
            read_audit(tmp_path, HEAD)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("models", 0, "ratio"), "0.2"),
        (("models", 0, "planted"), 1),
        (("models", 0, "class"), -1),
        (("models", 0, "sizes"), None),
        (("models",), {}),
        (("history",), None),
        (("pictures", "mask", "width"), 5),
        (("pictures", "mask", "base64"), "not base64"),
        (("pictures", "stamped"), None),
        (("timeline", "lifts"), [0.5]),
        (("taught", 0, "clients", 0, "since"), 1.5),
        (("taught", 0, "clients", 0, "client"), 7),
        (("notes",), "a text"),
        (("answer", "suspects"), ["nobody"]),
        (("answer", "clients", 0, "score"), "high"),
        (("answer", "apart", 0), "c"),
    ],
)
def test_what_cannot_be_is_refused_with_its_hash_right(
    tmp_path: Path, place: tuple[Any, ...], value: object
) -> None:
    """Who changes the file can change the hash: the fields are checked all the same, before and after."""
    from fedcrab.detect import saved_audit

    bad = json.loads(json.dumps(table()))
    inner = bad
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(DamagedError, match="not an audit written by fedcrab"):
        write_audit(tmp_path, bad)
    assert not (tmp_path / "audit.json").exists()
    told = {"format": 1, **bad}
    (tmp_path / "audit.json").write_text(json.dumps({**told, "sha256": saved_audit._digest(told)}))
    with pytest.raises(DamagedError, match="not an audit written by fedcrab"):
        read_audit(tmp_path, HEAD)


def test_where_it_cannot_be_written_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="the audit was not saved"):
        write_audit(tmp_path / "none", table())


def test_pictures_are_bytes_of_at_most_so_many_pixels() -> None:
    small = picture(np.array([[[0.0, 0.5], [1.0, 2.0]]]))
    assert (small["width"], small["height"], small["channels"]) == (2, 2, 1)
    assert small["base64"] == "AID//w=="
    large = picture(np.zeros((3, 2 * SIDE + 1, 10)))
    assert max(large["width"], large["height"]) <= SIDE
    assert large["channels"] == 3
    assert picture(np.zeros((5, 4, 4)))["channels"] == 1
