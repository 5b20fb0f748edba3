"""Detection: who is malicious, one file per detector. Each takes a history and gives a :class:`Detection`."""

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
