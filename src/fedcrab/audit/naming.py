"""Whom to name: where a ranking of clients is cut, and whether the cut stands out enough to name anybody.

Without a certain trigger (examples that are brought, an audit in doubt) the cut itself must show that
somebody taught it. The best cut of the parts is judged by its gap, in deviations of those below it, and by
what those above it did: the share of s that is teaching the class itself, Σ(n − p)/Σs, and the share that is
own. Attackers have no reason to teach g.

With a trigger that is there beyond doubt somebody did teach it; the question left is who. They are those
above the widest gap of E that begins below 0.3 and ends above 0.2 (attribution.py has E).

docs/forensics.md has how often both are right. They do not use each other's thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.split import FEWEST
from fedcrab.vectors import Matrix64

GAP = 2.0  # deviations of the others, between them and those that are named
NATURAL = 0.13  # of what the named did to x′: more is explained by teaching the class itself
OWN = 0.1  # of what they did to x′, at least
BEYOND_DOUBT = 4.0  # deviations, of the parts and of own alike, that need no further sign
BLUR = 0.08  # of the greatest part: the least deviation that is believed
HONEST, TEACHER = 0.3, 0.2  # E: nobody above the first is honest, nobody below the second is named


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of the clients into those that taught it and the others, and what speaks for it."""

    group: NDArray[np.bool_]  # of the clients, half at most; nobody where there are too few to divide
    gap: float  # between the two groups, in deviations of the others
    own_gap: float  # the same of own alone, at its best cut
    natural: float  # of what the group did to x′, the share that is teaching the class itself
    own: float  # of what it did, the share that is own

    @property
    def strength(self) -> float:
        """1 and more: they are named."""
        doubtless = min(self.gap, self.own_gap) / BEYOND_DOUBT
        if self.natural > NATURAL or self.own < OWN:
            return doubtless
        return max(doubtless, self.gap / GAP)


def widest_gap(values: Matrix64) -> tuple[NDArray[np.bool_], float]:
    """Who is above the widest gap, half of them or fewer, and the gap in deviations of those below it."""
    n, group = len(values), np.zeros(len(values), bool)
    if n < FEWEST:
        return group, 0.0
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cuts = range((n + 1) // 2, n)  # the first place above the cut
    gaps = [(ordered[i] - ordered[i - 1]) / np.hypot(ordered[:i].std(ddof=1), BLUR) for i in cuts]
    group[order[cuts[int(np.argmax(gaps))] :]] = True
    return group, float(max(gaps))


def certain_group(unexplained: Matrix64) -> NDArray[np.bool_]:
    """Who taught a trigger that is there beyond doubt: those above the widest gap around 0.2 to 0.3 of E.

    Half of the clients at most; nobody where more than half are above 0.3.
    """
    n, group = len(unexplained), np.zeros(len(unexplained), bool)
    order = np.argsort(unexplained, kind="stable")
    ordered = unexplained[order]
    cuts = [i for i in range(max((n + 1) // 2, 1), n) if ordered[i - 1] <= HONEST and ordered[i] >= TEACHER]
    if n >= FEWEST and cuts:
        group[order[max(cuts, key=lambda i: ordered[i] - ordered[i - 1]) :]] = True
    return group
