"""fedcrab recovers a federated-learning model after poisoning."""

from typing import TYPE_CHECKING

from fedcrab.extras import on_first_use

if TYPE_CHECKING:
    from fedcrab import aggregate, attack, detect, loggers, simulate, train
    from fedcrab.admission import Answer, admit
    from fedcrab.certificate import Assumptions, Certificate, certify
    from fedcrab.errors import ConfigError, DamagedError, FedcrabError, HistoryError, RecordError
    from fedcrab.evaluate import evaluate
    from fedcrab.function_fleet import fleet
    from fedcrab.history import Compact, Every, Everything, History, Selective
    from fedcrab.module_probe import probe
    from fedcrab.recover.run import Recovery
    from fedcrab.recover.step import Step
    from fedcrab.recover.typed_package import recover
    from fedcrab.report import report
    from fedcrab.rollback.decision import PRESETS, Plan, plan
    from fedcrab.state_dicts import flatten, unflatten
    from fedcrab.types import ClientId, Field, Fleet, Layout, Rejection, Round, Updates, Vector
else:  # each when it is first used: a command imports only what it needs
    __getattr__ = on_first_use(
        __name__,
        {
            "fedcrab.aggregate": (),
            "fedcrab.attack": (),
            "fedcrab.detect": (),
            "fedcrab.evaluate": (),
            "fedcrab.loggers": (),
            "fedcrab.recover": (),
            "fedcrab.report": (),
            "fedcrab.simulate": (),
            "fedcrab.train": (),
            "fedcrab.function_fleet": ("fleet",),
            "fedcrab.module_probe": ("probe",),
            "fedcrab.state_dicts": ("flatten", "unflatten"),
            "fedcrab.admission": ("Answer", "admit"),
            "fedcrab.certificate": ("Assumptions", "Certificate", "certify"),
            "fedcrab.errors": (
                "ConfigError",
                "DamagedError",
                "FedcrabError",
                "HistoryError",
                "RecordError",
            ),
            "fedcrab.history": ("Compact", "Every", "Everything", "History", "Selective"),
            "fedcrab.recover.run": ("Recovery",),
            "fedcrab.recover.step": ("Step",),
            "fedcrab.rollback.decision": ("PRESETS", "Plan", "plan"),
            "fedcrab.types": (
                *("ClientId", "Field", "Fleet", "Layout", "Rejection", "Round", "Updates", "Vector"),
            ),
        },
    )

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
    "Recovery",
    "Rejection",
    "Round",
    "Selective",
    "Step",
    "Updates",
    "Vector",
    "admit",
    "aggregate",
    "attack",
    "certify",
    "detect",
    "evaluate",
    "flatten",
    "fleet",
    "loggers",
    "plan",
    "probe",
    "recover",
    "report",
    "simulate",
    "train",
    "unflatten",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
