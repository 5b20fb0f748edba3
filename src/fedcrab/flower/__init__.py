"""On Flower: a recorder around any strategy, its clients as a fleet, and a server app that recovers."""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedcrab.flower needs Flower; install fedcrab[flower]") from error

from fedcrab.flower.exchange import Patience
from fedcrab.flower.fleet import FlowerFleet
from fedcrab.flower.recorder import Recorder
from fedcrab.flower.recovery import Recovered, app, patience_of, recover_if_asked, recovered

__all__ = [
    "FlowerFleet",
    "Patience",
    "Recorder",
    "Recovered",
    "app",
    "patience_of",
    "recover_if_asked",
    "recovered",
]
