"""What a detector says: a score for every client, the suspects with a reason each, or no sign of attack.

And one answer of several detectors: everybody whom one of them names, with all reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcrab.html import html_pairs, html_rows
from fedcrab.types import ClientId, natural


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a client is a suspect, and how sure that is."""

    reason: str
    confidence: float  # 0 to 1: how rarely a fleet without attack would give this reason


@dataclass(frozen=True, slots=True)
class Detection:
    """The judgement of one detector over one history."""

    detector: str
    rounds: int  # that it has seen
    scores: Mapping[ClientId, float]  # of every client: how far it stands out, 0 for not at all
    suspicions: Mapping[ClientId, Suspicion]  # of the suspects alone
    strength: float  # of the clearest sign; 1 and more is taken for an attack
    notes: tuple[str, ...] = field(default=())  # what limits this judgement
    apart: Mapping[ClientId, str] = field(
        default_factory=dict
    )  # who stands apart, too little to be named: why

    @property
    def suspects(self) -> tuple[ClientId, ...]:
        """Who is taken to be malicious; nobody where there is no sign of attack."""
        return tuple(sorted(self.suspicions, key=natural))

    @property
    def attack(self) -> bool:
        """Whether there is a sign of attack."""
        return bool(self.suspicions)

    @property
    def confidence(self) -> float:
        """How sure it is that there was an attack; 0 where there is no sign of one."""
        return max((s.confidence for s in self.suspicions.values()), default=0.0)

    def __repr__(self) -> str:
        """In one line."""
        seen = f"{len(self.scores)} clients, {self.rounds} rounds"
        found = ", ".join(self.suspects[:10]) + (" …" if len(self.suspects) > 10 else "")
        told = f"suspects {found} ({self.confidence:.1%} sure)" if self.attack else "no sign of attack"
        return f"Detection({self.detector}: {told}; {seen})"

    def _repr_html_(self) -> str:
        facts = {
            "detector": self.detector,
            "suspects": ", ".join(self.suspects) or "none: no sign of attack",
            "sure": f"{self.confidence:.1%}" if self.attack else "",
            "strongest signal": f"{self.strength:.0%} of the alarm threshold",
        }
        ranked = sorted(self.scores, key=lambda c: (c not in self.suspicions, -self.scores[c]))
        rows = [(c, f"{self.scores[c]:.4g}", self._row(c)["reason"]) for c in ranked]
        return html_pairs("Detection", facts, below=html_rows(("client", "score", "because of"), rows))

    def to_table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
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
        """The detection that ``to_table`` told."""
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
    """The detections as one, called ``all``.

    A suspect's reasons stand side by side and its confidence is the greatest. Scores of different detectors
    have different units: each is taken beside the greatest of its detector, times that detector's strength
    where it is below 1, and a client has its greatest.
    """
    clients = [client for detection in detections for client in detection.scores]
    suspects = [client for detection in detections for client in detection.suspicions]
    return Detection(
        "all",
        max((d.rounds for d in detections), default=0),
        {client: max(_relative(d, client) for d in detections) for client in clients},
        {client: _both(detections, client) for client in suspects},
        max((d.strength for d in detections), default=0.0),
        (*notes, *(note for d in detections for note in d.notes)),
        {client: why for d in detections for client, why in d.apart.items() if client not in suspects},
    )


def _relative(detection: Detection, client: ClientId) -> float:
    greatest = max(detection.scores.values(), default=0.0)
    if greatest <= 0:
        return 0.0
    return detection.scores.get(client, 0.0) / greatest * min(detection.strength, 1.0)


def _both(detections: Sequence[Detection], client: ClientId) -> Suspicion:
    found = [d.suspicions[client] for d in detections if client in d.suspicions]
    return Suspicion("; ".join(s.reason for s in found), max(s.confidence for s in found))
