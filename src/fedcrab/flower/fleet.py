"""The clients behind a grid as a fleet, so that every recovery method runs over them unchanged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedcrab.errors import ConfigError, FleetError
from fedcrab.flower.exchange import Patience, ask
from fedcrab.flower.identity import Identities
from fedcrab.flower.intake import Intake
from fedcrab.flower.notes import ROUND, Notes
from fedcrab.history import History
from fedcrab.types import ClientId, Rejection, Updates, Vector


class FlowerFleet:
    """Clients are asked as the training asked them: the same records, the same settings, the same round.

    A question goes on with those who answer by the deadline, is asked again where they are too few, and ends
    in a FleetError where they stay too few. Who was left out of the last one, and why, is in ``rejected``.
    """

    def __init__(
        self,
        grid: Grid,
        history: History,  # recorded by a Recorder
        *,
        patience: Patience | None = None,
        config: Mapping[str, Any] | None = None,  # in place of the settings that the training sent
        epochs_key: str = "local-epochs",  # what the clients read their number of epochs from
    ) -> None:
        self._grid, self._identities = grid, Identities(grid)
        self._notes = Notes.of(history)
        self._model = self._notes.model(history)
        self._patience, self._epochs_key = patience or Patience(), epochs_key
        self._config = dict(self._notes.config if config is None else config)
        self._given_up: set[ClientId] = set()  # not waited for again, though asked when they are back
        self.rejected: tuple[Rejection, ...] = ()

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Let these clients train from ``model``; their updates, of those that answered."""
        nodes = self._connected(clients)
        intake = Intake(self._model, model, {n: c for c, n in nodes.items()}, self._notes.examples_key)
        content = self._content(model, round, epochs)
        messages = [Message(content, node, MessageType.TRAIN) for node in nodes.values()]
        replies = ask(self._grid, messages, self._patience, intake.judge)
        admitted = intake.admit(replies.usable, replies.failed)
        absent = (Rejection(c, "is not connected") for c in clients if c not in nodes)
        self.rejected = tuple(sorted((*admitted.rejected, *absent), key=lambda r: r.client))
        for left_out in self.rejected:
            log(WARNING, "fedcrab: round %d without %s: %s", round, left_out.client, left_out.reason)
        return admitted.updates

    def _content(self, model: Vector, round: int, epochs: int | None) -> RecordDict:
        settings = self._config if epochs is None else {**self._config, self._epochs_key: epochs}
        config = ConfigRecord({**settings, ROUND: round + 1})
        return RecordDict({self._notes.arrays_key: self._model.arrays(model), self._notes.config_key: config})

    def _connected(self, clients: Sequence[ClientId]) -> dict[ClientId, int]:
        """The nodes of these clients, waiting for each of them once; FleetError where too few come."""
        if len(set(clients)) != len(clients):
            raise ConfigError("a client is asked twice in one round")
        end = time.monotonic() + self._patience.deadline
        while True:
            here = self._identities.nodes()
            missing = {c for c in clients if c not in here}
            enough = len(clients) - len(missing) >= self._patience.enough(len(clients))
            if not missing - self._given_up and enough:
                break
            if time.monotonic() >= end:
                self._give_up(missing, enough, len(clients))
                break
            time.sleep(self._patience.poll)
        self._given_up &= missing
        self._check_scheme()
        return {c: here[c] for c in sorted(clients) if c in here}

    def _give_up(self, missing: set[ClientId], enough: bool, asked: int) -> None:
        told = ", ".join(sorted(missing)[:20])
        if not enough:
            raise FleetError(
                f"{len(missing)} of {asked} clients are not connected ({told}); start their SuperNodes with "
                "their registered keys, then start the recovery again: it goes on where it stopped"
            )
        self._given_up |= missing
        log(WARNING, "fedcrab: going on without %s, not connected", told)

    def _check_scheme(self) -> None:
        scheme = self._identities.scheme()
        if scheme != self._notes.identity:
            raise ConfigError(f"the history names clients by {self._notes.identity}, this grid by {scheme}")
