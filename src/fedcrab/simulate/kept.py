"""What is kept from round to round: what is made of clients' examples, and memory to work in."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from fedcrab.simulate.stack import LINE

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


class Room:
    """Memory to work in, lent again and again: fresh memory is slow to fill."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def lend(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Tensors of these shapes, each on a cache line, in place of all lent before; nothing is set."""
        sizes = [-(-prod(shape) // LINE) * LINE for shape in shapes]
        if len(self._numbers) < sum(sizes):
            self._numbers = torch.empty(sum(sizes))
        ends = list(accumulate(sizes))
        return [
            self._numbers[end - size : end - size + prod(shape)].view(shape)
            for size, end, shape in zip(sizes, ends, shapes, strict=True)
        ]
