"""A client in a stack, and who of a stack takes the next step together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedcrab.simulate.dual_layer import columns_of
from fedcrab.simulate.local import Task


@dataclass(frozen=True, slots=True)
class Learner:
    """A task, the features that its examples use, and whether its first layer is trained in its dual form."""

    task: Task
    x: Tensor
    features: Tensor
    dual: bool

    @property
    def count(self) -> int:
        """How many examples it has."""
        return len(self.x)

    @property
    def columns(self) -> int:
        """The width of its kernel in the dual form."""
        return columns_of(self.count) if self.dual else 0

    @property
    def kind(self) -> tuple[int, int]:
        """Those of one kind are stacked: the same products, of the same sizes."""
        return self.columns, 0 if self.dual else len(self.features)


def steps(counts: Sequence[int], batch: int) -> Iterator[tuple[slice, slice]]:
    """The steps of an epoch: which clients, and which of their examples; ``counts`` falls."""
    for begin in range(0, counts[0], batch):
        for first, after, rows in alike([count - begin for count in counts], batch):
            yield slice(first, after), slice(begin, begin + rows)


def alike(left: Sequence[int], batch: int) -> Iterator[tuple[int, int, int]]:
    """Neighbours whose next batches have the same size, as (first, after, size).

    ``left``, the examples that each client has still to see in this epoch, falls from client to client.
    """
    first = 0
    while first < len(left) and left[first] > 0:
        rows = min(left[first], batch)
        after = first + 1
        while after < len(left) and min(left[after], batch) == rows:
            after += 1
        yield first, after, rows
        first = after
