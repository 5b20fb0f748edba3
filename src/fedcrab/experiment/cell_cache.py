"""The results of finished cells: one line of JSON per cell, one file per suite.

    RESULTS/<suite>.jsonl       {"key", "cell", "measures", "curve", "made", "sha256"} per line
    RESULTS/cells/<key>.json    the same without "key", written by earlier versions; still found
    RESULTS/.work/<key>/        the files of running trainings; can be deleted, is not committed

The key is the hash of everything that determines a result. Lines are only appended, by any number of
processes; after a kill the last line is complete or absent. A line that was edited or damaged is detected by
its own hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedcrab.attack import Trigger
from fedcrab.errors import ConfigError, DamagedError, HistoryError, shown
from fedcrab.experiment import names
from fedcrab.experiment.config import Config, NamedChoice
from fedcrab.experiment.suite import ResolvedMethod, defaults
from fedcrab.files import append_line, file_errors, make_directory, open_regular, read_regular

# Increased when the same configuration gives other numbers; then every cell of that model is computed again.
# Rounding does not count: it differs between machines too, and with compiled kernels.
NUMERICS = {"softmax": 2, "mlp": 2, "cnn": 3}
NUMERICS_OF_OTHERS = 4
LENGTH = 24  # hexadecimal digits of a key


def identity(config: Config, method: ResolvedMethod, *, membership: bool) -> dict[str, Any]:
    """Return everything that determines a cell, as plain values, defaults included."""
    training = config.model_dump(mode="json", exclude={"history"})
    if config.device == "cpu":
        del training["device"]  # the keys of older cells do not have this setting
    training["aggregation"] = _whole(config.aggregation, names.RULES, "rule")
    training["clients"]["partition"] = _whole(config.clients.partition, names.PARTITIONS, "partition")
    if config.attack is not None:
        training["attack"] |= _whole(config.attack, names.ATTACKS, "attack")
        if config.attack.rounds is None:
            del training["attack"]["rounds"]  # the keys of older cells do not have this setting
    return {
        "numerics": NUMERICS.get(config.model, NUMERICS_OF_OTHERS),
        "training": training,
        "method": method.to_table(),
        "membership": membership,
    }


def _whole(named: NamedChoice, table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a named choice with all its settings; missing ones have the function's defaults."""
    own = defaults(names.look_up(kind, named.name, table))
    settings = {name: named.settings.get(name, value) for name, value in own.items()}
    return {"name": named.name, "settings": _plain({**settings, **named.settings})}


