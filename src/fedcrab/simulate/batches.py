"""The examples of the clients of a stack, and their batches, all gathered by one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Batches:
    """Each client's examples follow those of the client before it, which has as many or more.

    A row of ``x`` is a whole number of cache lines, so that every client's batch begins on one.
    """

    def __init__(self, x: Tensor, labels: Sequence[Tensor], *, batch: int) -> None:
        self.counts = [len(y) for y in labels]
        self.batch = min(batch, self.counts[0])
        self._x, self._y, self._begins = x, torch.cat(list(labels)), begins(self.counts)
        self._order = torch.zeros(len(labels), self.counts[0], dtype=torch.int64)
        self._labels = self._order[:, :, None]
        self._room = torch.empty(len(labels) * self.batch, x.shape[1])

    def shuffle(self, orders: Sequence[Tensor]) -> None:
        """Begin an epoch, in which each client sees its examples in this order."""
        for row, begin, order in zip(self._order, self._begins, orders, strict=True):
            torch.add(order, begin, out=row[: len(order)])
        self._labels = self._y[self._order][:, :, None]

    def gather(self, clients: slice, rows: slice) -> tuple[Tensor, Tensor]:
        """These rows of these clients in the order of the epoch; the next call overwrites this one's x."""
        order = self._order[clients, rows].reshape(-1)
        x = self._room[: len(order)]
        torch.index_select(self._x, 0, order, out=x)
        return x.view(clients.stop - clients.start, -1, x.shape[1]), self._labels[clients, rows]


def begins(counts: Sequence[int]) -> list[int]:
    """Where each of the clients with so many examples begins."""
    return [sum(counts[:place]) for place in range(len(counts))]
