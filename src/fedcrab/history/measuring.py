"""What is measured and written of a round before it counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

import numpy as np

from fedcrab.admission import as_printable
from fedcrab.geometry import Measures, measure, measure_sketched
from fedcrab.history.contents import Contents
from fedcrab.history.entries import RoundEntry
from fedcrab.history.snapshots import Snapshots
from fedcrab.types import Rejection, Round, Updates, Vector
from fedcrab.vectors import Sliced, weighted_mean


class Measuring:
    """Makes the entry of a round, with a second thread for the files and the hashes."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self._beside = ThreadPoolExecutor(1)

    def enter(
        self, contents: Contents, round: Round, updates: Updates, rejected: tuple[Rejection, ...]
    ) -> RoundEntry:
        """Write the snapshots of a round and measure it; nothing points to them yet."""
        charter = contents.charter
        written = self._beside.submit(self._put_snapshots, contents, round, updates)  # on another core,
        digests = self._beside.submit(digests_of, updates)  # while this one measures
        measures = self._measure(contents, round, updates)
        start, after, stored = written.result()
        cosines = measures.cosines[_first_alike(digests.result())]
        selected = np.array(charter.selection.select(cosines.tolist()), bool)
        counted = updates.weights * selected
        mean = weighted_mean(updates.vectors, counted, charter.layout.trained(), self._beside)
        return RoundEntry(
            index=round.index,
            loss=float(round.loss),
            divergence=float(round.divergence),
            start=start,
            after=after,
            mean=self.snapshots.put_array("mean", mean),
            updates=stored,
            clients=updates.clients,
            examples=updates.weights.copy(),
            norms=measures.norms,
            cosines=cosines,
            selected=selected,
            digests=digests.result(),
            references=contents.references,
            coordinates=measures.coordinates,
            rejected=(*map(as_printable, round.rejected), *rejected),
        )

    def _put_snapshots(
        self, contents: Contents, round: Round, updates: Updates
    ) -> tuple[str, str, str | None]:
        """Write the models before and after the round, and the updates where they are kept."""
        charter = contents.charter
        start = self._put_start(contents, round.start)
        step = round.aggregate if updates.clients else None  # nobody answered: the model stays
        after = self.snapshots.put_model(charter.layout, round.start, step)
        keeps = charter.selection.keeps_updates(round.index)
        return start, after, self.snapshots.put_array("updates", updates.vectors) if keeps else None

    def _put_start(self, contents: Contents, start: Vector) -> str:
        """The hash of M_t, which the round before has left on the disk unless the model was changed since."""
        known = contents.rounds[-1].after if contents.rounds else contents.charter.initial_model
        layout = contents.charter.layout
        return (
            known
            if self.snapshots.hash_of(layout, start) == known
            else self.snapshots.put_model(layout, start)
        )

    def _measure(self, contents: Contents, round: Round, updates: Updates) -> Measures:
        charter = contents.charter
        with ExitStack() as stack:
            means = [stack.enter_context(self._mean(contents, t)) for t in contents.references]
            points = updates.vectors, round.aggregate, means, charter.layout.trained()
            if len(updates.clients) <= charter.gram_limit:
                return measure(*points)
            return measure_sketched(*points, size=charter.sketch_size, seed=charter.seed, round=round.index)

    def _mean(self, contents: Contents, round: int) -> AbstractContextManager[Sliced]:
        digest, size = contents.rounds[round].mean, contents.charter.layout.size
        return self.snapshots.vector(digest, "mean", size)

    def release(self) -> None:
        """End the second thread."""
        self._beside.shutdown()


def digests_of(updates: Updates) -> tuple[str, ...]:
    """The sha256 of each update."""
    return tuple(hashlib.sha256(np.ascontiguousarray(row, "<f4").data).hexdigest() for row in updates.vectors)


def _first_alike(digests: Sequence[str]) -> list[int]:
    """For each update the first that is equal to it: equal updates tie, however a matrix product rounds."""
    first: dict[str, int] = {}
    return [first.setdefault(digest, place) for place, digest in enumerate(digests)]
