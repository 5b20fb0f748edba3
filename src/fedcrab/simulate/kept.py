"""What is made of clients' examples and needed again in every round."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

MOST_BYTES = 256 << 20


class Kept:
    """Tensors by key, the ones used last, as many as fit."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._tensors: dict[Hashable, Tensor] = {}
        self._most, self._bytes = most_bytes, 0

    def get(self, held: Hashable, what: str, make: Callable[[], Tensor]) -> Tensor:
        """The one kept for these examples, or made anew; ``held`` of None names no examples."""
        if held is None:
            return make()
        found = self._tensors.pop((held, what), None)
        if found is None:
            found = make()
            self._bytes += found.nbytes
        self._tensors[held, what] = found
        self._let_go()
        return found

    def _let_go(self) -> None:
        while self._bytes > self._most:
            self._bytes -= self._tensors.pop(next(iter(self._tensors))).nbytes
