"""The usual rounds of a replay that ask clients: they predict its cost, and the replay never asks less often.

    gap to the next contact = 1 + ⌊rounds left / TAPER⌋, at most LONGEST

TAPER is a seventh of the replayed rounds, at least 2 and at most 4. :mod:`fedcrab.recover.pacing` decides
from measurements how much more often clients are asked.

If fewer than SHORT rounds are replayed, each has contact: estimates then save little, and each of them
matters much. (Flower's advanced-pytorch, ten rounds: accuracy 58.9% with contact in four of them, 70.0% in
all, 69.3% by honest-only training; 30, 44 and 100 local trainings.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

FEWEST_OF_FEW = 3  # asked in a contact round, if half of the honest participants are fewer
SHORT = 20  # replayed rounds; if there are fewer, each has contact
LONGEST = 5  # rounds from contact to contact, before the last ones
REPLAYED_PER_TAPER, LEAST_TAPER, MOST_TAPER = 7, 2, 4  # TAPER is a seventh of the replayed rounds
SETTLED = 40  # one in this many replayed rounds, at the end, asks every participant


@dataclass(frozen=True, slots=True)
class Moment:
    """A round of a replay."""

    round: int
    first: int  # the round that the replay begins with
    rounds: int  # of the history

    @property
    def replayed(self) -> int:
        """How many rounds are replayed in total."""
        return self.rounds - self.first

    @property
    def left(self) -> int:
        """How many of them are left, including this one."""
        return self.rounds - self.round


def usual_contacts(first: int, rounds: int) -> tuple[int, ...]:
    """Return the rounds in which a replay from ``first`` on usually asks a few clients, before it settles.

    This predicts the cost; the replay decides.
    """
    return tuple(usual_from(Moment(first + 1, first, rounds), settled_rounds(rounds - first)))


def usual_from(now: Moment, settled: int) -> Iterator[int]:
    """Yield this round and the usual contacts after it, until the ``settled`` last rounds."""
    while now.left > settled:
        yield now.round
        now = replace(now, round=now.round + min(LONGEST, longest_gap(now)))


def longest_gap(now: Moment) -> int:
    """Return how many rounds may pass until the next contact, from how many are left."""
    if now.replayed < SHORT:
        return 1
    return 1 + now.left // max(LEAST_TAPER, min(MOST_TAPER, now.replayed // REPLAYED_PER_TAPER))


def most_asked(wanted: int, honest: int) -> int:
    """Return how many honest participants are asked: at most half of them, at least three."""
    return min(wanted, max(FEWEST_OF_FEW, ceil(honest / 2)), honest)


def settled_rounds(replayed: int) -> int:
    """Return how many of the last rounds ask every honest participant."""
    return max(1, replayed // SETTLED)
