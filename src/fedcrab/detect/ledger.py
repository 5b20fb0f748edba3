"""The ledger detector: finds clients whose updates differ from the others', over all rounds.

It runs after a training and needs the ledger alone, no update vectors. There are two kinds of evidence:

copies    Clients whose updates are almost identical, in many rounds. Honest training does not produce the
          same update twice. Attacks that send one crafted vector from many clients do.
split     The clients form two groups (split.py), by signals from the Gram matrices (signals.py), with more
          weight than in trainings without attack. Each signal is measured over all rounds, over the later
          half, and as its change from the first half to the later one. The change compares each client with
          itself, which removes the constant effect of its data.

The smaller group is malicious. Of two groups of similar size, it is the one along which the server's loss
does not fall (split.py); if that is not clear, it is the one with the longer updates. The suspects are then
removed and the others are split again, until there is no further sign or half of the clients are suspects.
With more suspects than that, nothing distinguishes the two groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.detect.signals import MOST_PAIRED, Signals, gather, leading
from fedcrab.detect.split import FEWEST, Split, divide, lowers_the_loss
from fedcrab.errors import HistoryError
from fedcrab.history import History
from fedcrab.history.records import RoundRecord
from fedcrab.rollback.warnings import join_ids
from fedcrab.types import ClientId
from fedcrab.vectors import Matrix64

MIN_ROUNDS = 8  # to split a history into halves


@dataclass(frozen=True, slots=True)
class SignalViews:
    """The signals over all rounds and, if there are enough rounds, over each half."""

    whole: Signals
    halves: tuple[Signals, Signals] | None

    def among(self, some: NDArray[np.intp]) -> dict[str, Matrix64]:
        """Return every signal that most of these clients have; a missing value becomes the median."""
        found = self.whole.among(some)
        if self.halves:
            first, later = (half.among(some) for half in self.halves)
            found |= {f"{name}, later": x for name, x in later.items()}
            found |= {f"{name}, change": x - first[name] for name, x in later.items() if name != "apart"}
            found |= {"apart, change": self._apart_change(some)} if "apart" in later else {}
        return {
            name: np.where(np.isfinite(x), x, np.nanmedian(x))
            for name, x in found.items()
            if np.isfinite(x).mean() > 0.5
        }

    def _apart_change(self, some: NDArray[np.intp]) -> Matrix64:
        """Return the leading coordinate of the change of the cosines: which clients changed together."""
        assert self.halves
        first, later = self.halves
        return leading((later.cosines - first.cosines)[np.ix_(some, some)])


def signal_views(rounds: Sequence[RoundRecord], clients: Sequence[ClientId]) -> SignalViews:
    """Return the signals of these clients over all of these rounds, and over each half."""
    middle = len(rounds) // 2
    record_halves = (rounds[:middle], rounds[middle:])
    if len(clients) > MOST_PAIRED:  # one after the other: the numbers of a round take megabytes
        first, later = (gather(half, clients) for half in record_halves)
    else:
        with ThreadPoolExecutor(2) as threads:  # numpy does most of the work and releases the lock
            first, later = threads.map(lambda half: gather(half, clients), record_halves)
    halves = (first.signals(), later.signals()) if len(rounds) >= MIN_ROUNDS else None
    return SignalViews((first + later).signals(), halves)


COPIES = "sends copies of other clients' updates"
WORDS = {
    ("length", True): "longer updates",
    ("length", False): "shorter updates",
    ("outside", True): "its updates contain directions that nobody else shares",
    ("outside", False): "its updates lack directions that the others share",
    ("agreement", True): "more agreement with the others",
    ("agreement", False): "less agreement with the others",
    ("apart", True): "in a group that agrees more with itself than with the others",
}
PERIODS = {"": "", "later": " in the later rounds", "change": " as training went on"}
CLEAR_REASON = 0.6  # of the strongest signal


def reason(signals: Mapping[str, float]) -> str:
    """Return the strongest signals of a split in words: at most three, each kind once."""
    ranked = sorted(signals, key=lambda name: -abs(signals[name]))
    phrases: dict[str, str] = {}
    for name in ranked:
        if abs(signals[name]) >= CLEAR_REASON * abs(signals[ranked[0]]):
            kind, _, period = name.partition(", ")
            above = kind == "apart" or signals[name] > 0
            phrases.setdefault(kind, WORDS[kind, above] + PERIODS[period])
    return "; ".join(list(phrases.values())[:3])


ALARM = 2.5  # weight of a split from which it counts as an attack
APART = 2.1  # weight of a split from which it is mentioned: unusual, but different data can cause it
AGAIN = 2.6  # ALARM after a first group of suspects: their attack has disturbed the others' training
USUAL = NormalDist(1.38, 0.27)  # weights in trainings without attack; docs/detection.md lists them
MAX_CONFIDENCE = 0.999
SIDE = 0.9  # confidence if the longer updates decide between two groups of similar size
HALF = 0.99  # largest confidence if the loss decides between two groups of similar size
COPIED = -2.0  # mean log10 of a distance: copies in a third of the rounds, or 1/100 of it in all rounds
EVEN = 0.4  # share of the clients from which the smaller group need not be the malicious one
CLEAR = 3.0  # t statistic of the loss from which it decides which group is honest
LARGER = 3.0  # t overstates how often it is right by this factor; docs/detection.md lists the trainings
FEW = 0.1  # of the median number of examples, and of examples · ‖u‖; clients below both are not judged
RARELY = 0.25  # of the median number of rounds; clients with fewer are not judged
FLOORS = {"length": log(1.2), "outside": log(1.2), "agreement": 0.05, "apart": 0.25}
Indices = NDArray[np.intp]  # of clients, in history.clients


def ledger(history: History) -> Detection:
    """Return the suspects among the clients of a history, from its ledger alone.

    Raises HistoryError if no round has been recorded, or no client took part in one.
    """
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round has been recorded, so no client can be judged")
    if not history.clients:
        raise HistoryError(f"{history.path}: no client took part in any round, so none can be judged")
    clients = history.clients
    judged, views = _frequent(history), signal_views(history.rounds, clients)
    copies, negligible = _copies(views, judged), _negligible(history, judged)
    suspicions = dict.fromkeys(copies.tolist(), Suspicion(COPIES, MAX_CONFIDENCE))
    rest, largest_weight, first_split = np.setdiff1d(judged, [*copies, *negligible]), 0.0, None
    apart: dict[ClientId, str] = {}
    for members, split, side in _splits(history, views, rest, len({*rest, *copies})):
        largest_weight, first_split = max(largest_weight, split.weight), first_split or split
        if split.weight < (AGAIN if suspicions else ALARM):
            if split.weight >= APART and not suspicions:
                apart = dict.fromkeys((clients[i] for i in members[split.group]), reason(split.signals))
            break
        suspicion = Suspicion(reason(split.signals), min(USUAL.cdf(split.weight) * side, MAX_CONFIDENCE))
        suspicions |= dict.fromkeys(members[split.group].tolist(), suspicion)
    by_client = {clients[i]: suspicion for i, suspicion in suspicions.items()}
    strength = max(largest_weight / ALARM, 1.0 if len(copies) else 0.0)
    by_index = _scores(views, judged, list(suspicions), first_split)
    scores = {client: by_index.get(i, 0.0) for i, client in enumerate(clients)}
    left_out = {clients[i] for i in negligible} - {*by_client}
    notes = (*_apart_note(apart), *_notes(history, judged, len(by_client), left_out))
    return Detection("ledger", len(history.rounds), scores, by_client, strength, notes, apart)


def _frequent(history: History) -> Indices:
    """Return the clients that took part often enough to be judged."""
    times = Counter(client for entry in history.rounds for client in entry.clients)
    enough = RARELY * float(np.median([*times.values()] or [0]))
    return np.array([i for i, client in enumerate(history.clients) if times[client] >= enough], np.intp)


def _negligible(history: History, some: Indices) -> Indices:
    """Return the clients that have few examples and hardly move the weighted mean: examples · ‖u‖.

    The update of a client with one example differs from one with hundreds, without any attack. A client
    that claims few examples and sends long updates moves the mean, so it is judged.
    """
    place = {client: i for i, client in enumerate(history.clients)}
    times, examples, moved = np.zeros((3, len(place)))
    for entry in history.rounds:
        at = [place[client] for client in entry.clients]
        times[at] += 1
        examples[at] += entry.examples
        moved[at] += entry.examples * entry.norms
    means = [total[some] / np.maximum(times[some], 1) for total in (examples, moved)]
    return some[np.all([x < FEW * np.median(x) for x in means], axis=0)] if len(some) else some


def _copies(views: SignalViews, some: Indices) -> Indices:
    """Return the clients whose updates are copies of another client's."""
    if not views.whole.nearness.size:
        return np.zeros(0, np.intp)
    near = views.whole.nearness[np.ix_(some, some)] <= COPIED
    return some[near.any(axis=1)]


