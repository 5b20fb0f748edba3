"""A recovery that survives a kill: each step is durable before it is yielded; the next run resumes after it.

    DIR/request.json            what is recovered, and how; another request is refused
    DIR/steps/<round>.json      each step that is done, without its vectors
    DIR/snapshots/              of the last step: the model, FedRecover's pairs, the server's state

A step's file is written last, under a temporary name, synced and renamed. Only then are the vectors of the
previous step removed. So a step is done or not, and the last one done is always complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.files import Lock, file_errors, make_directory, read_json, sync_directory, write_named
from fedcrab.history.snapshots import Snapshots
from fedcrab.recover.replay_record import ReplayRecord
from fedcrab.recover.step import Lengths, Pair, Pairs, Step
from fedcrab.rollback.decision import Plan
from fedcrab.types import ClientId, Fleet, Layout, Vector

REQUEST, STEPS, SNAPSHOTS = "request.json", "steps", "snapshots"
# what folders of earlier versions do not say, as it was then; ``version`` is that of the method
EARLIER = {"everyone": False, "version": 1}
LARGEST = 2**28  # bytes, far more than the clients of one round need
MethodFunction = Callable[..., Iterator[Step]]
Names = dict[ClientId, list[tuple[int, str, str]]]  # per pair: its round, the hashes of Δw and Δg


def resumable(
    directory: str | PathLike[str],
    method: MethodFunction,
    plan: Plan,
    fleet: Fleet,
    *,
    request: Mapping[str, Any],
    start: Step | None = None,
    **settings: Any,
) -> Iterator[Step]:
    """Yield the steps of ``method(plan, fleet, **settings)`` that the directory does not have yet.

    ``request`` describes the recovery in plain values (the method's name, its settings, the seed), so that a
    directory is never resumed by a different recovery. The history and the malicious clients (with ``since``,
    if given) are added to it. ``start`` is the step before the first one, if the method does not start at its
    own beginning. The fleet's answers must depend on round, client and model only.
    """
    asked: dict[str, Any] = {
        "history": plan.history.contents.head,
        "malicious": list(plan.malicious),
        "model": plan.model,
    }
    asked |= {"since": dict(plan.since)} if plan.since else {}
    progress = SavedSteps(Path(directory), plan.history.charter.layout, {**asked, **request})
    try:
        last, rule = progress.last(), settings.get("aggregate")
        if last is not None and isinstance(rule, ServerRule):
            rule.restore(last.server, round=last.round + 1)
        for step in method(plan, fleet, after=last or start, **settings):
            progress.save(step)
            yield step
    finally:
        progress.release()


class SavedSteps:
    """The steps that are done. One process at a time."""

    def __init__(self, directory: Path, layout: Layout, request: Mapping[str, Any]) -> None:
        self.directory, self._layout = directory, layout
        self._snapshots = Snapshots(directory / SNAPSHOTS)
        with file_errors(f"{directory}: cannot be used"):
            make_directory((directory / STEPS).absolute())
            make_directory((directory / SNAPSHOTS).absolute())
        self._lock = _locked(directory)
        try:
            self._begin(json.loads(json.dumps(request)))
            self._last = self._read(self.rounds()[-1]) if self.rounds() else None
        except BaseException:
            self.release()
            raise

    def _begin(self, request: dict[str, Any]) -> None:
        """Write the request, or check that the stored one is equal."""
        path = self.directory / REQUEST
        if not path.exists():
            with file_errors(str(path)):
                write_named(path, [json.dumps(request, indent=1).encode()])
                sync_directory(self.directory)
        found = _completed(read_json(path, limit=LARGEST), request)
        if found != request:
            other = [name for name in {*found, *request} if found.get(name) != request.get(name)]
            if other == ["version"]:
                raise ConfigError(
                    f"{self.directory}: contains a recovery by another version of {request.get('method')}, "
                    "which would have given another model; choose another directory"
                )
            raise ConfigError(
                f"{self.directory}: contains a recovery with a different {', '.join(sorted(other))}; "
                "repeat the same request, or choose another directory"
            )

    def rounds(self) -> list[int]:
        """Return the rounds whose steps are done."""
        names = [path.stem for path in (self.directory / STEPS).glob("*.json")]
        return sorted(int(name) for name in names if name.isdecimal())

    def tables(self) -> list[dict[str, Any]]:
        """Return every finished step, as :meth:`Step.to_table` returns it."""
        return [self._read(t)["step"] for t in self.rounds()]

    def last(self) -> Step | None:
        """Return the last finished step, with its vectors."""
        if self._last is None:
            return None
        try:
            model = self._snapshots.model(self._last["model"], self._layout)
            name = self._last.get("server")
            server = None if name is None else self._snapshots.state(name)
            return Step.from_table(self._last["step"], model, self._pairs(self._last["pairs"]), server)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{self.directory}: its last step cannot be read ({error!r})") from error

    def save(self, step: Step) -> None:
        """Add a step; durable when this returns."""
        with file_errors(f"{self.directory}: the step of round {step.round} was not saved"):
            model, names = self._snapshots.put_model(self._layout, step.model), self._put(step.pairs)
            server = None if step.server is None else self._snapshots.put_state(step.server)
            self._snapshots.settle()
            record: dict[str, Any] = {"step": step.to_table(), "model": model, "pairs": names}
            record |= {} if server is None else {"server": server}
            write_named(self._path(step.round), [json.dumps(record).encode()])
            sync_directory(self.directory / STEPS)
        self._last = record
        hashes = (name for pairs in names.values() for _, *both in pairs for name in both)
        self._snapshots.keep_only([model, *hashes, *([server] if server else [])])

    def release(self) -> None:
        """Let another process continue."""
        self._lock.release()

    def _path(self, round: int) -> Path:
        return self.directory / STEPS / f"{round:06}.json"

    def _read(self, round: int) -> dict[str, Any]:
        return read_json(self._path(round), limit=LARGEST)

    def _put(self, pairs: Pairs) -> Names:
        """Write the pairs that the last step did not have; return the hashes of Δw and Δg."""
        old = self._last["pairs"] if self._last else {}
        known = {(client, entry[0]): entry for client, entries in old.items() for entry in entries}
        moved: dict[int, str] = {}
        return {
            client: [known.get((client, pair.round)) or self._put_pair(pair, moved) for pair in of_client]
            for client, of_client in pairs.items()
        }

    def _put_pair(self, pair: Pair, moved: dict[int, str]) -> tuple[int, str, str]:
        """Write a pair; the clients of a round share one Δw."""
        if pair.round not in moved:
            moved[pair.round] = self._snapshots.put_array("pair", pair.moved)
        return pair.round, moved[pair.round], self._snapshots.put_array("pair", pair.changed)

    def _pairs(self, names: Names) -> Pairs:
        """Return the pairs with these hashes, each vector read once."""
        vectors: dict[str, Vector] = {}
        for entry in (entry for entries in names.values() for entry in entries):
            for name in entry[1:]:
                if name not in vectors:
                    array = self._snapshots.array(name, "pair", (self._layout.size,), "F32")
                    vectors[name] = np.asarray(array, np.float32)
        return {
            client: tuple(Pair(t, vectors[moved], vectors[changed]) for t, moved, changed in entries)
            for client, entries in names.items()
        }


def saved_steps(directory: Path) -> list[dict[str, Any]]:
    """Return every step in a directory, as :meth:`Step.to_table` returns it."""
    paths = sorted((directory / STEPS).glob("*.json"))
    try:
        return [read_json(path, limit=LARGEST)["step"] for path in paths]
    except KeyError as error:
        raise DamagedError(f"{directory}: a step cannot be read") from error


def checked_steps(directory: Path) -> tuple[Mapping[str, Any], ...]:
    """Return every step in a directory, each checked."""
    return tuple(_checked(directory, step) for step in saved_steps(directory))


def asked_in(directory: Path) -> list[tuple[int, int]]:
    """Return the round of each step, and how many clients were asked in it."""
    try:
        return [(int(step["round"]), len(step["asked"])) for step in saved_steps(directory)]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{directory}: a step cannot be read") from error


def saved_model(directory: Path, layout: Layout) -> Vector:
    """Return the model after the last step in a directory."""
    paths = sorted((directory / STEPS).glob("*.json"))
    if not paths:
        raise HistoryError(f"{directory}: no step is finished yet")
    return Snapshots(directory / SNAPSHOTS).model(
        str(read_json(paths[-1], limit=LARGEST).get("model")), layout
    )


def _completed(found: Any, request: Mapping[str, Any]) -> Any:
    """Return a request of an earlier version completed; its model shows how far it rolled back."""
    unsaid = {name: value for name, value in EARLIER.items() if name in request and name not in found}
    decided = {name: request[name] for name in ("beta", "evidence", "rule") if name in request}
    return {**decided, **unsaid, **found} if unsaid else found


def _locked(directory: Path) -> Lock:
    try:
        return Lock(directory)
    except HistoryError as error:
        raise HistoryError(
            f"{directory}: another process is running this recovery; wait for it, or stop it"
        ) from error


def _checked(path: Path, step: Any) -> Mapping[str, Any]:
    """Return a step whose numbers are valid."""
    if not isinstance(step, dict) or not isinstance(step.get("round"), int):
        raise DamagedError(f"{path}: a step cannot be read")
    clients = step.get("clients")
    examples, lengths = _numbers(step.get("examples")), _numbers(step.get("lengths"))
    renewed = _numbers(step.get("renewed", []))
    named = isinstance(clients, list) and all(isinstance(c, str) for c in clients)
    even = len(examples) == len(lengths) == len(clients or ()) and len(renewed) in (0, len(examples))
    if not named or not even or 0 in (*examples, *renewed):
        raise DamagedError(f"{path}: the step of round {step['round']} has invalid numbers")
    if "measured" in step:
        _check_measured(path, step)
    if "record" in step:
        try:
            ReplayRecord.from_table(step["record"])
        except ConfigError as error:
            raise DamagedError(f"{path}: the step of round {step['round']}: {error}") from error
    return dict(step)


def _check_measured(path: Path, step: Mapping[str, Any]) -> None:
    """Raise unless the measured lengths are three numbers."""
    found, names = step["measured"], {f.name for f in fields(Lengths)}
    if not isinstance(found, dict) or {*found} != names or "renewed" not in step:
        raise DamagedError(f"{path}: the step of round {step['round']} has invalid lengths")
    _numbers([*found.values()])


def _numbers(row: Any) -> list[float]:
    """Return a list of numbers, all 0 or more."""
    good = isinstance(row, list) and all(isinstance(n, int | float) and 0 <= n < 1e100 for n in row)
    if not good:
        raise DamagedError("a step of the recovery has invalid numbers")
    return list(row)
