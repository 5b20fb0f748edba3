"""The settings that the messages of each round contained, recorded and read back.

The history's settings contain those of the first round, as they left the strategy. A round's notes contain
the differences from it: settings that were added or changed (``set``) or removed (``unset``), differences of
single clients, and the arrays that the model after the round lacks (FedBN and LoRA send only some arrays). A
round without differences has no notes; ``server-round`` is implied.

    {"flower": {"set": [["config", "lr", 0.05]], "clients": {"site-3": {"set": [...]}}, "absent": [2, 5]}}
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore import log

from fedcrab.errors import HistoryError
from fedcrab.flower.run_metadata import KEY, ROUND, RunMetadata
from fedcrab.history import History
from fedcrab.history.ledger_rows import LONGEST_JSON
from fedcrab.types import ClientId

Setting = tuple[str, str]  # the record's name, and the key in it
Config = Mapping[Setting, Any]  # values as in JSON
MANY = "too many to keep"


def config_of(content: RecordDict, server_round: int) -> dict[Setting, Any]:
    """Return the settings of a message, without the implied round number."""
    found = {
        (name, key): _encoded(value)
        for name, record in content.config_records.items()
        for key, value in record.items()
    }
    return {s: v for s, v in found.items() if not (s[1] == ROUND and v == server_round)}


def common_config(configs: Iterable[Config]) -> dict[Setting, Any]:
    """Return the settings of most messages of a round; of equally frequent ones, the first."""
    texts = [json.dumps(sorted((list(s), v) for s, v in config.items())) for config in configs]
    if not texts:
        return {}
    usual = Counter(texts).most_common(1)[0][0]
    return {(name, key): value for (name, key), value in json.loads(usual)}


class SentMessages:
    """The settings of one round's messages, copied when they leave the strategy."""

    def __init__(
        self, messages: Sequence[Message], clients: Mapping[int, ClientId], server_round: int
    ) -> None:
        known: dict[int, dict[Setting, Any]] = {}
        self._by_client: dict[ClientId, dict[Setting, Any]] = {}
        for message in messages:
            content = message.content
            if id(content) not in known:  # Flower's own strategies send one record to all
                known[id(content)] = config_of(content, server_round)
            client = clients.get(message.metadata.dst_node_id)
            if client is not None:
                self._by_client[client] = known[id(content)]
        self.common = common_config(self._by_client.values())
        self.without_round = bool(messages) and not any(
            ROUND in record for m in messages[:1] for record in m.content.config_records.values()
        )

    def notes(self, base: Config, absent: Sequence[int]) -> str:
        """Return a round's notes; empty if it sent the same as the first round."""
        table: dict[str, Any] = _difference(base, self.common)
        others = {c: _difference(self.common, own) for c, own in sorted(self._by_client.items())}
        if others := {c: own for c, own in others.items() if own}:
            table["clients"] = others
        if absent:
            table["absent"] = list(absent)
        if self.without_round:
            table["round"] = False
        if not table:
            return ""
        text = json.dumps({KEY: table})
        if len(text) > LONGEST_JSON and "clients" in table:
            log(
                WARNING,
                "fedcrab: the settings of single clients take %d characters, more than a history stores per "
                "round; a recovery will send all clients what most of them were sent",
                len(text),
            )
            text = json.dumps({KEY: {**table, "clients": MANY}})
        return text


def _difference(base: Config, own: Config) -> dict[str, Any]:
    changed = [[*s, v] for s, v in own.items() if s not in base or base[s] != v]
    missing = [list(s) for s in base if s not in own]
    return {**({"set": changed} if changed else {}), **({"unset": missing} if missing else {})}


class RecordedConfig:
    """The settings that were sent in the rounds of a history."""

    def __init__(self, history: History, notes: RunMetadata) -> None:
        self._history, self._notes = history, notes
        self._read: dict[int, dict[str, Any]] = {}

    def records(self, round: int, client: ClientId | None = None) -> dict[str, dict[str, Any]]:
        """Return what a client was sent in a round, by record; after the last round, as in the last."""
        table = self._table(round)
        base = {(self._notes.config_key, key): value for key, value in self._notes.config.items()}
        settings = _applied(base, table)
        own = table.get("clients", {})
        if isinstance(own, dict) and client in own:
            settings = _applied(settings, own[client])
        found: dict[str, dict[str, Any]] = {self._notes.config_key: {}}
        for (name, key), value in settings.items():
            found.setdefault(name, {})[key] = _decoded(value)
        if table.get("round") is not False:
            found[self._notes.config_key].setdefault(ROUND, round + 1)
        return found

    def config(self, round: int) -> ConfigRecord:
        """What most clients were sent in a round."""
        return ConfigRecord(self.records(round)[self._notes.config_key])

    def absent(self, round: int) -> tuple[int, ...]:
        """The arrays, by place, that the model before a round did not have."""
        found = self._table(round - 1).get("absent", []) if round else []
        return tuple(found)

    def _table(self, round: int) -> dict[str, Any]:
        last = len(self._history.rounds) - 1
        at = min(round, last)
        if at < 0:
            return {}
        if at not in self._read:
            self._read[at] = self._parsed(at)
        return self._read[at]

    def _parsed(self, round: int) -> dict[str, Any]:
        text = self._history.rounds[round].notes
        if not text:
            return {}
        try:
            table = json.loads(text)[KEY]
            fields = len(self._history.charter.layout.fields)
            clients = table.get("clients", {})
            for part in (table, *(clients.values() if isinstance(clients, dict) else ())):
                _applied({}, part)
            absent = [n for n in table.get("absent", []) if type(n) is int and 0 <= n < fields]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise HistoryError(
                f"{self._history.path}: the notes of round {round} are not those of a Recorder ({error})"
            ) from error
        return {**table, "absent": absent}


def _applied(base: Config, part: Mapping[str, Any]) -> dict[Setting, Any]:
    missing = {(name, key) for name, key in part.get("unset", [])}
    changed = {(name, key): value for name, key, value in part.get("set", [])}
    return {**{s: v for s, v in base.items() if s not in missing}, **changed}


def _encoded(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return [_encoded(v) for v in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"])
    return [_decoded(v) for v in value] if isinstance(value, list) else value
