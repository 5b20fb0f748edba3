"""On Flower: a recorder around any strategy, its clients as a fleet, and a server app that recovers."""

from fedcrab.extras import refuse_import

try:
    import flwr  # noqa: F401
except ImportError as error:
    refuse_import(__name__, "Flower", error)

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
