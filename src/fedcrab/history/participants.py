"""The clients of a round as columns, and how the ledger stores them: one text and one byte string.

``ids`` has one line per client, in the order of the ids. ``numbers`` has these columns, one after the other:
examples, norms and cosines (little-endian float64), the sha256 of each update (32 bytes), and one byte per
client that says whether it was selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import lt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.admission import LONGEST_TEXT, MOST_EXAMPLES
from fedcrab.errors import DamagedError
from fedcrab.history.gram import Coordinates
from fedcrab.types import ClientId

DIGEST = 32  # bytes of a sha256
PER_CLIENT = 3 * 8 + DIGEST + 1  # bytes


@dataclass(frozen=True)
class Participants:
    """Every client of a round, in the order of the ids, and the geometry of their updates."""

    clients: tuple[ClientId, ...]
    examples: NDArray[np.float64]
    norms: NDArray[np.float64]
    cosines: NDArray[np.float64]
    selected: NDArray[np.bool_]
    raw_digests: bytes  # the sha256 of each update, one after the other
    coordinates: Coordinates

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The sha256 of each update."""
        text = self.raw_digests.hex()
        return tuple(text[at : at + 2 * DIGEST] for at in range(0, len(text), 2 * DIGEST))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The numbers of each client: examples, norm, cosine, selected."""
        return self.examples, self.norms, self.cosines, self.selected

    @property
    def size(self) -> int:
        """Return about how many bytes this needs in memory, without the coordinates."""
        return (PER_CLIENT + 8) * len(self.clients)

    def __call__(self) -> Participants:
        """Return itself: a round calls its participants."""
        return self


def pack_ids(found: Participants) -> str:
    """Return the ids, one per line."""
    return "\n".join(found.clients)


def pack_numbers(found: Participants) -> bytes:
    """Return the columns, one after the other."""
    columns = (np.ascontiguousarray(x, "<f8").tobytes() for x in (found.examples, found.norms, found.cosines))
    return b"".join([*columns, found.raw_digests, np.ascontiguousarray(found.selected, np.uint8).tobytes()])


def count_ids(text: object) -> int:
    """Return how many ids a text has, without splitting it."""
    if not isinstance(text, str):
        raise DamagedError(f"client ids must be a text, got {str(text)[:40]!r}")
    return text.count("\n") + 1 if text else 0


def are_ids(ids: tuple[str, ...]) -> bool:
    """Return whether these texts are printable, short, sorted and unique."""
    return all(map(str.isprintable, ids)) and max(map(len, ids), default=0) <= LONGEST_TEXT and _ordered(ids)


def _ordered(ids: tuple[str, ...]) -> bool:
    return all(map(lt, ids, ids[1:]))


def are_numbers(examples: NDArray[np.float64], *others: NDArray[np.float64]) -> bool:
    """Return whether every number is finite and every count of examples is possible."""
    possible = (examples > 0).all() and (examples <= MOST_EXAMPLES).all()
    return bool(possible) and all(bool(np.isfinite(column).all()) for column in others)


def unpack(ids: object, numbers: object, coordinates: Coordinates) -> Participants:
    """Return what :func:`pack_ids` and :func:`pack_numbers` wrote, every value checked."""
    count = count_ids(ids)
    if not isinstance(numbers, bytes) or len(numbers) != PER_CLIENT * count:
        raise DamagedError(f"the numbers of a round do not fit {count} clients")
    clients = tuple(str(ids).split("\n")) if count else ()
    if not are_ids(clients):
        raise DamagedError("the client ids of a round are invalid")
    examples, norms, cosines = np.frombuffer(numbers, "<f8", 3 * count).reshape(3, count)
    selected = np.frombuffer(numbers, np.uint8, count, offset=(PER_CLIENT - 1) * count)
    if not are_numbers(examples, norms, cosines) or (selected > 1).any():
        raise DamagedError("the numbers of a round's clients are out of bounds")
    digests = numbers[24 * count : (24 + DIGEST) * count]
    return Participants(clients, examples, norms, cosines, selected.astype(bool), digests, coordinates)
