"""The sites of a FLARE job as a fleet, so that every recovery method runs on them unchanged."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import ceil
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.model_controller import ModelController

from fedcrab.errors import ConfigError, FleetError
from fedcrab.history import History
from fedcrab.nvflare.results import ResultCollector, RunMetadata, unaccepted
from fedcrab.recording.patience import Patience
from fedcrab.types import ClientId, Rejection, Updates, Vector

LOOK = 0.1  # seconds between two polls
logger = logging.getLogger("fedcrab")


class FlareFleet:
    """Asks sites as the training asked them: with the same task, metadata and round number.

    Sites that miss the deadline are left out. If too few answer, the others are asked again; if they are
    still too few, a FleetError is raised. ``rejected`` says who was left out last, and why.
    """

    def __init__(
        self,
        controller: ModelController,  # of the job whose sites are asked
        history: History,  # recorded by a Recorder
        *,
        patience: Patience | None = None,
        epochs_key: str = "local_epochs",  # where sites find their number of epochs in the metadata
    ) -> None:
        self._controller, self._patience = controller, patience or Patience()
        self._run, self._epochs_key = RunMetadata.of(history), epochs_key
        self._model = self._run.model(history)
        self._results: ResultCollector | None = None
        self._given_up: set[ClientId] = set()  # asked, but no longer waited for until they answer
        self.rejected: tuple[Rejection, ...] = ()

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        """Return the updates of those clients that trained from ``model`` and answered."""
        here = self._connected(clients)
        self._results = results = ResultCollector(self._model, model, here, weights=self._run.weights)
        for attempt in range(self._patience.attempts):
            if attempt:
                time.sleep(self._patience.pause * 2 ** (attempt - 1))
            self._ask(results, self._message(model, round, epochs))
            if len(results.used) >= self._patience.enough(len(clients)):
                return self._admitted(results, clients, round)
        reasons = sorted({rejection.reason for rejection in results.admit().rejected})
        raise FleetError(
            f"round {round}: {len(results.used)} of {len(clients)} sites gave a usable answer "
            f"({'; '.join(reasons[:3])}), in {self._patience.attempts} attempts of "
            f"{self._patience.deadline:g} s each; a quorum of {self._patience.enough(len(clients))} is needed"
        )

    def note_failure(self, fl_ctx: FLContext) -> None:
        """Keep why FLARE rejected a result; call this at AFTER_CONTRIBUTION_ACCEPT."""
        left_out = unaccepted(fl_ctx)
        if left_out and self._results:
            self._results.reject(*left_out)

    def _message(self, model: Vector, round: int, epochs: int | None) -> FLModel:
        meta: dict[str, Any] = dict(self._run.meta)
        if epochs is not None:
            meta[self._epochs_key] = epochs
        return FLModel(
            params_type=ParamsType.FULL,
            params=self._model.arrays(model),
            start_round=0,
            current_round=round,
            total_rounds=self._run.rounds,
            meta=meta,
        )

    def _ask(self, results: ResultCollector, message: FLModel) -> None:
        """Ask those that have not answered yet, until all have or the time is up."""
        results.forget_reasons()
        self._controller.send_model(
            task_name=self._run.task,
            targets=results.open,
            data=message,
            timeout=ceil(self._patience.deadline),
            callback=lambda result: results.add(result) is None,
        )
        while self._controller.get_num_standing_tasks():
            if self._controller.abort_signal.triggered:
                raise FleetError("the job was aborted; the same job resumes after the last step")
            if self._given_up.issuperset(results.silent):
                self._controller.cancel_all_tasks(fl_ctx=self._controller.fl_ctx)
            time.sleep(LOOK)
        self._given_up = set(results.silent)

    def _connected(self, clients: Sequence[ClientId]) -> list[ClientId]:
        """Return the clients that take part in the job; raises FleetError if they are too few."""
        if len(set(clients)) != len(clients):
            raise ConfigError("a client is listed twice in one round")
        sites = {client.name for client in self._controller.engine.get_clients()}
        here = [client for client in clients if client in sites]
        if len(here) < self._patience.enough(len(clients)):
            missing = ", ".join(sorted(set(clients) - sites)[:20])
            raise FleetError(
                f"{len(clients) - len(here)} of {len(clients)} sites take no part in this job ({missing}); "
                "start them, then submit the job again: it resumes where it stopped"
            )
        return here

    def _admitted(self, results: ResultCollector, clients: Sequence[ClientId], round: int) -> Updates:
        admitted = results.admit()
        asked = {*admitted.updates.clients, *(rejection.client for rejection in admitted.rejected)}
        absent = (Rejection(c, "takes no part in the job") for c in clients if c not in asked)
        self.rejected = tuple(sorted((*admitted.rejected, *absent), key=lambda r: r.client))
        for left_out in self.rejected:
            logger.warning("fedcrab: round %d without %s: %s", round, left_out.client, left_out.reason)
        return admitted.updates
