"""The results of finished cells: a small JSON file each, named by the hash of all that determines it.

    RESULTS/cells/<key>.json    {"cell", "measures", "curve", "made", "sha256"}
    RESULTS/.work/<key>/        what a training under way needs; can be deleted, is not to be committed

A file is whole or absent. What was changed by hand or damaged is found by its own hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcrab.errors import DamagedError, HistoryError
from fedcrab.history.disk import explained, make_directory, read_regular, sync_directory, write_named
from fedcrab.suite.identity import canonical, key_of

LARGEST = 2**24  # bytes of a cell's file, far above what any has
Point = tuple[int, int, float | None, float | None]
"""Round, client-rounds so far, loss and accuracy on the probe set where they are known and finite."""


@dataclass(frozen=True)
class Finished:
    """What came out of a cell."""

    identity: Mapping[str, Any]
    measures: Mapping[str, float | int | str | None]
    curve: tuple[Point, ...] = field(default=(), repr=False)
    made: Mapping[str, Any] = field(default_factory=dict)  # when and how: determines nothing

    @property
    def key(self) -> str:
        """The name of its file."""
        return key_of(self.identity)


class Cells:
    """A directory of finished cells."""

    def __init__(self, results: Path) -> None:
        self.results, self.directory = results, results / "cells"

    def work(self, training: str) -> Path:
        """Where a training under way keeps what it needs; git is told to leave it alone."""
        place = self.results / ".work" / training
        with explained(f"{place}: cannot be used"):
            make_directory(place.absolute())
            (self.results / ".work" / ".gitignore").write_text("*\n")
        return place

    def path(self, key: str) -> Path:
        """Where a cell's result is, or will be."""
        return self.directory / f"{key}.json"

    def find(self, key: str) -> Finished | None:
        """A cell's result; None where there is none yet; refused where it is not what was written."""
        path = self.path(key)
        if not path.exists() and not path.is_symlink():
            return None
        return _parsed(path, key)

    def sound(self, key: str) -> bool:
        """Whether there is a result, and it is what was written."""
        try:
            return self.find(key) is not None
        except DamagedError:
            return False

    def write(self, finished: Finished) -> None:
        """Leave a result, whole; one that was damaged is replaced."""
        table = {
            "cell": dict(finished.identity),
            "measures": dict(finished.measures),
            "curve": [list(point) for point in finished.curve],
            "made": dict(finished.made),
        }
        text = _text({**table, "sha256": _hash(table)}, finished.curve)
        with explained(f"{self.path(finished.key)}: not written"):
            make_directory(self.directory.absolute())
            write_named(self.path(finished.key), [text.encode()])
            sync_directory(self.directory)

    def damaged(self, keys: list[str]) -> list[str]:
        """A sentence for each result that is not what was written."""
        return [sentence for key in keys if (sentence := self._problem(key))]

    def _problem(self, key: str) -> str:
        try:
            self.find(key)
        except HistoryError as error:
            return str(error)
        return ""


def _hash(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(table)).hexdigest()


def _text(table: Mapping[str, Any], points: Sequence[Point]) -> str:
    """As JSON, each point of the curve on a line of its own, so that a change is read as one."""
    rows = ",\n".join(f"  {json.dumps(point)}" for point in points)
    text = json.dumps({**table, "curve": "POINTS"}, indent=1, allow_nan=False)
    return text.replace('"POINTS"', f"[\n{rows}\n ]") + "\n"


def _parsed(path: Path, key: str) -> Finished:
    try:
        table = json.loads(read_regular(path, limit=LARGEST))
        told = table.pop("sha256")
        if told != _hash(table):
            raise DamagedError(f"{path}: changed since it was written; delete it to compute it again")
        finished = Finished(table["cell"], table["measures"], _points(table["curve"]), table["made"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path}: not the result of a cell; delete it to compute it again") from error
    if finished.key != key:
        raise DamagedError(f"{path}: the result of another cell ({finished.key}); delete it or rename it")
    return finished


def _points(rows: list[list[Any]]) -> tuple[Point, ...]:
    return tuple((int(t), int(work), loss, accuracy) for t, work, loss, accuracy in rows)