def _splits(
    history: History, views: SignalViews, rest: Indices, clients: int
) -> Iterator[tuple[Indices, Split, float]]:
    """Split the rest, remove the malicious group, and repeat, up to half of this many clients.

    Yields the clients that were split, the split with the malicious group as ``group``, and the confidence
    that this is the malicious group.
    """
    most = clients // 2 - (clients - len(rest))
    while len(rest) >= FEWEST and most > 0:
        signals = views.among(rest)
        split = divide(signals, {name: FLOORS[name.partition(", ")[0]] for name in signals}, most=most)
        if split is None:
            return
        split, confidence = _malicious_side(history, rest, split)
        yield rest, split, confidence
        most -= int(split.group.sum())
        rest = rest[~split.group]


def _malicious_side(history: History, rest: Indices, split: Split) -> tuple[Split, float]:
    """Return the split with the malicious group as ``group``, and the confidence in that choice."""
    if split.group.sum() < EVEN * len(rest):
        return split, MAX_CONFIDENCE
    t = lowers_the_loss(history, {history.clients[i] for i in rest[split.group]})
    longer = split.signals.get("length", 0.0)
    if abs(t) < CLEAR and abs(longer) >= 1:
        return (split if longer > 0 else split.other_side()), SIDE
    confidence = min(NormalDist().cdf(abs(t) / LARGER), HALF)
    return (split if t <= 0 else split.other_side()), confidence


