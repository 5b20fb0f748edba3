"""What the commands ``audit`` and ``detect`` do with a history that contains its configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.audit import (
    Attribution,
    FlatModel,
    Inversion,
    Lessons,
    Timeline,
    invert,
    lessons,
    not_invertible,
    read_examples,
    taught_examples,
    taught_trigger,
    timeline,
)
from fedcrab.audit.flat_model import Images, Labels
from fedcrab.audit.lessons import spare
from fedcrab.audit.taught import DOUBTED
from fedcrab.audit.timeline import lift
from fedcrab.detect import Detection, join, ledger
from fedcrab.detect.detection import NOT_LOOKED_FOR, no_configuration
from fedcrab.detect.saved_audit import picture, write_audit
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.experiment.config import Config
from fedcrab.experiment.setup import Setup
from fedcrab.files import hash_regular
from fedcrab.history import History
from fedcrab.history.snapshots import read_model
from fedcrab.recover.folder import read_results, recoveries_in
from fedcrab.simulate import Architecture, hold_out, load_dataset
from fedcrab.terminal import print_to_stderr
from fedcrab.types import ClientId, Vector

TRIGGER, BROUGHT = "trigger", "brought"  # the kinds of misbehaviour
FINAL = "final"  # the name of the history's own last model


@dataclass(frozen=True)
class Server:
    """What the server has for an audit: the module, and probe examples that no client has seen."""

    flat: FlatModel
    x: Images
    y: Labels
    classes: int

    @property
    def unsearchable(self) -> str | None:
        """Why these inputs cannot be searched for a planted patch; None if they can."""
        return not_invertible(self.x, self.classes)

    def audit(self, model: Vector) -> Inversion:
        """Return the smallest trigger of each class in a model, and whether one of them was planted."""
        return invert(self.flat.at(model), self.x, self.y, classes=self.classes)

    def lift(self, model: Vector, trigger: Inversion) -> float:
        """Return how well a trigger that was found elsewhere works on this model."""
        plain = self.x[self.y != trigger.label]
        return lift(self.flat, model, plain, trigger.stamp(plain), trigger.label)


@dataclass(frozen=True)
class Taught:
    """Who taught a misbehaviour (``trigger`` or ``brought``), and each client's part in it."""

    about: str
    label: int | None
    detection: Detection
    parts: Attribution | None  # None if the history keeps no updates

    @property
    def since(self) -> dict[ClientId, int]:
        """The named clients, each with the round from which it taught this."""
        named = self.detection.suspects
        return {client: self.parts.onset(client) for client in named} if self.parts else {}

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        since, found = self.since, self.detection
        shown: dict[ClientId, float] = {}
        if self.parts:
            each = self.parts.unexplained if self.about == TRIGGER else self.parts.parts
            shown = dict(zip(self.parts.clients, each.tolist(), strict=True))
        rows = [
            {
                "client": client,
                "part": round(shown.get(client, 0.0), 4),
                "score": round(float(score), 4),
                "named": client in since,
                "since": since.get(client),
            }
            for client, score in sorted(found.scores.items(), key=lambda pair: -pair[1])
        ]
        about = {"about": self.about, "class": self.label, "rounds": found.rounds}
        return {**about, "strength": float(found.strength), "clients": rows, "notes": list(found.notes)}


