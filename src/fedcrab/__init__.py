"""fedcrab recovers a federated-learning model after poisoning."""

from fedcrab import detect, recover
from fedcrab.admission import Answer, admit
from fedcrab.certificate import Assumptions, Certificate, certify
from fedcrab.errors import ConfigError, DamagedError, FedcrabError, HistoryError, RecordError
from fedcrab.history import Compact, Every, Everything, History, Selective
from fedcrab.rollback.decision import PRESETS, Plan, plan
from fedcrab.types import ClientId, Field, Fleet, Layout, Rejection, Round, Updates, Vector

__version__ = "0.1.0"
__all__ = [
    "PRESETS",
    "Answer",
    "Assumptions",
    "Certificate",
    "ClientId",
    "Compact",
    "ConfigError",
    "DamagedError",
    "Every",
    "Everything",
    "FedcrabError",
    "Field",
    "Fleet",
    "History",
    "HistoryError",
    "Layout",
    "Plan",
    "RecordError",
    "Rejection",
    "Round",
    "Selective",
    "Updates",
    "Vector",
    "admit",
    "certify",
    "detect",
    "plan",
    "recover",
]
