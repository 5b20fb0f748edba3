"""The aggregator of a job, which records every round.

    recipe = NumpyFedAvgRecipe(..., aggregator=Recorder("/data/history"))

The workflow (FedAvg or ScatterAndGather) passes each result to its aggregator. A result belongs to the site
that the server gave the task to. An unusable answer is left out, and the ledger says why; the others are
averaged by their steps, as in FLARE itself. Training continues from the recorded model, M_t + G_t in float32.
So a training that is killed and resumed gives the same model as one that is not.

FLARE only logs errors in event handlers. Here they end the job, so that no round stays unrecorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcrab.aggregate.mean import fedavg
from fedcrab.errors import ConfigError, RecordError
from fedcrab.history.selection import Selection, from_table, to_table
from fedcrab.nvflare.results import (
    CLIENT,
    ResultCollector,
    RunMetadata,
    as_tensors,
    failed,
    handed_to,
    numbers,
    unaccepted,
)
from fedcrab.nvflare.workflow import Workflow
from fedcrab.recording.arrays import ArrayLayout
from fedcrab.recording.training_history import REPORTED, EvaluateFn, TrainingHistory
from fedcrab.types import utc_now

BOOKKEEPING = ("nr_aggregated", "current_round", AppConstants.METRICS_AGGREGATION_INFO)
REASONS = {EventType.BEFORE_PROCESS_SUBMISSION: failed, AppEventType.AFTER_CONTRIBUTION_ACCEPT: unaccepted}
logger = logging.getLogger("fedcrab")


class Recorder(ModelAggregator):
    """Averages and records; a new job with the same ``history`` resumes after its last recorded round."""

    def __init__(
        self,
        history: str,
        evaluate: str | None = None,  # "module:function" of (round, parameters) on the server's own data
        selection: Selection | Mapping[str, Any] | None = None,
        buffers: list[str] | None = None,  # parameters that are not trained; None guesses
        loss_key: str = "",  # the metric with the sites' loss, if not a usual name
        keep_open: bool = False,  # True leaves the history open for more rounds
        head_every: int = 0,  # log the history's head every n rounds, to be stored elsewhere; 0: never
        aggregation_weights: Mapping[str, float]
        | None = None,  # of sites in ScatterAndGather; FedAvg has its own
    ) -> None:
        """Arguments are plain values: FLARE writes them into the job."""
        super().__init__()
        if not isinstance(head_every, int) or head_every < 0:
            raise ConfigError(f"head_every must be a whole number of 0 or more, got {head_every!r}")
        chosen = from_table(selection) if isinstance(selection, Mapping) else selection
        self.history, self.evaluate, self.buffers = str(history), evaluate, buffers
        self.selection = None if chosen is None else to_table(chosen)
        self.loss_key, self.keep_open, self.head_every = loss_key, keep_open, head_every
        self.aggregation_weights = dict(aggregation_weights or {})
        self._workflow: Workflow | None = None
        self._recording: TrainingHistory | None = None
        self._results: ResultCollector | None = None
        self._metrics = WeightedAggregationHelper()
        self._made: Mapping[str, Any] = {}  # the parameters that the next round must start from
        self._began: datetime | None = None
        self._stopped = False

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the job; any error ends it."""
        super().handle_event(event_type, fl_ctx)
        if self._stopped:
            return
        try:
            self._follow(event_type, fl_ctx)
        except Exception as error:
            self._stop(error, fl_ctx)

    def _stop(self, error: Exception, fl_ctx: FLContext) -> None:
        """End the job and release the history, which is complete up to its last round."""
        self.log_exception(fl_ctx, f"fedcrab: the recording failed: {error}")
        recording, self._recording, self._results = self._recording, None, None
        self._stopped = True
        if recording is not None:
            recording.release()
        self.system_panic(f"fedcrab: the recording failed: {error}", fl_ctx)

    def _follow(self, event: str, fl_ctx: FLContext) -> None:
        if event == AppEventType.TRAINING_STARTED:
            self._start(fl_ctx)
        elif event == AppEventType.INITIAL_MODEL_LOADED:
            self._start(fl_ctx)
            self._resume(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS])
        elif event == AppEventType.ROUND_STARTED:
            self._results = None
        elif event == AppEventType.BEFORE_TRAIN_TASK:
            self._ask(fl_ctx)
        elif event in REASONS:
            left_out = REASONS[event](fl_ctx)
            if left_out and self._results:
                self._results.reject(*left_out)
        elif event == EventType.END_RUN:
            self._end(fl_ctx)

    def _start(self, fl_ctx: FLContext) -> None:
        """Inspect the workflow once: ScatterAndGather loads its model before it starts, FedAvg after."""
        if self._workflow is not None:
            return
        self._workflow = Workflow.of(self, fl_ctx, self.aggregation_weights)
        self._evaluate_fn()
        given = self._workflow.given_model()
        if given is not None:
            self._resume(given)

    def _evaluate_fn(self) -> EvaluateFn | None:
        """Return the function that ``evaluate`` names."""
        if self.evaluate is None:
            return None
        module, _, name = self.evaluate.partition(":")
        try:
            function: EvaluateFn = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"evaluate={self.evaluate!r} must be 'module:function' of a file that the server has: {error}"
            ) from error
        return function

    def _resume(self, params: dict[str, Any]) -> None:
        """Replace the initial model with the last recorded one, if there is any."""
        workflow, model = self._followed(), self._layout(params)
        self._recording = TrainingHistory.take_up(
            Path(self.history), model, self._evaluate_fn(), log=logger.log, head_every=self.head_every
        )
        if self._recording is None:
            if workflow.start_round:
                raise ConfigError(
                    f"{self.history}: no round is recorded here, but the job starts with round "
                    f"{workflow.start_round}; let it start with round 0"
                )
            return
        RunMetadata.of(self._recording.history)  # refused if it was not recorded on FLARE
        done = self._recording.rounds
        if self._recording.history.closed and done < workflow.rounds:
            raise ConfigError(f"{self.history}: this training ended after {done} rounds; choose another path")
        logger.info("fedcrab: %s has %d rounds, the job resumes after them", self.history, done)
        self._made = self._recording.last()
        params.update(self._made)
        workflow.resume_at(done)

    def _layout(self, params: Mapping[str, Any]) -> ArrayLayout:
        tensors = any(hasattr(value, "detach") for value in params.values())
        arrays = {}
        for name, value in params.items():
            try:
                arrays[name] = numbers(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"the model's {name!r} cannot be recorded: {error}") from error
        pack = as_tensors if tensors else dict
        return ArrayLayout.of(arrays, buffers=self.buffers, read=numbers, pack=pack)

    def _followed(self) -> Workflow:
        if self._workflow is None:
            raise RecordError("the job's workflow is not known yet")
        return self._workflow

    def _ask(self, fl_ctx: FLContext) -> None:
        """Note that a site gets the task; the first one of a round shows the model that it starts from."""
        sent, workflow = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE), self._followed()
        task = next((t for t in workflow.controller.communicator._tasks if t.data is sent), None)
        if task is None or task.name != workflow.task_name:
            return
        sent.set_header(AppConstants.NUM_ROUNDS, workflow.rounds)
        sent.set_header(AppConstants.START_ROUND, 0)
        if self._results is not None:
            return
        dxo = from_shareable(sent)
        recording = self._recording or self._create(dxo.data, dxo.meta or {})
        self._began, start = utc_now(), self._unchanged(recording.model, dxo.data)
        self._results = ResultCollector(
            recording.model,
            start,
            [getattr(target, "name", target) for target in task.targets],
            weights=workflow.weights,
            rooms=recording.buffers,
        )

    def _unchanged(self, model: ArrayLayout, sent: Mapping[str, Any]) -> Any:
        """Return the model that is sent as a vector; raises ConfigError if it is not the last round's."""
        start, made = model.flatten(sent), self._made
        same = not made or all(sent[name] is made[name] for name in made)
        if not same and (start != model.flatten(made)).any():
            raise ConfigError(
                "something else in this job changes the model between rounds; it cannot be recorded"
            )
        return start

    def _create(self, params: Mapping[str, Any], meta: Mapping[str, Any]) -> TrainingHistory:
        """Create the history with the model of the first round."""
        workflow, model = self._followed(), self._layout(params)
        notes = RunMetadata(
            dtypes=model.dtypes,
            tensors=model.pack is as_tensors,
            task=workflow.task_name,
            rounds=workflow.rounds,
            weights=workflow.weights,
            meta={k: v for k, v in meta.items() if k not in BOOKKEEPING and _is_plain(v)},
        )
        self._recording = TrainingHistory.create(
            Path(self.history),
            model,
            model.flatten(params),
            strategy="FedAvg",
            notes=notes.to_json(),
            evaluate=self._evaluate_fn(),
            selection=None if self.selection is None else from_table(self.selection),
            log=logger.log,
            head_every=self.head_every,
        )
        return self._recording

    def reset_stats(self) -> None:
        """Start a new round."""
        self._metrics = WeightedAggregationHelper()

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Accept a result from ScatterAndGather; return False if it is left out."""
        self.fl_ctx, client = fl_ctx, handed_to(fl_ctx)
        if client is None:
            self.warning("fedcrab: an answer that came after its round is left out")
            return False
        try:
            model = FLModelUtils.from_shareable(shareable)
            model.meta[CLIENT] = client
        except Exception as error:  # whatever a hostile object does
            model = FLModel(params={}, meta={CLIENT: client})
            self.warning(f"fedcrab: {client} sent no model: {error}")
        return self._accepted(model)

    def accept_model(self, model: FLModel) -> None:
        """Accept a result from FedAvg, with the site's name in its metadata, or leave it out."""
        self._accepted(model)

    def _accepted(self, model: FLModel) -> bool:
        try:
            return self._accept(model)
        except Exception as error:  # FLARE would only log it
            self._stop(error, self.fl_ctx)
            return False

    def _accept(self, model: FLModel) -> bool:
        keys = (self.loss_key, *REPORTED) if self.loss_key else REPORTED
        if self._results is None:
            raise RecordError("a result came before its round began")
        reason = self._results.add(model, keys)
        client = str(model.meta[CLIENT])
        if reason:
            self.warning(f"fedcrab: the round continues without {client}: {reason}")
        elif metrics := filter_aggregatable_metrics(model.metrics or {}):
            self._metrics.add(metrics, self._results.weight(client), client, 0)
        return reason is None

    def aggregate_model(self) -> FLModel:
        """Average the results and record the round; if the recording fails, the job ends."""
        recording, results, workflow = self._recording, self._results, self._followed()
        if recording is None or results is None:
            raise RecordError("fedcrab: a round ended that was never begun")
        recording.settle()  # the previous round must be on disk first
        index, admitted = recording.rounds, results.admit()
        if index != workflow.current_round:
            raise RecordError(
                f"fedcrab: the job is in round {workflow.current_round}, the history in {index}"
            )
        updates, after = admitted.updates, None
        if updates.clients:
            after = fedavg()(updates.vectors, updates.weights)
            after += results.start
        made = recording.add(index, results.start, admitted, after, began=self._began)
        if index + 1 >= workflow.rounds:
            recording.settle()
        self._made = recording.model.arrays(results.start) if made is None else made
        metrics = (self._metrics.get_result() or None) if workflow.sends_metrics else None
        return FLModel(params_type=ParamsType.FULL, params=self._made, metrics=metrics, meta={})

    def _end(self, fl_ctx: FLContext) -> None:
        recording, self._recording, self._results = self._recording, None, None
        if recording is None:
            return
        stopped = fl_ctx.get_run_abort_signal()
        if stopped is not None and stopped.triggered:
            recording.release()  # to be resumed
        else:
            recording.end(keep_open=self.keep_open)


def _is_plain(value: object) -> bool:
    """Return whether a value survives JSON unchanged."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
