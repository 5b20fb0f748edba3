"""The recovery methods by name, and the traits by which the rest of fedcrab tells them apart.

A new method is one row here: commands, Flower, suites, tables and the page read the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from fedcrab.errors import HistoryError
from fedcrab.history import Compact, Every, Everything, History, Selective
from fedcrab.history.selection import Selection
from fedcrab.recover.crab import CRAB_PRESETS, crab
from fedcrab.recover.federaser import check_history, federaser
from fedcrab.recover.fedrecover import exact_rounds, fedrecover
from fedcrab.recover.finetune import ROUNDS, finetune
from fedcrab.recover.replay import replay
from fedcrab.recover.retrain import PER_ROUND, retrain, retrain_few
from fedcrab.recover.step import Step, check_updates
from fedcrab.recover.subtract_and_distil import PASSES, subtract_and_distil
from fedcrab.rollback.decision import PRESETS, Plan
from fedcrab.types import Vector

Settings = Mapping[str, Any]


def _every_round(plan: Plan, _: Settings) -> int:
    return len(plan.history.rounds)


def _from_rollback(plan: Plan, settings: Settings) -> int:
    return len(plan.history.rounds) - (plan.rollback_round if settings.get("rollback", True) else 0)


@dataclass(frozen=True)
class Method:
    """A recovery method: its function, how the rollback is decided, its settings and traits."""

    title: str  # shown to users
    function: Callable[..., Iterator[Step]]
    preset: str  # of the decision: a row of PRESETS
    selection: Selection  # of the history that it was designed for
    settings: Settings = field(default_factory=dict)
    added: Settings = field(default_factory=dict)  # settings newer than published results, as used then
    start: Literal["initial", "rollback", "final"] = "initial"  # the model that its first step starts from
    needs_history: bool = True  # False: it only needs to know who took part when
    check: Callable[[History], None] | None = None  # raises if a history lacks what the method needs
    length: Callable[[Plan, Settings], int] = _every_round  # about how many steps it takes
    by_plan: bool = False  # whether it asks the clients and rounds of the plan, so that its cost is known
    contacts: Callable[[History, int], Sequence[int]] | None = None  # rounds from a given one on that ask all
    most: int | None = None  # at most this many participants are asked in each of these rounds; None: all
    remark: str = ""  # what the count of these rounds does not include
    keeps_answers: Callable[[Settings], bool] = lambda _: False  # whether its certificate needs the answers
    needs_probe: bool = False  # whether it trains on the server's own examples, passed as ``probe``
    version: int = 1  # increased if the same settings give another model: cells are computed again
    batches: str = "history"  # which batches simulated clients draw in results whose key does not say

    @property
    def plan(self) -> Settings:
        """Evidence, rule and beta of its decision."""
        return PRESETS[self.preset]

    @property
    def rolls_back(self) -> bool:
        """Whether it starts at the rollback round; otherwise a plan only says who is malicious."""
        return self.start == "rollback"

    def begins_at_rollback(self, settings: Settings) -> bool:
        """Return whether it does with these settings: FedRecover can also start at the initial model."""
        return self.rolls_back and bool(settings.get("rollback", True))

    def start_model(self, plan: Plan, settings: Settings | None = None) -> Vector:
        """Return the model that its first step starts from."""
        history = plan.history
        if self.rolls_back and not self.begins_at_rollback(settings or {}):
            return history.initial_model()
        if self.start == "rollback":
            return history.model(plan.rollback_round)
        return history.initial_model() if self.start == "initial" else history.final_model()

    def start_round(self, plan: Plan) -> int:
        """Return the round of the history that starts with this model."""
        places = {"initial": 0, "rollback": plan.rollback_round, "final": len(plan.history.rounds)}
        return places[self.start]


REFERENCE = "retrain"  # the method that all others are compared with
CRAB_BEFORE = {"everyone": False}
METHODS: Mapping[str, Method] = {
    "retrain": Method(
        "Train from scratch",
        retrain,
        "hardened",
        Selective(),
        needs_history=False,
        contacts=lambda history, _: range(len(history.rounds)),
    ),
    "retrain-few": Method(
        "Train from scratch, few clients",
        retrain_few,
        "hardened",
        Selective(),
        needs_history=False,
        contacts=lambda history, _: range(len(history.rounds)),
        most=PER_ROUND,
    ),
    "finetune": Method(
        "Fine-tune",
        finetune,
        "hardened",
        Selective(),
        start="final",
        needs_history=False,
        length=lambda _, settings: int(settings.get("rounds", ROUNDS)),
        remark="a backdoor stays",
    ),
    "subtract-and-distil": Method(
        "Subtract and distil",
        subtract_and_distil,
        "hardened",
        Compact(),
        start="final",
        check=partial(check_updates, method="subtract-and-distil"),
        length=lambda _, settings: int(settings.get("passes", PASSES)) + 1,
        contacts=lambda *_: (),
        remark="on the server's own examples; no client is asked",
        needs_probe=True,
    ),
    "federaser": Method(
        "FedEraser",
        federaser,
        "hardened",
        Every(2),
        check=check_history,
        length=lambda plan, settings: len(plan.history.kept[:: settings.get("every", 1)]),
        contacts=lambda history, _: history.kept[1:],
        remark="half of the local epochs each time",
    ),
    "fedrecover": Method(
        "FedRecover",
        fedrecover,
        "hardened",
        Everything(),
        {"rollback": True},
        {"rollback": False},
        start="rollback",
        check=partial(check_updates, method="fedrecover"),
        length=_from_rollback,
        contacts=lambda history, first: exact_rounds(len(history.rounds), first),
        remark="at least; clients whose estimates are rejected are asked too",
    ),
    "replay": Method(
        "Corrected replay",
        replay,
        "hardened",
        Compact(),
        added={"proof": None, "centre": None, "spread": None, "full_batch": False},
        start="rollback",
        check=partial(check_updates, method="replay"),
        length=_from_rollback,
        remark="an estimate: replay decides while it runs",
        version=3,
        batches="fresh",
        keeps_answers=lambda settings: settings.get("proof") is not None,
    ),
    "crab-paper": Method(
        "Crab, as published",
        crab,
        "paper",
        Selective(),
        CRAB_PRESETS["paper"],
        CRAB_BEFORE,
        start="rollback",
        length=lambda plan, _: len(plan.replay),
        by_plan=True,
    ),
    "crab-hardened": Method(
        "Crab, hardened",
        crab,
        "hardened",
        Selective(),
        CRAB_PRESETS["hardened"],
        CRAB_BEFORE,
        start="rollback",
        length=lambda plan, _: len(plan.replay),
        by_plan=True,
    ),
}


def title_of(method: str) -> str:
    """Return a method's title; an unknown name is returned unchanged."""
    return METHODS[method].title if method in METHODS else method


def rolls_back(method: str) -> bool:
    """Return whether a method starts at the rollback round; False for an unknown method."""
    return method in METHODS and METHODS[method].rolls_back


def default_method(history: History) -> tuple[str, str]:
    """Return the default method, and why it is not ``replay`` (empty if it is).

    ``replay`` if the history has every update (``Compact()`` or ``Everything()``), otherwise
    ``crab-hardened``.
    """
    try:
        check_updates(history, "replay")
    except HistoryError:
        return "crab-hardened", (
            f"recovering with crab-hardened: {history.path} keeps no client updates; a history recorded with "
            "Compact() would allow replay, which asks the clients for far less"
        )
    return "replay", ""
