"""Data made from clients' examples, kept between rounds in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

SELDOM = 16


class Sized(Protocol):
    """What takes memory."""

    @property
    def nbytes(self) -> int:
        """How much."""
        ...


Kept = TypeVar("Kept", bound=Sized)


class ClientCache(Generic[Kept]):
    """Data made from clients' examples by key, as much as fits.

    If clients train in turn and not all fit, a cache of the most recently used would never hit: each one
    is evicted just before its turn. So once it is full, only one in ``SELDOM`` new ones stays; the others
    replace each other (bimodal insertion: Qureshi et al., ISCA 2007).
    """

    def __init__(self, most_bytes: int) -> None:
        self._made: OrderedDict[Hashable, Kept] = OrderedDict()  # the next to be evicted comes first
        self._most, self._bytes, self._refused = most_bytes, 0, 0

    def get(self, held: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return what is cached for these examples, or make it; None as ``held`` is never cached."""
        if held is None:
            return make()
        found = self._made.get(held)
        if found is None:
            found = make()
            self._keep(held, found)
        else:
            self._made.move_to_end(held)
        return found

    def _keep(self, key: Hashable, made: Kept) -> None:
        if made.nbytes > self._most:
            return
        full = self._bytes + made.nbytes > self._most
        while self._bytes + made.nbytes > self._most:
            self._bytes -= self._made.popitem(last=False)[1].nbytes
        self._made[key] = made
        self._bytes += made.nbytes
        self._refused += full
        if full and self._refused % SELDOM:
            self._made.move_to_end(key, last=False)
