"""The saved result of an audit: one JSON file, so that ``report`` need not repeat the audit.

The audit of a history ``h`` is the file ``h.audit.json`` beside it, because a history's folder contains only
its own files. In a folder of recoveries it is ``audit.json``. The file contains the history's head, its own
sha256, and images as bytes; it never contains a pickle. Anybody may have changed it, so every field is
checked on reading. The sha256 detects damage, not forgery: whoever changes the file can change the hash too.
``docs/forensics.md`` describes the fields.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import DamagedError
from fedcrab.files import file_errors, read_json, write_named
from fedcrab.history.chain import LEDGER

FORMAT = 1
MAX_BYTES = 2**24  # of the file
SIDE = 96  # most pixels per side of an image; larger images are subsampled
PICTURES = ("mask", "trigger", "example", "stamped")
MAX_CHARACTERS = 10_000  # of a note or an id
Table = Mapping[str, Any]
Check = Callable[[object], None]


def audit_path(directory: Path) -> Path:
    """Return the file that holds the audit of a history, or of a folder of recoveries."""
    if (directory / LEDGER).exists():
        whole = directory.absolute()
        return whole.parent / f"{whole.name}.audit.json"
    return directory / "audit.json"


def write_audit(directory: Path, table: Table) -> Path:
    """Save an audit atomically and return its file. Raises HistoryError if it cannot be written."""
    path, content = audit_path(directory), {"format": FORMAT, **table}
    content["sha256"] = _digest(content)
    checked(content, path)
    with file_errors(f"{path}: the audit was not saved"):
        write_named(path, [json.dumps(content, separators=(",", ":"), allow_nan=False).encode()])
    return path


def read_audit(directory: Path, head: str) -> dict[str, Any] | None:
    """Return the saved audit of a history whose head is ``head``; None if there is none for this head.

    Raises DamagedError if the file is not what ``write_audit`` wrote.
    """
    path = audit_path(directory)
    if not path.is_file():
        return None
    table = checked(read_json(path, limit=MAX_BYTES, what="an audit"), path)
    return table if table["history"] == head else None


def picture(values: NDArray[np.floating[Any]], *, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    """Return an image (channels, height, width) as base64 bytes, row by row, with its size.

    ``low`` becomes 0 and ``high`` becomes 255. One channel stays one, three are interleaved, and any other
    number is averaged to one. The image has at most SIDE pixels per side.
    """
    image = np.asarray(values, np.float64)
    image = image if len(image) in (1, 3) else image.mean(axis=0, keepdims=True)
    stride = -(-max(image.shape[1:]) // SIDE)
    image = image[:, ::stride, ::stride]
    scaled = np.clip((image - low) / max(high - low, 1e-12), 0, 1)
    levels = np.rint(255 * scaled).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = levels.shape
    data = base64.b64encode(np.ascontiguousarray(levels).tobytes()).decode("ascii")
    return {"width": width, "height": height, "channels": channels, "base64": data}


def checked(table: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the table after checking every field. Raises DamagedError naming ``path``."""
    try:
        if table["format"] != FORMAT or table["sha256"] != _digest(table):
            raise DamagedError(
                f"{path}: changed since it was written, or from another version; run 'detect' again"
            )
        _check(table)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise DamagedError(f"{path}: not an audit written by fedcrab; run 'detect' again") from error
    return table


def _digest(table: Table) -> str:
    content = {name: value for name, value in table.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check(table: Table) -> None:
    _fields({"history": _text, "notes": _list_of(_text)})(table)
    _list_of(_fields(MODEL))(table["models"])
    _optional(_fields(dict.fromkeys(PICTURES, _picture)))(table["pictures"])
    _optional(_fields(TIMELINE))(table["timeline"])
    if table["timeline"] is not None and len(table["timeline"]["rounds"]) != len(table["timeline"]["lifts"]):
        raise ValueError("needs one lift per round")
    _list_of(_fields(TAUGHT))(table["taught"])
    _optional(_fields(ANSWER))(table.get("answer"))  # missing in files of earlier versions
    if table.get("answer"):
        rows = {row["client"] for row in table["answer"]["clients"]}
        if not rows >= {*table["answer"]["suspects"]}:
            raise ValueError("needs a row per suspect")


def _number(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError("not a number")


def _count(value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**53:
        raise TypeError("not a count")


def _flag(value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError("not true or false")


def _text(value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise TypeError("not a text")


def _picture(value: object) -> None:
    _fields({"width": _count, "height": _count, "channels": _count, "base64": _base64_text})(value)
    image = dict(value)  # type: ignore[call-overload]
    data = base64.b64decode(image["base64"], validate=True)
    sides, channels = (image["height"], image["width"]), image["channels"]
    if channels not in (1, 3) or max(sides) > SIDE or not 0 < len(data) == sides[0] * sides[1] * channels:
        raise ValueError("not a picture")


def _base64_text(value: object) -> None:
    if not isinstance(value, str) or len(value) > 4 * SIDE * SIDE + 4:
        raise TypeError("not the bytes of a picture")


def _fields(checks: Mapping[str, Check]) -> Check:
    def check(row: object) -> None:
        if not isinstance(row, dict):
            raise TypeError("not a table")
        for name, check_field in checks.items():
            check_field(row[name])

    return check


def _list_of(each: Check) -> Check:
    def check(values: object) -> None:
        if not isinstance(values, list):
            raise TypeError("not a list")
        for value in values:
            each(value)

    return check


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


MODEL: Mapping[str, Check] = {
    "model": _text,
    "sha256": _text,
    "planted": _flag,
    "class": _count,
    "sizes": _list_of(_number),
    **dict.fromkeys(("ratio", "alarm", "confidence", "success", "lift"), _number),
}
TIMELINE: Mapping[str, Check] = {
    "planted": _optional(_count),
    "rounds": _list_of(_count),
    "lifts": _list_of(_number),
}
CLIENT: Mapping[str, Check] = {
    "client": _text,
    "part": _number,
    "score": _number,
    "named": _flag,
    "since": _optional(_count),
}
ANSWER: Mapping[str, Check] = {
    "detector": _text,
    "rounds": _count,
    "suspects": _list_of(_text),
    "strength": _number,
    "apart": _list_of(_fields({"client": _text, "reason": _text})),
    "clients": _list_of(
        _fields({"client": _text, "score": _number, "suspect": _flag, "confidence": _number, "reason": _text})
    ),
    "notes": _list_of(_text),
}
TAUGHT: Mapping[str, Check] = {
    "about": _text,
    "class": _optional(_count),
    "rounds": _count,
    "strength": _number,
    "clients": _list_of(_fields(CLIENT)),
    "notes": _list_of(_text),
}
