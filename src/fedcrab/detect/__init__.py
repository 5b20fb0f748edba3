"""Detection: who is malicious, one file a detector. Each takes a history and gives a :class:`Detection`."""

from fedcrab.detect.detection import Detection, Suspicion
from fedcrab.detect.fldetector import FLDetector, Watched, fldetector
from fedcrab.detect.ledger import ledger

__all__ = ["Detection", "FLDetector", "Suspicion", "Watched", "fldetector", "ledger"]