def _plain(value: Any) -> Any:
    """Return a setting as a JSON value."""
    if isinstance(value, Mapping):
        return {str(name): _plain(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Trigger):
        return _trigger(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ConfigError(f"a setting must be text, a number, a list or a table, got {shown(value)}")


def _trigger(trigger: Trigger) -> str:
    """Return the text of a trigger in the keys of cells. It must never change: published cells contain it."""
    image = "None" if trigger.image is None else f"({', '.join(str(side) for side in trigger.image)})"
    return (
        f"Trigger(size={trigger.size}, value={trigger.value}, image={image}, "
        f"part={trigger.part}, parts={trigger.parts})"
    )


def canonical(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a cell: the hash of everything that determines its result."""
    return hashlib.sha256(canonical(identity)).hexdigest()[:LENGTH]


LARGEST = 2**24  # bytes per result, far above any real one
START = re.compile(rb'\{"key": ?"([0-9a-f]{24})"')  # the start of a line
Point = tuple[int, int, float | None, float | None]
"""Round, client-rounds so far, loss and accuracy on the probe set (None if unknown or not finite)."""


@dataclass(frozen=True)
class CellResult:
    """The result of a cell."""

    identity: Mapping[str, Any]
    measures: Mapping[str, float | int | str | None]
    curve: tuple[Point, ...] = field(default=(), repr=False)
    made: Mapping[str, Any] = field(default_factory=dict)  # when and how; not part of the key

    @property
    def key(self) -> str:
        """The key of its cell."""
        return key_of(self.identity)

    def line(self) -> bytes:
        """Return the result as a line of its suite's file."""
        table = {
            "cell": dict(self.identity),
            "measures": dict(self.measures),
            "curve": [list(point) for point in self.curve],
            "made": dict(self.made),
        }
        line = json.dumps({"key": self.key, **table, "sha256": _hash(table)}, allow_nan=False).encode()
        if len(line) >= LARGEST:
            raise ConfigError(f"cell {self.key}: a result of {len(line)} bytes; at most {LARGEST} are kept")
        return line + b"\n"


@dataclass(frozen=True)
class _Line:
    """The place of a line in a file."""

    path: Path
    number: int
    start: int
    length: int

    @property
    def place(self) -> str:
        """The place in words."""
        return f"{self.path}, line {self.number}"

    def read(self) -> bytes:
        """Return the text of the line."""
        with open_regular(self.path) as file:
            file.seek(self.start)
            return file.read(self.length)


class CellCache:
    """The finished cells of a directory. New ones are appended to the file of one suite."""

    def __init__(self, results: Path, suite: str = "cells") -> None:
        self.results, self.suite = results, suite
        self._lines: dict[Path, tuple[tuple[int, int, int], dict[str, list[_Line]]]] = {}

    @property
    def path(self) -> Path:
        """The file that new results are appended to."""
        return self.results / f"{self.suite}.jsonl"

    def work(self, training: str) -> Path:
        """Return the directory for the files of a running training; git ignores it."""
        place = self.results / ".work" / training
        with file_errors(f"{place}: cannot be used"):
            make_directory(place.absolute())
            (self.results / ".work" / ".gitignore").write_text("*\n")
        return place

    def find(self, key: str) -> CellResult | None:
        """Return the result of a cell from this suite's file, another suite's, or the cell's own file.

        Returns None if there is none yet. Raises ``DamagedError`` if it was changed since it was written.
        """
        damage: DamagedError | None = None
        for line in self._found(key):
            try:
                return _parsed(line.read(), key, line.place, "delete the line")
            except DamagedError as error:
                damage = damage or error
        own = self.results / "cells" / f"{key}.json"
        if own.exists() or own.is_symlink():
            try:
                return _parsed(read_regular(own, limit=LARGEST), key, str(own), "delete it")
            except DamagedError as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return None

    def has_result(self, key: str) -> bool:
        """Return whether the cell has an undamaged result."""
        try:
            return self.find(key) is not None
        except DamagedError:
            return False

    def write(self, finished: CellResult) -> None:
        """Append a result to the suite's file, completely or not at all; it replaces a damaged one."""
        with file_errors(f"{self.path}: not written"):
            make_directory(self.results.absolute())
            append_line(self.path, finished.line(), is_whole=_is_whole)

    def damaged(self, keys: list[str]) -> list[str]:
        """Return one sentence per damaged result."""
        return list(dict.fromkeys(sentence for key in keys if (sentence := self._problem(key))))

    def _problem(self, key: str) -> str:
        try:
            self.find(key)
        except HistoryError as error:
            return str(error)
        return ""

    def _found(self, key: str) -> Iterator[_Line]:
        """Yield the lines that may contain a cell's result, newest first, this suite's own before others.

        A line of this suite's file without a key may belong to any cell. Other files with the same ending
        may belong to no suite at all.
        """
        own = self._index(self.path) if self.path.exists() or self.path.is_symlink() else {}
        yield from reversed(own.get(key, []))
        for path in sorted(self.results.glob("*.jsonl")):
            if path != self.path and path.is_file() and not path.is_symlink():
                yield from reversed(self._index(path).get(key, []))
        yield from own.get("", [])

    def _index(self, path: Path) -> dict[str, list[_Line]]:
        """Return the lines of a file by key; read again if the file has changed."""
        with open_regular(path) as file:
            state = os.fstat(file.fileno())
            seen = state.st_ino, state.st_size, state.st_mtime_ns
            if path not in self._lines or self._lines[path][0] != seen:
                self._lines[path] = seen, _indexed(path, file)
        return self._lines[path][1]


def _indexed(path: Path, file: BufferedReader) -> dict[str, list[_Line]]:
    """Return the lines of each key in order; "" has those without a key. Ignores an incomplete last line."""
    lines: dict[str, list[_Line]] = {}
    number, start = 1, 0
    while text := file.readline(LARGEST):
        named, ends = START.match(text), text.endswith(b"\n")
        if text.strip() and (ends or _is_whole(text)):
            key = named[1].decode() if named else ""
            lines.setdefault(key, []).append(_Line(path, number, start, len(text)))
        number, start = number + ends, start + len(text)
    return lines


def _is_whole(text: bytes) -> bool:
    """Return whether a last line without a newline, as some editors leave it, is a complete result."""
    named = START.match(text)
    try:
        return named is not None and bool(_parsed(text, named[1].decode(), "", ""))
    except DamagedError:
        return False


def _hash(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(table)).hexdigest()


def _parsed(text: bytes, key: str, place: str, remedy: str) -> CellResult:
    """Return the result in a line or a file; raises unless it is undamaged and belongs to this cell."""
    try:
        table = json.loads(text)
        stored_hash, named = table.pop("sha256"), table.pop("key", key)
        if stored_hash != _hash(table):
            raise DamagedError(f"{place}: changed since it was written; {remedy} to compute it again")
        finished = CellResult(table["cell"], table["measures"], _points(table["curve"]), table["made"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{place}: not the result of a cell; {remedy} to compute it again") from error
    if not finished.key == key == named:
        raise DamagedError(
            f"{place}: the result of another cell ({finished.key}); {remedy} or correct its name"
        )
    return finished


def parse_line(line: bytes) -> CellResult:
    """Return the result that :meth:`CellResult.line` wrote; raises ``DamagedError`` for anything else."""
    named = START.match(line)
    return _parsed(line, named[1].decode() if named else "", "a result", "run it again")


def _points(rows: list[list[Any]]) -> tuple[Point, ...]:
    return tuple((int(t), int(work), loss, accuracy) for t, work, loss, accuracy in rows)