@dataclass(frozen=True)
class Investigation:
    """What was planted in each model, since when, and who taught it."""

    head: str  # of the history
    clients: tuple[ClientId, ...]
    models: Mapping[str, Inversion]  # by name, the history's own first; empty if inputs cannot be searched
    hashes: Mapping[str, str]
    lifts: Mapping[str, float]  # how well the first model's trigger works on each model
    when: Timeline | None
    taught: tuple[Taught, ...]
    example: Images  # one probe example, to stamp
    notes: tuple[str, ...]  # what could not be searched for
    lessons: Lessons | None = None  # what each client teaches; None if that is unknown

    @property
    def first(self) -> Inversion | None:
        """The audit of the first model."""
        return next(iter(self.models.values()), None)

    @property
    def trigger(self) -> Inversion | None:
        """The trigger of the first model, if the audit calls it planted or clients clearly taught it."""
        taught = any(found.about == TRIGGER for found in self.taught)
        return self.first if self.first and (self.first.planted or taught) else None

    @property
    def planted_in(self) -> int | None:
        """The round of the first kept model in which the trigger works."""
        return self.when.planted if self.when else None

    @property
    def teachers(self) -> dict[ClientId, int]:
        """All named clients, each with the round from which it taught a misbehaviour."""
        return {client: since for found in self.taught for client, since in found.since.items()}

    def is_planted(self, name: str) -> bool:
        """Return whether a model has a trigger: by its audit, or for the first model by who taught it."""
        own = self.models[name]
        return own.planted or (own is self.first and self.trigger is not None)

    def sure(self, name: str) -> float:
        """Return the confidence that a model has a planted trigger; 0 if it has none."""
        doubted = DOUBTED if self.is_planted(name) else 0.0
        return self.models[name].confidence or doubted

    def trigger_row(self, name: str) -> dict[str, Any] | None:
        """Return, for tables, whether a model has a trigger, and how well the first model's works on it."""
        if name not in self.models:
            return None
        own = self.models[name]
        row = {"planted": self.is_planted(name), "class": own.label, "ratio": round(own.ratio, 4)}
        return {**row, "lift": round(self.lifts[name], 4) if self.trigger else None}

    def detections(self) -> list[Detection]:
        """Return the findings about clients, one detection per misbehaviour."""
        found = [one.detection for one in self.taught]
        if self.trigger is not None or self.first is None:
            return found
        note = f"No planted trigger (smallest mask: {self.first.ratio:.2f} of the median): nobody taught one."
        nobody = dict.fromkeys(self.clients, 0.0)
        return [Detection("taught", 0, nobody, {}, 0.0, (note, *self.first.notes)), *found]

    def answer(self, by_ledger: Detection) -> Detection:
        """Return one detection for everything: the ledger's findings checked against what clients teach."""
        notes = [f"{NOT_LOOKED_FOR} {note}" for note in self.notes]
        others = [*self.detections(), *([self.lessons.detection()] if self.lessons else [])]
        confirmed = [client for one in others for client in one.suspects]
        seen = spare(by_ledger, self.lessons.teachers, confirmed) if self.lessons else by_ledger
        found = join([seen, *others], notes)
        return replace(found, notes=(*found.notes, *(self.trigger.notes if self.trigger else ())))

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON: what ``audit --json`` prints."""
        rows = [{"model": n, "lift": self.lifts[n], **found.to_table()} for n, found in self.models.items()]
        for row in rows:
            row |= {"planted": self.is_planted(row["model"]), "confidence": self.sure(row["model"])}
        return {
            "models": rows,
            "timeline": self.when.to_table() if self.when else None,
            "taught": [found.to_table() for found in self.taught],
            "notes": [*self.notes, *(self.first.notes if self.first else ())],
        }

    def to_saved(self, answer: Detection | None = None) -> dict[str, Any]:
        """Return what is saved beside the history: pictures as bytes, models as hashes."""
        table = self.to_table()
        for row in table["models"]:
            row["sha256"] = self.hashes[row["model"]]
            for large in ("mask", "pattern", "notes"):
                del row[large]
        pictures = self._pictures(self.trigger) if self.trigger else None
        return {
            "history": self.head,
            **table,
            "pictures": pictures,
            "answer": answer.to_table() if answer else None,
        }

    def _pictures(self, trigger: Inversion) -> dict[str, Any]:
        image = self.example[0].reshape(trigger.pattern.shape)
        stamped = trigger.stamp(image[None])[0]
        shown = np.stack([image, stamped, trigger.pattern])
        scale = {"low": min(float(shown.min()), 0.0), "high": max(float(shown.max()), 1.0)}
        return {
            "mask": picture(trigger.mask[None]),
            "trigger": picture(trigger.mask * trigger.pattern, **scale),
            "example": picture(image, **scale),
            "stamped": picture(stamped, **scale),
        }


def server_of(history: History) -> Server:
    """Return the server's side from the configuration in a history; raise ``ConfigError`` if it has none."""
    if (problem := no_configuration(history)) is not None:
        raise ConfigError(problem)
    config = Config.from_json(history.charter.notes)
    dataset, x, y = hold_out(load_dataset(config.data.name), probe=config.data.probe, seed=config.seed)
    module = Architecture(config.model, dataset.shape, dataset.classes).build()
    return Server(FlatModel(module, history.charter.layout), x, y, dataset.classes)


def server_for(setup: Setup) -> Server:
    """Return the server's side of a training that is set up."""
    x, y = setup.probe.examples
    return Server(FlatModel(setup.architecture.build(), setup.honest.layout), x, y, setup.dataset.classes)


def investigate(
    history: History,
    recovered: Mapping[str, Vector] | None = None,
    *,
    server: Server | None = None,
    examples: Path | None = None,
) -> Investigation:
    """Return what was planted in a history's final model, since when, and who taught it.

    ``recovered`` are other models, by name, to audit beside it: does the trigger still work there?
    ``examples`` is a file of misbehaviour that the operator provides. If the inputs are not images, or the
    history keeps no updates, the notes say what could not be searched for. Raises ``ConfigError`` if the
    history contains no configuration and no ``server`` is given.
    """
    server = server or server_of(history)
    brought = () if examples is None else (_brought(history, server, examples),)
    found = _audited(history, server, {FINAL: history.final_model(), **(recovered or {})})
    found = replace(found, lessons=_lessons(history, server))
    first = found.first
    taught = _taught(history, server, first) if first and first.suspicious else None
    if first is None or taught is None or not (first.planted or taught.detection.attack):
        return replace(found, taught=brought)
    when = timeline(history, server.flat, first, server.x, server.y)
    return replace(found, when=when, taught=(taught, *brought))


