"""The folder of a recovery. Only this module reads and writes it, on every engine.

    DIR/request.json            what was asked                          (:mod:`fedcrab.recover.saved_steps`)
    DIR/steps/, DIR/snapshots/  each finished step                      (:mod:`fedcrab.recover.saved_steps`)
    DIR/answers/                the clients' answers, if stored         (:mod:`fedcrab.recover.answers`)
    DIR/model.safetensors       the recovered model as named tensors
    DIR/summary.json            the history, the clients left out, the decision, the hash of the model;
                                and measurements, if there was test data
    DIR/start.safetensors       the noised model that recovery started from, if any
    DIR/curve.jsonl             accuracy after each step, if measured

These files are not trusted: everything read is checked, and every problem is reported in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.files import (
    file_errors,
    hash_regular,
    make_directory,
    read_json,
    read_regular,
    stored_path,
    sync_directory,
    write_named,
)
from fedcrab.history import History
from fedcrab.history.snapshots import is_hash, read_model, write_model
from fedcrab.recover.answers import AnswerFolder, Answers
from fedcrab.recover.saved_steps import LARGEST, REQUEST, asked_in, checked_steps
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.malicious import are_texts
from fedcrab.types import ClientId, Vector

MODEL, SUMMARY = "model.safetensors", "summary.json"
START, CURVE = "start.safetensors", "curve.jsonl"
LONGEST = 2**26  # bytes of a summary, or of a curve


@dataclass(frozen=True)
class RecoveryArtifacts:
    """What a recovery stored besides the history."""

    model: Vector | None = None  # the recovered one
    steps: tuple[Mapping[str, Any], ...] | None = None
    start: Vector | None = None  # where recovery started, if not at the rollback model
    retrained: Vector | None = None
    retrained_steps: tuple[Mapping[str, Any], ...] | None = None
    answers: tuple[Answers, ...] = ()  # of clients during the recovery, if stored


@dataclass(frozen=True)
class RecoveryFolder:
    """A recovery on disk. Each file is read and checked when it is first used."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> RecoveryFolder:
        """Return the recovery in a directory; it must have a summary."""
        folder = cls(path)
        if not folder.is_there:
            raise HistoryError(f"{path}: not a recovery (it has no {SUMMARY}); 'fedcrab recover' writes one")
        return folder

    @property
    def is_there(self) -> bool:
        """Return whether a recovery was finished here."""
        return (self.path / SUMMARY).is_file()

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The request and the result, with checked texts, clients and hash."""
        path, what = self.path / SUMMARY, "the summary of a recovery"
        table = read_json(path, limit=LONGEST, what=what)
        texts = are_texts([table.get(name) for name in ("method", "history", "history_head")])
        if not texts or not are_texts(table.get("malicious")) or not is_hash(table.get("model_sha256")):
            raise DamagedError(f"{path}: not {what}")
        stored_path(table["history"], path)
        return table

    @cached_property
    def request(self) -> Mapping[str, Any]:
        """The method, its settings and the history's head, by which a recovery is resumed."""
        return read_json(self.path / REQUEST, limit=LARGEST)

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.summary["method"])

    def open_history(self, elsewhere: Path | None = None) -> History:
        """Return the history that was recovered from: at its original path, or ``elsewhere``."""
        place = elsewhere or Path(self.summary["history"])
        if not place.is_dir():
            raise HistoryError(
                f"{place}: the history is not there; give certify and verify its new path with --history"
            )
        return History.open(place)

    def check_history(self, history: History) -> None:
        """Raise unless this is a recovery of this history in its current state."""
        heads = {self.summary["history_head"]}
        if (self.path / REQUEST).exists():
            heads.add(self.request.get("history"))
        if heads != {history.contents.head}:
            raise DamagedError(f"{self.path}: recovered from another state of {history.path}")

    def model(self, history: History, *, as_it_is: bool = False) -> Vector:
        """Return the recovered model: the one that the summary names, or with ``as_it_is`` any."""
        path = self.path / MODEL
        digest = hash_regular(path) if as_it_is else self.summary["model_sha256"]
        return read_model(path, digest, history.charter.layout)

    def start(self, history: History) -> Vector | None:
        """Return the noised model that recovery started from, if there is one."""
        path = self.path / START
        return read_model(path, hash_regular(path), history.charter.layout) if path.exists() else None

    def write_start(self, history: History, model: Vector) -> Vector:
        """Store the noised model that recovery starts from; return it as stored."""
        path, layout = self.path / START, history.charter.layout
        with file_errors(f"{path}: the noised model was not written"):
            make_directory(self.path.absolute())
            digest = write_model(path, layout, model)
            sync_directory(self.path)
        return read_model(path, digest, layout)

    @property
    def start_sha256(self) -> str:
        """The hash of the noised model."""
        return hash_regular(self.path / START)

    def noise(self) -> Mapping[str, float] | None:
        """Return epsilon and delta if recovery starts from a noised model."""
        noise = self.request.get("noise")
        if noise is not None and not isinstance(noise, Mapping):
            raise DamagedError(f"{self.path}: its request has an invalid noise")
        return noise

    def steps(self) -> tuple[Mapping[str, Any], ...]:
        """Return the steps, each checked."""
        return checked_steps(self.path)

    def evidence(
        self, history: History, retrained: RecoveryFolder | None, *, as_it_is: bool = False
    ) -> RecoveryArtifacts:
        """Return all evidence; ``as_it_is`` if a certificate names the hashes that it must have."""
        return RecoveryArtifacts(
            self.model(history, as_it_is=as_it_is),
            self.steps(),
            self.start(history),
            retrained.model(history, as_it_is=as_it_is) if retrained else None,
            retrained.steps() if retrained else None,
            AnswerFolder(self.path, history.charter.layout).read(),
        )

    def left_out(self) -> dict[ClientId, int]:
        """Return the clients treated as malicious, with the round from which each is."""
        rounds = self.since()
        return {client: rounds.get(client, 0) for client in self.summary["malicious"]}

    def since(self) -> dict[ClientId, int]:
        """Return the round from which each client counted as malicious, if it was honest before."""
        plan = self.summary.get("plan")
        since = plan.get("since") if isinstance(plan, dict) else None
        return {c: t for c, t in since.items() if type(t) is int} if isinstance(since, dict) else {}

    def retraining(self) -> RecoveryFolder | None:
        """Return a retraining for the same request in a folder beside this one."""
        other = RecoveryFolder(self.path.absolute().parent / "retrain")
        if not other.is_there:
            return None
        names = ("history", "malicious", "since")
        same = all(other.request.get(name) == self.request.get(name) for name in names)
        return other if same else None

    def add_point(self, point: Mapping[str, Any]) -> None:
        """Append a measurement to the curve."""
        path = self.path / CURVE
        with file_errors(f"{path}: the curve was not written"), path.open("a") as file:
            file.write(json.dumps(point) + "\n")

    def curve(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return, per measured step, the client-rounds spent so far and the measurements."""
        if not (self.path / CURVE).is_file():
            return []
        points = {point.get("round"): point for point in self._points()}
        work, found = 0, list[tuple[int, Mapping[str, Any]]]()
        for t, asked in [(None, 0), *asked_in(self.path)]:
            work += asked
            if t in points:
                found.append((work, points[t]))
        return found

    def _points(self) -> list[dict[str, Any]]:
        """Return the complete lines; a kill may have cut off the last one."""
        points = []
        content = read_regular(self.path / CURVE, limit=LONGEST)
        for line in content.decode(errors="replace").splitlines():
            try:
                point = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(point, dict) and isinstance(point.get("round"), int | None):
                points.append(point)
        return points


def write_result(
    directory: Path, plan: Plan, method: str, model: Vector, row: Mapping[str, Any] | None = None
) -> None:
    """Write a model and its summary; ``row`` has the measurements, if there is test data."""
    history = plan.history
    with file_errors(f"{directory}: the result was not written"):
        make_directory(directory.absolute())
        digest = write_model(directory / MODEL, history.charter.layout, model)
        summary = {
            "method": method,
            **(row or {}),
            "history": str(history.path.absolute()),
            "history_head": history.contents.head,
            "malicious": list(plan.malicious),
            "model_sha256": digest,
            "plan": plan.to_table(),
        }
        write_named(directory / SUMMARY, [json.dumps(summary, indent=1).encode()])
        sync_directory(directory)


def recoveries_in(directory: Path) -> list[RecoveryFolder]:
    """Return the recoveries in a directory or in its subfolders, their summaries checked."""
    places = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())] if directory.is_dir() else []
    found = [folder for folder in map(RecoveryFolder, places) if folder.is_there]
    for folder in found:
        folder.summary  # noqa: B018 - read it now, so that a damaged one is refused now
    return found


def history_of(directory: Path, folders: Sequence[RecoveryFolder]) -> History:
    """Return the one history of all recoveries in a directory, in the state they were made from."""
    if not folders:
        raise HistoryError(f"{directory}: contains no recovery; 'fedcrab recover' writes one")
    paths = sorted({folder.summary["history"] for folder in folders})
    if len(paths) > 1:
        raise ConfigError(
            f"{directory}: has recoveries of different histories ({', '.join(paths)}); choose one of them"
        )
    history = folders[0].open_history()
    for folder in folders:
        folder.check_history(history)
    return history


def find_folder(place: Path) -> RecoveryFolder:
    """Return the recovery in a directory, or the only one in its subfolders."""
    inner = [] if RecoveryFolder(place).is_there else recoveries_in(place)
    if len(inner) > 1:
        names = ", ".join(folder.path.name for folder in inner)
        raise ConfigError(f"{place}: contains several recoveries ({names}); choose one of them")
    return inner[0] if inner else RecoveryFolder.open(place)


def open_history_or_recovery(directory: Path) -> tuple[History, dict[ClientId, int]]:
    """Return a history, or that of a recovery with the clients it left out, and since when.

    So a second plan, after more attackers are found, covers the whole training and all attackers.
    """
    folders = recoveries_in(directory)
    if not folders:
        return History.open(directory), {}
    history, earlier = history_of(directory, folders), dict[ClientId, int]()
    for client, start in (pair for folder in folders for pair in folder.left_out().items()):
        earlier[client] = min(start, earlier.get(client, start))
    return history, earlier


@dataclass(frozen=True)
class RecoveryResult:
    """A recovered model with its summary, read from disk."""

    method: str
    model: Vector = field(repr=False)
    summary: Mapping[str, Any] = field(repr=False)


def read_results(out: Path) -> tuple[History, list[RecoveryResult]]:
    """Return the results in a directory or in its subfolders, and their history."""
    folders = recoveries_in(out)
    history = history_of(out, folders)
    return history, [RecoveryResult(f.method, f.model(history), f.summary) for f in folders]