def _scores(
    views: SignalViews, judged: Indices, suspects: Sequence[int], split: Split | None
) -> dict[int, float]:
    """Return how far each client is from the unsuspected ones in the signals of the split, in deviations.

    The score of a copy is at least log10 of how much closer it is to another client than usual.
    """
    signals, honest = views.among(judged), ~np.isin(judged, suspects)
    total, scores = 1e-12, np.zeros(len(judged))
    for name, strength in (split.signals if split else {}).items():
        if name in signals and strength:
            away = _deviations(signals[name], honest)
            scores += abs(strength) * (np.abs(away) if name.startswith("apart") else np.sign(strength) * away)
            total += abs(strength)
    scores = np.maximum(scores / total, 0.0)
    if views.whole.nearness.size and len(judged) > 1:
        pairs = np.nan_to_num(views.whole.nearness[np.ix_(judged, judged)], nan=0.0)
        scores = np.where(honest, scores, np.maximum(scores, -pairs.min(axis=1)))
    return dict(zip(judged.tolist(), scores.tolist(), strict=True))


def _deviations(x: Matrix64, honest: NDArray[np.bool_]) -> Matrix64:
    usual = x[honest] if honest.any() else x
    spread = float(usual.std())
    return (x - usual.mean()) / spread if spread > 0 else np.zeros_like(x)


def _apart_note(apart: Mapping[ClientId, str]) -> Iterator[str]:
    if apart:
        yield (
            f"Stand apart, but are not named: {join_ids(apart)} ({next(iter(apart.values()))}). Clients "
            "with different data can look like this without any attack."
        )


def _notes(history: History, judged: Indices, suspects: int, left_out: Collection[ClientId]) -> Iterator[str]:
    """Yield what limits this detection."""
    if suspects >= EVEN * len(judged):
        yield "About half of the clients are suspects: it is less certain that they are the malicious half."
    if len(judged) < 2 * FEWEST:
        yield f"With {len(judged)} clients only a very clear difference counts as two groups."
    if rare := len(history.clients) - len(judged):
        yield f"{rare} clients took part too rarely to be judged."
    if left_out:
        yield f"Not compared, because of few examples and little effect on the model: {join_ids(left_out)}."
    if len(history.clients) > MOST_PAIRED:
        yield f"Copies and groups are not detected with more than {MOST_PAIRED} clients."
    if any(entry.coordinates.sketched for entry in history.rounds):
        yield (
            "Rounds with this many clients are sketched: directions that no other update shares are unknown."
        )
