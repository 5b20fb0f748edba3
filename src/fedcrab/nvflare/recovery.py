"""Recovery on FLARE: the controller of one job, on the sites that trained.

    job = FedJob(name="recover")
    job.to_server(Recovery("/data/history", malicious="site-3,site-7", recovered="/data/recovered"))
    job.to_clients(ScriptRunner(script="client.py", framework=FrameworkType.NUMPY))

The malicious sites are not asked, whether they take part in the job or not. Each step is saved: if a job is
killed, the same job, submitted again, resumes after its last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.model_controller import ModelController

from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.history import History
from fedcrab.nvflare.fleet import FlareFleet
from fedcrab.nvflare.results import RunMetadata
from fedcrab.recording.patience import Patience
from fedcrab.recover.run import recover_on_clients
from fedcrab.rollback.malicious import listed, with_since


class Recovery(ModelController):
    """Recovers a history that a Recorder wrote, with the sites of this job."""

    def __init__(
        self,
        history: str,
        malicious: str | Sequence[str],  # by commas, quoted as in CSV; `site-3@20`: from round 20 on
        recovered: str,  # the directory for the result
        method: str = "",  # default: replay if the history keeps the updates, else crab-hardened
        since: str | Sequence[str] = "",  # the round from which all are malicious, or site-3@20
        settings: Mapping[str, Any] | None = None,  # of the method: trust, every and asked of replay
        planned: Mapping[str, Any] | None = None,  # of the decision: beta, unfound
        epochs: int | None = None,  # of the training; federaser asks for a share of them
        epochs_key: str = "local_epochs",
        anchor: bool = False,  # save every answer and ask all once more, so `certify` can prove more
        unfinished: bool = False,  # True recovers a history that its training has not closed
        deadline: float = 600.0,
        quorum: float = 0.5,
        attempts: int = 3,
        persistor_id: str = "",  # a persistor that also saves the recovered model
    ) -> None:
        """Arguments are plain values: FLARE writes them into the job."""
        super().__init__(persistor_id=persistor_id, ignore_result_error=True)
        if not malicious:
            raise ConfigError("malicious names no site; give ids such as malicious='site-3,site-7'")
        self.history, self.recovered = str(history), str(recovered)
        self.malicious = malicious if isinstance(malicious, str) else list(malicious)
        self.method, self.epochs, self.epochs_key = method, epochs, epochs_key
        self.since = str(since) if isinstance(since, str | int) else list(since)
        self.settings, self.planned = dict(settings or {}), dict(planned or {})
        self.anchor, self.unfinished = anchor, unfinished
        self.deadline, self.quorum, self.attempts = deadline, quorum, attempts
        Patience(deadline=deadline, quorum=quorum, attempts=attempts)  # checked when the job is made
        self._fleet: FlareFleet | None = None

    def named(self) -> list[str]:
        """Return the malicious sites as given: `site-3`, or `site-3@20`."""
        return listed(self.malicious) if isinstance(self.malicious, str) else list(self.malicious)

    def run(self) -> None:
        """Recover; an error is one sentence in the log and ends the job."""
        try:
            self._recover()
        except FedcrabError as error:
            self.error(f"fedcrab: {error}")
            raise

    def _recover(self) -> None:
        if self._persistor_id:
            self.load_model()  # some persistors save only what they have loaded
        history = History.open(self.history)
        if not history.closed and not self.unfinished:
            raise ConfigError(
                f"{self.history}: its training has not ended; let it end, or recover what is recorded "
                "with unfinished=True"
            )
        since = listed(self.since) if isinstance(self.since, str) else self.since
        start_rounds = with_since(self.named(), since, history, {})
        patience = Patience(deadline=self.deadline, quorum=self.quorum, attempts=self.attempts)
        self._fleet = FlareFleet(self, history, patience=patience, epochs_key=self.epochs_key)
        found = recover_on_clients(
            history,
            self._fleet,
            malicious=list(start_rounds),
            since={client: start for client, start in start_rounds.items() if start},
            out=Path(self.recovered),
            tell=lambda text: self.info(f"fedcrab: {text}"),
            method=self.method or None,
            settings=self.settings,
            epochs=self.epochs,
            anchor=self.anchor,
            **self.planned,
        )
        self.info(f"fedcrab: recovered by {found.method} from round {found.plan.rollback_round}")
        if self._persistor_id:
            arrays = RunMetadata.of(history).model(history).arrays(found.model)
            self.save_model(FLModel(params_type=ParamsType.FULL, params=arrays))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep why results are rejected."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT and self._fleet is not None:
            self._fleet.note_failure(fl_ctx)
