"""Which clients to name: where to cut a ranking of clients, and whether the cut is clear enough.

Without a certain trigger (for examples of the operator, or an audit in doubt), the cut itself must show that
somebody taught it. The best cut of the parts is judged by its gap, in deviations of the clients below it,
and by what the clients above it did: the share of s that is teaching the class itself, Σ(n − p)/Σs, and the
share of own. Attackers have no reason to teach g.

With a certain trigger somebody did teach it, and the question is only who. It is the clients above the
widest gap of E (attribution.py) that starts below 0.3 and ends above 0.2.

docs/forensics.md reports how often both are right. Their thresholds are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.split import FEWEST
from fedcrab.vectors import Matrix64

GAP = 2.0  # least gap between the named clients and the others, in deviations of the others
NATURAL = 0.13  # largest share of s; with more, teaching the class itself explains it
OWN = 0.1  # least share of s
CERTAIN_GAP = 4.0  # of the parts and of own: enough whatever the shares are
BLUR = 0.08  # of the largest part: a smaller deviation counts as this
HONEST, TEACHER = 0.3, 0.2  # E: no client above the first is honest, none below the second is named


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut between the clients that taught it and the others, and the evidence for it."""

    group: NDArray[np.bool_]  # at most half of the clients; none if there are too few clients
    gap: float  # between the two groups, in deviations of the others
    own_gap: float  # the same for own alone, at its best cut
    natural: float  # the share of the group's s that is teaching the class itself
    own: float  # the share of the group's s that is own

    @property
    def strength(self) -> float:
        """The evidence as a fraction of what names the group: 1 or more names it."""
        certain = min(self.gap, self.own_gap) / CERTAIN_GAP
        if self.natural > NATURAL or self.own < OWN:
            return certain
        return max(certain, self.gap / GAP)


def widest_gap(values: Matrix64) -> tuple[NDArray[np.bool_], float]:
    """Return which clients are above the widest gap, and the gap in deviations of those below it.

    At most half of the clients are above it; none if there are fewer than FEWEST.
    """
    n, group = len(values), np.zeros(len(values), bool)
    if n < FEWEST:
        return group, 0.0
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cuts = range((n + 1) // 2, n)  # the first index above the cut
    gaps = [(ordered[i] - ordered[i - 1]) / np.hypot(ordered[:i].std(ddof=1), BLUR) for i in cuts]
    group[order[cuts[int(np.argmax(gaps))] :]] = True
    return group, float(max(gaps))


def certain_group(unexplained: Matrix64) -> NDArray[np.bool_]:
    """Return which clients taught a certain trigger: those above the widest gap of E around 0.2 to 0.3.

    At most half of the clients; none if more than half are above 0.3.
    """
    n, group = len(unexplained), np.zeros(len(unexplained), bool)
    order = np.argsort(unexplained, kind="stable")
    ordered = unexplained[order]
    cuts = [i for i in range(max((n + 1) // 2, 1), n) if ordered[i - 1] <= HONEST and ordered[i] >= TEACHER]
    if n >= FEWEST and cuts:
        group[order[max(cuts, key=lambda i: ordered[i] - ordered[i - 1]) :]] = True
    return group
