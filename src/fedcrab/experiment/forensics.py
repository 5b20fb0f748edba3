"""What the commands ``audit`` and ``detect`` do with a history that carries its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.audit import (
    FlatModel,
    Inversion,
    Timeline,
    invert,
    read_examples,
    taught_examples,
    taught_trigger,
    timeline,
)
from fedcrab.audit.flat_model import Images, Labels
from fedcrab.audit.timeline import lift
from fedcrab.detect import Detection, join, ledger
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.experiment.config import Config
from fedcrab.files import hash_regular
from fedcrab.history import History
from fedcrab.history.snapshots import read_model
from fedcrab.recover.folder import read_results, recoveries_in
from fedcrab.simulate import Architecture, hold_out, load_dataset
from fedcrab.types import Vector

FLOWER = '{"flower":'


@dataclass(frozen=True)
class Server:
    """What the server has for an audit: the module, and probe examples that no client has seen."""

    flat: FlatModel
    x: Images
    y: Labels
    classes: int

    def audit(self, model: Vector) -> Inversion:
        """What is planted in a model."""
        return invert(self.flat.at(model), self.x, self.y, classes=self.classes)

    def lift(self, model: Vector, trigger: Inversion) -> float:
        """How well a trigger that was found elsewhere works on this model."""
        plain = self.x[self.y != trigger.label]
        return lift(self.flat, model, plain, trigger.stamp(plain), trigger.label)


@dataclass(frozen=True)
class Audited:
    """The models of an audit by name, the first of them the history's own where there is one."""

    models: dict[str, Inversion]
    lifts: dict[str, float]  # of the first one's trigger, on each
    when: Timeline | None
    example: Images  # one probe example, to stamp

    def to_table(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        rows = [{"model": n, "lift": self.lifts[n], **found.to_table()} for n, found in self.models.items()]
        return {"models": rows, "timeline": self.when.to_table() if self.when else None}


def server_of(history: History) -> Server:
    """From the configuration that a history carries; ConfigError where it carries none."""
    notes = history.charter.notes
    if not notes or notes.startswith(FLOWER):
        raise ConfigError(
            f"{history.path}: carries no configuration, so the model's module and the server's probe "
            "examples are not known here; from Python, fedcrab.audit takes both (docs/forensics.md)"
        )
    config = Config.from_json(notes)
    dataset, x, y = hold_out(load_dataset(config.data.name), probe=config.data.probe, seed=config.seed)
    module = Architecture(config.model, dataset.shape, dataset.classes).build()
    return Server(FlatModel(module, history.charter.layout), x, y, dataset.classes)


def audit_command(path: Path, *, history: Path | None = None) -> Audited:
    """Audit a history's final model, every model of a recovery, or a model file beside its history."""
    opened, models = _models(path, history)
    server = server_of(opened)
    found = {name: server.audit(model) for name, model in models.items()}
    first = next(iter(found.values()))
    lifts = {name: server.lift(model, first) for name, model in models.items()}
    own = "final" in found and first.planted
    when = timeline(opened, server.flat, first, server.x, server.y) if own else None
    example = server.x[np.flatnonzero(server.y != first.label)[:1]]
    return Audited(found, lifts, when, example)


def _models(path: Path, place: Path | None) -> tuple[History, dict[str, Vector]]:
    if path.is_file():
        if place is None:
            raise ConfigError(f"{path}: a model file is audited beside its history; name it by --history DIR")
        history = History.open(place)
        return history, {path.name: read_model(path, hash_regular(path), history.charter.layout)}
    if recoveries_in(path):
        history, results = read_results(path)
        return history, {"final": history.final_model(), **{r.method: r.model for r in results}}
    history = History.open(path)
    return history, {"final": history.final_model()}


def detect_taught(history: History, examples: Path | None = None) -> Detection:
    """Who taught what the audit finds in the final model, or what these examples show."""
    server = server_of(history)
    if examples is not None:
        bad, labels = read_examples(examples, shape=server.x.shape[1:], classes=server.classes)
        return taught_examples(history, server.flat, bad, labels, server.x, server.y)[0]
    trigger = server.audit(history.final_model())
    if not trigger.planted:
        scores = dict.fromkeys(history.clients, 0.0)
        said = f"No planted trigger (smallest mask: {trigger.ratio:.2f} of the median): nobody taught one."
        return Detection("taught", len(history.rounds), scores, {}, 0.0, (said, *trigger.notes))
    try:
        found = taught_trigger(history, server.flat, trigger, server.x, server.y)[0]
    except DamagedError:
        raise
    except HistoryError as error:  # no updates are kept: what was planted is known, and not by whom
        scores = dict.fromkeys(history.clients, 0.0)
        return Detection("taught", 0, scores, {}, 1.0, (_planted(trigger), str(error)))
    return replace(found, notes=(_planted(trigger), *found.notes))


def detect_everything(history: History, examples: Path | None = None) -> Detection:
    """All that the history and the probe set allow, as one answer; notes say what could not be looked for."""
    found, notes = [ledger(history)], list[str]()
    try:
        found.append(detect_taught(history, examples))
    except ConfigError as error:
        if examples is not None:
            raise
        notes.append(f"Who taught a trigger was not looked for: {error}")
    return join(found, notes)


def _planted(trigger: Inversion) -> str:
    return (
        f"The model has a planted trigger for class {trigger.label}: its mask is {trigger.ratio:.2f} of the "
        f"median, and it turns {trigger.success[trigger.label]:.0%} of the probe examples."
    )
