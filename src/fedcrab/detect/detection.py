"""The result of a detector: a score per client, and the suspects with a reason each.

:func:`join` combines the results of several detectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcrab.history import History
from fedcrab.html import html_pairs, html_rows
from fedcrab.types import ClientId, natural

NOT_LOOKED_FOR = "What was planted, and who taught it, was not looked for:"


def no_configuration(history: History) -> str | None:
    """Return why a command cannot examine what a history's models do; None if it can."""
    if history.charter.engine == "simulator":
        return None
    return (
        f"{history.path}: contains no configuration, so the model's module and the server's probe examples "
        "are unknown; in Python, pass both to fedcrab.audit (docs/forensics.md)"
    )


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a client is a suspect, and how certain that is."""

    reason: str
    confidence: float  # 0 to 1: the share of trainings without attack that show a weaker signal


@dataclass(frozen=True, slots=True)
class Detection:
    """What one detector found in one history.

    ``scores`` has every client, ``suspicions`` only the suspects. ``strength`` is the strongest signal as a
    fraction of the alarm threshold: 1 or more is an attack. ``apart`` has the clients that differ from the
    others, but not enough to be suspects, with the reason. ``notes`` are the limits of this detection.
    """

    detector: str
    rounds: int  # examined
    scores: Mapping[ClientId, float]  # how much each client differs from the others; 0 is not at all
    suspicions: Mapping[ClientId, Suspicion]
    strength: float
    notes: tuple[str, ...] = field(default=())
    apart: Mapping[ClientId, str] = field(default_factory=dict)

    @property
    def suspects(self) -> tuple[ClientId, ...]:
        """The clients that this detector considers malicious; empty if there is no sign of attack."""
        return tuple(sorted(self.suspicions, key=natural))

    @property
    def attack(self) -> bool:
        """Whether there is a sign of attack."""
        return bool(self.suspicions)

    @property
    def confidence(self) -> float:
        """How certain the attack is, from 0 to 1; 0 if there is no sign of one."""
        return max((s.confidence for s in self.suspicions.values()), default=0.0)

    def __repr__(self) -> str:
        """Return the detection in one line."""
        examined = f"{len(self.scores)} clients, {self.rounds} rounds"
        first = ", ".join(self.suspects[:10]) + (" …" if len(self.suspects) > 10 else "")
        result = f"suspects {first} ({self.confidence:.1%} sure)" if self.attack else "no sign of attack"
        return f"Detection({self.detector}: {result}; {examined})"

    def _repr_html_(self) -> str:
        summary = {
            "detector": self.detector,
            "suspects": ", ".join(self.suspects) or "none: no sign of attack",
            "sure": f"{self.confidence:.1%}" if self.attack else "",
            "strongest signal": f"{self.strength:.0%} of the alarm threshold",
        }
        ranked = sorted(self.scores, key=lambda c: (c not in self.suspicions, -self.scores[c]))
        rows = [(c, f"{self.scores[c]:.4g}", self._row(c)["reason"]) for c in ranked]
        return html_pairs("Detection", summary, below=html_rows(("client", "score", "reason"), rows))

    def to_table(self) -> dict[str, Any]:
        """Return the detection as plain values, for JSON."""
        return {
            "detector": self.detector,
            "rounds": self.rounds,
            "attack": self.attack,
            "suspects": list(self.suspects),
            "confidence": self.confidence,
            "strength": self.strength,
            "apart": [{"client": c, "reason": self.apart[c]} for c in sorted(self.apart, key=natural)],
            "clients": [self._row(client) for client in sorted(self.scores, key=natural)],
            "notes": list(self.notes),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Detection:
        """Return the detection that ``to_table`` wrote."""
        rows = {row["client"]: row for row in table["clients"]}
        return cls(
            table["detector"],
            table["rounds"],
            {client: row["score"] for client, row in rows.items()},
            {c: Suspicion(rows[c]["reason"], rows[c]["confidence"]) for c in table["suspects"]},
            table["strength"],
            tuple(table["notes"]),
            {row["client"]: row["reason"] for row in table["apart"]},
        )

    def _row(self, client: ClientId) -> dict[str, Any]:
        found = self.suspicions.get(client)
        return {
            "client": client,
            "score": self.scores[client],
            "suspect": found is not None,
            "confidence": found.confidence if found else 0.0,
            "reason": found.reason if found else "",
        }


def join(detections: Sequence[Detection], notes: Sequence[str] = ()) -> Detection:
    """Return several detections as one, called ``all``, with ``notes`` before theirs.

    A client is a suspect if any detector suspects it. Its reasons are joined, and its confidence is the
    largest. Scores of different detectors have different units. Therefore each score is divided by the
    largest of its detector and multiplied by min(strength, 1); a client gets the largest of its scores.
    """
    clients = [client for detection in detections for client in detection.scores]
    suspects = [client for detection in detections for client in detection.suspicions]
    return Detection(
        "all",
        max((d.rounds for d in detections), default=0),
        {client: max(_relative(d, client) for d in detections) for client in clients},
        {client: _joined_suspicion(detections, client) for client in suspects},
        max((d.strength for d in detections), default=0.0),
        (*notes, *(note for d in detections for note in d.notes)),
        {client: why for d in detections for client, why in d.apart.items() if client not in suspects},
    )


def _relative(detection: Detection, client: ClientId) -> float:
    largest = max(detection.scores.values(), default=0.0)
    if largest <= 0:
        return 0.0
    return detection.scores.get(client, 0.0) / largest * min(detection.strength, 1.0)


def _joined_suspicion(detections: Sequence[Detection], client: ClientId) -> Suspicion:
    found = [d.suspicions[client] for d in detections if client in d.suspicions]
    return Suspicion("; ".join(s.reason for s in found), max(s.confidence for s in found))
