"""Detection after the fact, from the ledger alone: whose updates differ from the others', over all rounds.

No update vectors are needed. Two kinds of evidence:

copies      Clients whose updates are the same but for a trace, over many rounds. Honest training does not
            give the same update twice; attacks that send one crafted vector from many clients do.
division    The clients fall into two groups (split.py), by signals from the Gram matrices (signals.py) in
            three looks (looks.py), with more weight than in trainings without attack.

The smaller group is malicious; of two groups of about the same size, the one along which the server's loss
does not fall (honest_side.py) or, where that is not clear, the one with the longer updates. What is found is
taken out and the rest judged again, until no sign is left or half of the clients are suspects: beyond that,
nothing tells one side from the other.

The signals of a history, looked at three ways: over all rounds, over the later half, and their change.

The change from the first half to the later one sets each client beside itself, which takes out what its own
data make different all along.

Signals in words.
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

SHORT = 8  # rounds, below which halves say nothing


@dataclass(frozen=True, slots=True)
class SignalViews:
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


def look(rounds: Sequence[RoundRecord], clients: Sequence[ClientId]) -> SignalViews:
    """The looks at these clients."""
    middle = len(rounds) // 2
    halves_of = (rounds[:middle], rounds[middle:])
    if len(clients) > MOST_PAIRED:  # one after the other: the numbers of a round take megabytes
        first, later = (gather(half, clients) for half in halves_of)
    else:
        with ThreadPoolExecutor(2) as threads:  # most of it is numpy's, which lets both run
            first, later = threads.map(lambda half: gather(half, clients), halves_of)
    halves = (first.signals(), later.signals()) if len(rounds) >= SHORT else None
    return SignalViews((first + later).signals(), halves)


def _filled(x: Matrix64) -> Matrix64:
    return np.where(np.isfinite(x), x, np.nanmedian(x))


COPIES = "sends copies of other clients' updates"
WORDS = {
    ("length", True): "longer updates",
    ("length", False): "shorter updates",
    ("outside", True): "its updates contain directions that nobody else shares",
    ("outside", False): "its updates lack directions that the others share",
    ("agreement", True): "more agreement with all others",
    ("agreement", False): "less agreement with the others",
    ("apart", True): "in a group that agrees with itself, less with the others",
}
LOOKS = {"": "", "later": " in the later rounds", "change": " as training went on"}
CLEAR_REASON = 0.6  # of the strongest signal


def reason(signals: Mapping[str, float]) -> str:
    """The strongest signals of a division, at most three, each kind once."""
    ranked = sorted(signals, key=lambda name: -abs(signals[name]))
    said: dict[str, str] = {}
    for name in ranked:
        if abs(signals[name]) >= CLEAR_REASON * abs(signals[ranked[0]]):
            kind, _, when = name.partition(", ")
            above = kind == "apart" or signals[name] > 0
            said.setdefault(kind, WORDS[kind, above] + LOOKS[when])
    return "; ".join(list(said.values())[:3])


ALARM = 2.5  # the weight of a division that is taken for an attack
APART = 2.1  # the weight of a division that is mentioned: unusual, but data that differ can make it
AGAIN = 2.6  # the same once an attack was found: what the others then went through was no usual training
USUAL = NormalDist(1.38, 0.27)  # the weights of trainings without attack; docs/detection.md has them
SURE = 0.999  # the most that is claimed
SIDE = 0.9  # that of two halves it is the one with the longer updates
HALF = 0.99  # the most that is claimed of two halves by the loss
COPIED = -2.0  # mean log10 of a distance: copies in a third of the rounds, or a hundredth of it in all
EVEN = 0.4  # from this share of the clients on, the smaller group need not be the malicious one
CLEAR = 3.0  # t of the loss, from which on it tells the honest side
LARGER = 3.0  # times what t should be for how often it was right; docs/detection.md has the trainings
FEW = 0.1  # of the usual number of examples, and of what they move: who has fewer is not judged
RARELY = 0.25  # of the usual number of rounds: who took part in fewer is not judged
FLOORS = {"length": log(1.2), "outside": log(1.2), "agreement": 0.05, "apart": 0.25}
Places = NDArray[np.intp]


def ledger(history: History) -> Detection:
    """Judge every client of a history by what its ledger says of them."""
    if not history.rounds:
        raise HistoryError(f"{history.path}: no round has been recorded, there is nothing to judge")
    if not history.clients:
        raise HistoryError(f"{history.path}: nobody took part in a round, there is nothing to judge")
    clients = history.clients
    everyone, looks = _often_there(history), look(history.rounds, clients)
    copies, negligible = _copies(looks, everyone), _negligible(history, everyone)
    suspicions = dict.fromkeys(copies.tolist(), Suspicion(COPIES, SURE))
    rest, weightiest, clearest = np.setdiff1d(everyone, [*copies, *negligible]), 0.0, None
    apart: dict[ClientId, str] = {}
    for some, division, side in _divisions(history, looks, rest, len({*rest, *copies})):
        weightiest, clearest = max(weightiest, division.weight), clearest or division
        if division.weight < (AGAIN if suspicions else ALARM):
            if division.weight >= APART and not suspicions:
                apart = dict.fromkeys((clients[i] for i in some[division.group]), reason(division.signals))
            break
        why = Suspicion(reason(division.signals), min(USUAL.cdf(division.weight) * side, SURE))
        suspicions |= dict.fromkeys(some[division.group].tolist(), why)
    named = {clients[i]: why for i, why in suspicions.items()}
    strength = max(weightiest / ALARM, 1.0 if len(copies) else 0.0)
    scores = _scores(looks, everyone, list(suspicions), clearest)
    found = {client: scores.get(i, 0.0) for i, client in enumerate(clients)}
    left_out = {clients[i] for i in negligible} - {*named}
    notes = (*_apart_note(apart), *_notes(history, everyone, len(named), left_out))
    return Detection("ledger", len(history.rounds), found, named, strength, notes, apart)


def _often_there(history: History) -> Places:
    """The clients that took part often enough to be judged."""
    times = Counter(client for entry in history.rounds for client in entry.clients)
    enough = RARELY * float(np.median([*times.values()] or [0]))
    return np.array([i for i, client in enumerate(history.clients) if times[client] >= enough], np.intp)


def _negligible(history: History, some: Places) -> Places:
    """Those of these clients that have few examples and hardly move the weighted mean: examples · ‖u‖.

    The updates of one example and those of hundreds differ without any attack. Somebody who claims few
    examples and sends long updates moves the mean, and is judged.
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


