"""What is left on a disk when the power goes: worked out from the log of all operations.

A file has the content that was last forced to the disk, a directory the names that were last forced to
the disk with it; nothing else is promised. What a real file system keeps beyond that is anybody's guess, so
several guesses are tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from torture.faults import Kind, Operation

SECTOR = 512  # a torn write keeps or loses whole sectors
LOSSES = ("all", "names", "data", "zeros", "some")


@dataclass(slots=True)
class File:
    """A file's content as the process sees it, and as the disk has it."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unforced: list[tuple[int, int]] = field(default_factory=list)  # stretches not forced to the disk yet

    def write(self, offset: int, data: bytes) -> None:
        _grow(self.content, offset)
        self.content[offset : offset + len(data)] = data
        self.unforced.append((offset, offset + len(data)))

    def truncate(self, size: int) -> None:
        del self.content[size:]
        _grow(self.content, size)

    def force(self) -> None:
        self._keep(self.durable, self.unforced)
        self.unforced.clear()

    def lose_track(self) -> None:
        """Forcing failed: the system takes what was not written for written, and never tries again."""
        self.unforced.clear()

    def left(self, loss: str, rng: random.Random) -> bytes:
        if loss == "names":
            return bytes(self.content)
        left = bytearray(self.durable)
        if loss == "zeros":
            del left[len(self.content) :]
            _grow(left, len(self.content))
        if loss == "some":
            self._keep(
                left, [s for stretch in self.unforced for s in _sectors(*stretch) if rng.random() < 0.5]
            )
            del left[len(self.content) if rng.random() < 0.5 else len(left) :]
        return bytes(left)

    def _keep(self, image: bytearray, stretches: Iterable[tuple[int, int]]) -> None:
        if image is self.durable:
            del image[len(self.content) :]
            _grow(image, len(self.content))
        for start, stop in stretches:
            stop = min(stop, len(self.content))
            _grow(image, stop)
            image[start:stop] = self.content[start:stop]


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(size - len(content), 0)))


def _sectors(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for at in range(start - start % SECTOR, stop, SECTOR):
        yield max(at, start), min(at + SECTOR, stop)


@dataclass(slots=True)
class Directory:
    """A directory's names as the process sees them, and as the disk has them."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    unforced: list[dict[str, Node | None]] = field(default_factory=list)  # changes of names, each atomic

    def change(self, change: dict[str, Node | None]) -> None:
        _apply(self.names, change)
        self.unforced.append(change)

    def force(self) -> None:
        for change in self.unforced:
            _apply(self.durable, change)
        self.unforced.clear()

    def lose_track(self) -> None:
        """Names are kept in the system's journal; what could not be forced is forced the next time."""

    def left(self, loss: str, rng: random.Random) -> dict[str, Node]:
        if loss in ("data", "zeros"):
            return dict(self.names)
        left = dict(self.durable)
        for change in self.unforced if loss == "some" else ():
            if rng.random() < 0.5:
                _apply(left, change)
        return left


Node = File | Directory


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """A disk below one directory, fed with the operations of a process."""

    def __init__(self, root: Path) -> None:
        self._root = PurePosixPath(root)
        self._top = Directory()

    def _directory(self, path: PurePosixPath) -> Directory:
        node: Node | None = self._top
        for part in path.relative_to(self._root).parts:
            assert isinstance(node, Directory)
            node = node.names[part]
        assert isinstance(node, Directory)
        return node

    def _find(self, path: PurePosixPath) -> Node | None:
        if path == self._root:
            return self._top
        return self._directory(path.parent).names.get(path.name)

    def apply(self, operation: Operation) -> None:
        if operation.kind is Kind.MARK or operation.path.endswith((" (deleted)", "-shm")):
            return
        if operation.error and operation.kind is not Kind.SYNC:
            return
        path = PurePosixPath(operation.path)
        if operation.kind in (Kind.CREATE, Kind.MKDIR):
            self._make(path, operation)
        elif operation.kind is Kind.UNLINK:
            self._directory(path.parent).change({path.name: None})
        elif operation.kind is Kind.RENAME:
            self._rename(path, PurePosixPath(operation.more.decode()))
        else:
            self._touch(self._find(path), operation)

    def _make(self, path: PurePosixPath, operation: Operation) -> None:
        found = self._find(path)
        if found is None:
            new = Directory() if operation.kind is Kind.MKDIR else File()
            self._directory(path.parent).change({path.name: new})
        elif isinstance(found, File) and operation.offset:
            found.truncate(0)

    def _rename(self, path: PurePosixPath, goal: PurePosixPath) -> None:
        assert path.parent == goal.parent, "names move within a directory only"
        self._directory(path.parent).change({path.name: None, goal.name: self._find(path)})

    def _touch(self, node: Node | None, operation: Operation) -> None:
        assert node is not None, operation
        if operation.kind is Kind.SYNC:
            node.lose_track() if operation.error else node.force()
            return
        assert isinstance(node, File)
        if operation.kind is Kind.WRITE:
            node.write(operation.offset, operation.more)
        else:
            node.truncate(operation.offset)

    def after_power_loss(self, goal: Path, loss: str, seed: int) -> None:
        """Lay down what is left: ``all`` that was not forced is lost, or only ``names`` or ``data`` are.

        ``zeros`` loses data but not lengths, ``some`` loses half of the sectors and of the changed names.
        """
        _lay_down(self._top, goal, loss, random.Random(seed))


def _lay_down(node: Directory, goal: Path, loss: str, rng: random.Random) -> None:
    goal.mkdir()
    for name, child in node.left(loss, rng).items():
        if isinstance(child, Directory):
            _lay_down(child, goal / name, loss, rng)
        else:
            (goal / name).write_bytes(child.left(loss, rng))
