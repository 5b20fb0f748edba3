"""The geometry of each round as a page carries it.

Where everybody is carried these are the ledger's own numbers, so that the page's sums are those of ``plan``,
bit for bit. Else the points are the carried clients, the mean of the others, the mean of the selected
others and the reference, and their coordinates the triangular factor of these alone: it has the same
norms of all combinations, to the rounding of one orthogonal transformation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcrab.history import History
from fedcrab.history.entries import RoundEntry
from fedcrab.report.page.carried import Carried, rows_of
from fedcrab.vectors import Matrix64


@dataclass(frozen=True, slots=True)
class Others:
    """Clients who are not carried, as one."""

    count: int
    examples: float
    row: Matrix64 | None  # of their mean


@dataclass(frozen=True, slots=True)
class Points:
    """One round's points."""

    members: tuple[int, ...]  # places in the round of those carried
    others: Others
    selected_others: Others  # in a kept round
    triangle: Matrix64  # the rows of the members, then of the others' means: packed, row i has i + 1 numbers
    reference: Matrix64  # of the kept round before, in a kept round; empty where there is none
    width: int


def points_of(history: History, clients: Carried) -> list[Points]:
    """The points of every round."""
    kept, inside = set(history.kept), set(clients.clients)
    before = dict(zip(history.kept[1:], history.kept, strict=False))
    return [
        _points(entry, [c in inside for c in entry.clients], entry.index in kept, before.get(entry.index))
        for entry in history.rounds
    ]


def _points(entry: RoundEntry, inside: Sequence[bool], kept: bool, before: int | None) -> Points:
    members = [place for place, there in enumerate(inside) if there]
    outside = [place for place, there in enumerate(inside) if not there]
    others = _together(entry, outside)
    chosen = _together(entry, [place for place in outside if entry.selected[place]] if kept else [])
    reference = np.zeros(0)
    if before is not None:
        reference = entry.coordinates.row(len(entry.clients) + entry.references.index(before))
    if outside or entry.coordinates.sketched:
        return _factored(entry, members, others, chosen, reference)
    triangle = entry.coordinates.numbers[: len(members) * (len(members) + 1) // 2]
    return Points(tuple(members), others, chosen, triangle, reference, entry.coordinates.width)


def _together(entry: RoundEntry, places: Sequence[int]) -> Others:
    if not places:
        return Others(0, 0.0, None)
    weights = entry.examples[list(places)]
    return Others(
        len(places), float(weights.sum()), entry.coordinates.combine(places, weights / weights.sum())
    )


def _factored(
    entry: RoundEntry, members: Sequence[int], others: Others, chosen: Others, reference: Matrix64
) -> Points:
    means = [o.row for o in (others, chosen) if o.row is not None]
    rows = rows_of(entry, members)
    last = np.zeros((1 if len(reference) else 0, rows.shape[1]))
    last[:, : len(reference)] = reference
    exact = _triangular(np.vstack([rows, *means, last]))
    count = len(members) + len(means)
    triangle = exact[:count, :count][np.tril_indices(count)]
    return Points(tuple(members), others, chosen, triangle, exact[count:].reshape(-1), len(exact))


def _triangular(rows: Matrix64) -> Matrix64:
    """The lower triangle with the same inner products between its rows."""
    exact = np.zeros((len(rows), len(rows)))
    factor = np.asarray(np.linalg.qr(rows.T, mode="r")).T
    exact[:, : factor.shape[1]] = factor
    return exact
