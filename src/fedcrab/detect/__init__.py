"""Detection: which clients are malicious. A detector takes a history and returns a :class:`Detection`."""

from collections.abc import Callable, Mapping

from fedcrab.detect.detection import Detection, Suspicion, join
from fedcrab.detect.fldetector import FLDetector, WatchedFleet, fldetector
from fedcrab.detect.ledger import ledger
from fedcrab.history import History

DETECTORS: Mapping[str, Callable[[History], Detection]] = {"ledger": ledger, "fldetector": fldetector}
Watched = WatchedFleet  # its earlier name

__all__ = [
    "DETECTORS",
    "Detection",
    "FLDetector",
    "Suspicion",
    "Watched",
    "WatchedFleet",
    "fldetector",
    "join",
    "ledger",
]