def _copies(looks: SignalViews, some: Places) -> Places:
    """The clients of whom another one is a copy."""
    if not looks.whole.nearness.size:
        return np.zeros(0, np.intp)
    near = looks.whole.nearness[np.ix_(some, some)] <= COPIED
    return some[near.any(axis=1)]


def _divisions(
    history: History, looks: SignalViews, rest: Places, clients: int
) -> Iterator[tuple[Places, Split, float]]:
    """The weightiest division of the rest, again and again without the group found malicious.

    Its group is the malicious one, and the last number how sure that is.
    """
    most = clients // 2 - (clients - len(rest))
    while len(rest) >= FEWEST and most > 0:
        signals = looks.among(rest)
        division = divide(signals, {name: FLOORS[name.partition(", ")[0]] for name in signals}, most=most)
        if division is None:
            return
        division, sure = _malicious_side(history, rest, division)
        yield rest, division, sure
        most -= int(division.group.sum())
        rest = rest[~division.group]


def _malicious_side(history: History, rest: Places, division: Split) -> tuple[Split, float]:
    """The division with the malicious side as its group, and how sure it is that it is that side."""
    if division.group.sum() < EVEN * len(rest):
        return division, SURE
    clients = history.clients
    clear = lowers_the_loss(history, {clients[i] for i in rest[division.group]})
    longer = division.signals.get("length", 0.0)
    if abs(clear) < CLEAR and abs(longer) >= 1:
        return (division if longer > 0 else division.other_side()), SIDE
    sure = min(NormalDist().cdf(abs(clear) / LARGER), HALF)
    return (division if clear <= 0 else division.other_side()), sure


def _scores(
    looks: SignalViews, everyone: Places, suspects: Sequence[int], division: Split | None
) -> dict[int, float]:
    """How far each client lies from the unsuspected in what divides them most, in their deviations.

    For copies at least how many powers of ten nearer they lie to each other than is usual.
    """
    signals, honest = looks.among(everyone), ~np.isin(everyone, suspects)
    total, scores = 1e-12, np.zeros(len(everyone))
    for name, strength in (division.signals if division else {}).items():
        if name in signals and strength:
            away = _deviations(signals[name], honest)
            scores += abs(strength) * (np.abs(away) if name.startswith("apart") else np.sign(strength) * away)
            total += abs(strength)
    scores = np.maximum(scores / total, 0.0)
    if looks.whole.nearness.size and len(everyone) > 1:
        pairs = np.nan_to_num(looks.whole.nearness[np.ix_(everyone, everyone)], nan=0.0)
        scores = np.where(honest, scores, np.maximum(scores, -pairs.min(axis=1)))
    return dict(zip(everyone.tolist(), scores.tolist(), strict=True))


def _deviations(x: Matrix64, honest: NDArray[np.bool_]) -> Matrix64:
    usual = x[honest] if honest.any() else x
    spread = float(usual.std())
    return (x - usual.mean()) / spread if spread > 0 else np.zeros_like(x)


def _apart_note(apart: Mapping[ClientId, str]) -> Iterator[str]:
    """Who stands apart without being named, in a sentence."""
    if apart:
        yield (
            f"Stand apart, but are not named: {join_ids(apart)} ({next(iter(apart.values()))}). Clients "
            "whose data differ can look like this without any attack."
        )


def _notes(
    history: History, everyone: Places, suspects: int, left_out: Collection[ClientId]
) -> Iterator[str]:
    """What limits the judgement."""
    if suspects >= EVEN * len(everyone):
        yield "Suspects and others are about as many: that it is the suspects who are malicious is less sure."
    if len(everyone) < 2 * FEWEST:
        yield f"{len(everyone)} clients are few to tell one group from two; only a very clear sign is taken."
    if rare := len(history.clients) - len(everyone):
        yield f"{rare} clients took part too rarely to be judged."
    if left_out:
        yield f"Too few examples to be compared with the others, and hardly heard: {join_ids(left_out)}."
    if len(history.clients) > MOST_PAIRED:
        yield f"With more than {MOST_PAIRED} clients pairs are not followed: copies and groups are not seen."
    if any(entry.coordinates.sketched for entry in history.rounds):
        yield "Rounds with this many clients are sketched: what lies outside all other updates is unknown."