def _audited(history: History, server: Server, models: Mapping[str, Vector]) -> Investigation:
    hashes = {name: hashlib.sha256(model.tobytes()).hexdigest() for name, model in models.items()}
    known = {"head": history.contents.head, "clients": history.clients, "when": None, "taught": ()}
    if server.unsearchable:
        nothing = {"models": {}, "lifts": {}, "example": server.x[:1], "notes": (server.unsearchable,)}
        return Investigation(hashes=hashes, **known, **nothing)  # type: ignore[arg-type]
    found = {name: server.audit(model) for name, model in models.items()}
    first = next(iter(found.values()))
    lifts = {name: server.lift(model, first) for name, model in models.items()}
    example = server.x[np.flatnonzero(server.y != first.label)[:1]]
    return Investigation(models=found, hashes=hashes, lifts=lifts, example=example, notes=(), **known)  # type: ignore[arg-type]


def _lessons(history: History, server: Server) -> Lessons | None:
    """Return what each client teaches; None if no updates are kept or the probe set lacks a class."""
    try:
        return lessons(history, server.flat, server.x, server.y, classes=server.classes)
    except DamagedError:
        raise
    except HistoryError:
        return None


def _brought(history: History, server: Server, examples: Path) -> Taught:
    x, y = read_examples(examples, shape=server.x.shape[1:], classes=server.classes)
    return Taught(BROUGHT, None, *taught_examples(history, server.flat, x, y, server.x, server.y))


def _taught(history: History, server: Server, trigger: Inversion) -> Taught:
    turns = f"and it turns {trigger.success[trigger.label]:.0%} of the probe examples."
    note = (
        f"The model has a planted trigger for class {trigger.label}: its mask is {trigger.ratio:.2f} of the "
        f"median, {turns}"
    )
    if not trigger.planted:
        note = (
            f"The smallest mask, for class {trigger.label}, is {trigger.ratio:.2f} of the median, {turns} By "
            "itself that is no sure sign; but some clients clearly taught it, and the others did not."
        )
    parts = None
    try:
        detection, parts = taught_trigger(history, server.flat, trigger, server.x, server.y)
    except DamagedError:
        raise
    except HistoryError as error:  # without updates, it is known what was planted, but not who planted it
        detection = Detection("taught", 0, dict.fromkeys(history.clients, 0.0), {}, 1.0, (str(error),))
    return Taught(TRIGGER, trigger.label, replace(detection, notes=(note, *detection.notes)), parts)


def audit_command(path: Path, *, history: Path | None = None) -> Investigation:
    """Investigate a history, every model of a recovery, or a model file beside its history.

    The result for a history or a recovery is saved beside it. Raises ``ConfigError`` if the inputs cannot be
    searched for a patch.
    """
    if path.is_file():
        if history is None:
            raise ConfigError(f"{path}: a model file is audited with its history; pass it as --history DIR")
        opened = History.open(history)
        model = read_model(path, hash_regular(path), opened.charter.layout)
        return _checked(_audited(opened, server_of(opened), {path.name: model}))
    if recoveries_in(path):
        opened, results = read_results(path)
        found = _checked(investigate(opened, {r.method: r.model for r in results}))
    else:
        opened = History.open(path)
        found = _checked(investigate(opened))
    keep(path, found, found.answer(ledger(opened)))
    return found


def _checked(found: Investigation) -> Investigation:
    if not found.models:
        raise ConfigError(found.notes[0])
    return found


def keep(path: Path, found: Investigation, answer: Detection | None = None) -> None:
    """Save an investigation beside a history or a recovery; if that fails, print a warning and continue."""
    try:
        write_audit(path, found.to_saved(answer))
    except HistoryError as error:
        print_to_stderr(f"The audit is not saved for 'report': {error}")


def detect_taught(history: History, examples: Path | None = None) -> Detection:
    """Return who taught the trigger that the audit finds in the final model, or what ``examples`` show."""
    if examples is not None:
        return _brought(history, server_of(history), examples).detection
    found = investigate(history)
    keep(history.path, found, found.answer(ledger(history)))
    (only,) = _checked(found).detections()
    return only


def detect_everything(history: History, examples: Path | None = None) -> Detection:
    """Return one detection from everything that the history and the probe set allow.

    Its notes say what could not be searched for.
    """
    try:
        server = server_of(history)
    except ConfigError as error:
        if examples is not None:
            raise
        return join([ledger(history)], [f"{NOT_LOOKED_FOR} {error}"])
    found = investigate(history, server=server, examples=examples)
    answer = found.answer(ledger(history))
    keep(history.path, found, answer)
    return answer
