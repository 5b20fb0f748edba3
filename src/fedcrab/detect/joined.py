"""One answer of several detectors: everybody whom one of them names, with all reasons."""

from __future__ import annotations

from collections.abc import Sequence

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.types import ClientId


def join(detections: Sequence[Detection], notes: Sequence[str] = ()) -> Detection:
    """The detections as one, called ``all``.

    A suspect's reasons stand side by side and its confidence is the greatest. Scores of different detectors
    have different units: each is taken beside the greatest of its detector, and a client has its greatest.
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
    )


def _relative(detection: Detection, client: ClientId) -> float:
    greatest = max(detection.scores.values(), default=0.0)
    return detection.scores.get(client, 0.0) / greatest if greatest > 0 else 0.0


def _both(detections: Sequence[Detection], client: ClientId) -> Suspicion:
    found = [d.suspicions[client] for d in detections if client in d.suspicions]
    return Suspicion("; ".join(s.reason for s in found), max(s.confidence for s in found))
