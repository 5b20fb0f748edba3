"""The signals of a history, looked at three ways: over all rounds, over the later half, and their change.

The change from the first half to the later one sets each client beside itself, which takes out what its own
data make different all along.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.signals import Signals, gather, leading
from fedcrab.history.entries import RoundEntry
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

SHORT = 8  # rounds, below which halves say nothing


@dataclass(frozen=True, slots=True)
class Looks:
    """The signals over all rounds and, where there are enough of them, over each half."""

    whole: Signals
    halves: tuple[Signals, Signals] | None

    def among(self, some: NDArray[np.intp]) -> dict[str, Matrix64]:
        """Every signal of these clients that most of them have; what is not known of a client is usual."""
        found = self.whole.among(some)
        if self.halves:
            first, later = (half.among(some) for half in self.halves)
            found |= {f"{name}, later": x for name, x in later.items()}
            found |= {f"{name}, change": x - first[name] for name, x in later.items() if name != "apart"}
            found |= {"apart, change": self._apart(some)} if "apart" in later else {}
        return {name: _filled(x) for name, x in found.items() if np.isfinite(x).mean() > 0.5}

    def _apart(self, some: NDArray[np.intp]) -> Matrix64:
        """Who changed apart: the leading coordinate of what changed in the cosines."""
        assert self.halves
        first, later = self.halves
        return leading((later.cosines - first.cosines)[np.ix_(some, some)])


def look(rounds: Sequence[RoundEntry], clients: Sequence[ClientId]) -> Looks:
    """The looks at these clients."""
    middle = len(rounds) // 2
    with ThreadPoolExecutor(2) as threads:  # most of it is numpy's, which lets both run
        first, later = threads.map(lambda half: gather(half, clients), (rounds[:middle], rounds[middle:]))
    halves = (first.signals(), later.signals()) if len(rounds) >= SHORT else None
    return Looks((first + later).signals(), halves)


def _filled(x: Matrix64) -> Matrix64:
    return np.where(np.isfinite(x), x, np.nanmedian(x))
