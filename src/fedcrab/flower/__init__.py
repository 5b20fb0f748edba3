"""On Flower: a recorder around any strategy, its clients as a fleet, and a server app that recovers."""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedcrab.flower needs Flower: pip install 'fedcrab[flower]'", name="flwr") from error

from fedcrab.flower.fleet import FlowerFleet
from fedcrab.flower.recorder import Recorder
from fedcrab.flower.recovery import Recovered, app, patience_of, recover_history, recover_if_asked
from fedcrab.recording.patience import Patience

recovered = recover_history  # its earlier name

__all__ = [
    "FlowerFleet",
    "Patience",
    "Recorder",
    "Recovered",
    "app",
    "patience_of",
    "recover_history",
    "recover_if_asked",
    "recovered",
]
