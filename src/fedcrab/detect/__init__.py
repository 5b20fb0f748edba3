"""Detection: who is malicious, one file a detector. Each takes a history and gives a :class:`Detection`."""

from collections.abc import Callable, Mapping

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.detect.fldetector import FLDetector, Watched, fldetector
from fedcrab.detect.ledger import ledger
from fedcrab.history import History

DETECTORS: Mapping[str, Callable[[History], Detection]] = {"ledger": ledger, "fldetector": fldetector}

__all__ = ["DETECTORS", "Detection", "FLDetector", "Suspicion", "Watched", "fldetector", "ledger"]
