"""The aggregator of a FedAvg job, which records every round it makes.

    recipe = NumpyFedAvgRecipe(..., aggregator=Recorder("/data/history"))

FedAvg's controller hands each result to its aggregator with the name of the site that it gave the task to. An
answer that cannot be used is left out, with the reason in the ledger; the others are averaged by their steps,
as FedAvg itself does. The model goes on as it is recorded, M_t + G_t in float32, so that a training killed
and resumed is the training uninterrupted.

FLARE only logs what goes wrong in an event handler. Here it ends the job: no round goes on unrecorded.
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
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcrab.aggregate.mean import fedavg
from fedcrab.errors import ConfigError, RecordError
from fedcrab.history.selection import Selection, from_table, to_table
from fedcrab.nvflare.results import CLIENT, ResultCollector, RunMetadata, as_tensors, numbers, unaccepted
from fedcrab.recording.arrays import ArrayLayout, UpdateBuffers
from fedcrab.recording.training_history import REPORTED, EvaluateFn, TrainingHistory
from fedcrab.types import Vector, utc_now

BOOKKEEPING = ("nr_aggregated", "current_round", AppConstants.METRICS_AGGREGATION_INFO)
logger = logging.getLogger("fedcrab")


class Recorder(ModelAggregator):
    """Averages and records; a new job with the same ``history`` goes on after its last recorded round."""

    def __init__(
        self,
        history: str,
        evaluate: str | None = None,  # "module:function" of (round, parameters) on the server's own data
        selection: Selection | Mapping[str, Any] | None = None,
        buffers: list[str] | None = None,  # parameters that are not trained, unless it is to be guessed
        loss_key: str = "",  # the metric in which sites report their loss, if not a usual name
        keep_open: bool = False,  # True leaves the history open for more rounds
        head_every: int = 0,  # log the history's head every so many rounds, to be kept outside; 0 never does
    ) -> None:
        """Arguments are plain values: FLARE writes them into the job."""
        super().__init__()
        if not isinstance(head_every, int) or head_every < 0:
            raise ConfigError(f"head_every must be a whole number of 0 or more, got {head_every!r}")
        chosen = from_table(selection) if isinstance(selection, Mapping) else selection
        self.history, self.evaluate, self.buffers = str(history), evaluate, buffers
        self.selection = None if chosen is None else to_table(chosen)
        self.loss_key, self.keep_open, self.head_every = loss_key, keep_open, head_every
        self._controller: FedAvg | None = None
        self._recording: TrainingHistory | None = None
        self._intake: ResultCollector | None = None
        self._rooms, self._metrics = UpdateBuffers(), WeightedAggregationHelper()
        self._rounds = 0  # of the whole training, those of earlier jobs included
        self._began: datetime | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the job; what goes wrong ends it."""
        super().handle_event(event_type, fl_ctx)
        try:
            self._follow(event_type, fl_ctx)
        except Exception as error:
            self._stop(error, fl_ctx)

    def _stop(self, error: Exception, fl_ctx: FLContext) -> None:
        """End the job, and let go of the history, which is whole up to its last round."""
        self.log_exception(fl_ctx, f"fedcrab: the recording failed: {error}")
        recording, self._recording, self._intake = self._recording, None, None
        if recording is not None:
            recording.release()
        self.system_panic(f"fedcrab: the recording failed: {error}", fl_ctx)

    def _follow(self, event: str, fl_ctx: FLContext) -> None:
        if event == AppEventType.TRAINING_STARTED:
            self._start(fl_ctx)
        elif event == AppEventType.INITIAL_MODEL_LOADED:
            self._take_up(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS])
        elif event == AppEventType.ROUND_STARTED:
            self._intake = None
        elif event == AppEventType.BEFORE_TRAIN_TASK:
            self._ask(fl_ctx)
        elif event == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            left_out = unaccepted(fl_ctx)
            if left_out and self._intake:
                self._intake.reject(*left_out)
        elif event == EventType.END_RUN:
            self._end(fl_ctx)

    def _start(self, fl_ctx: FLContext) -> None:
        controller = fl_ctx.get_prop(FLContextKey.RUNNER).current_wf.controller
        if getattr(controller, "aggregator", None) is not self or not isinstance(controller, FedAvg):
            raise ConfigError(
                f"the Recorder is to be FedAvg's aggregator, not a part of {type(controller).__name__}; "
                "give aggregator=Recorder(...) to the recipe, or to FedAvg"
            )
        for name in ("exclude_vars", "enable_tensor_disk_offload"):
            if getattr(controller, name):
                raise ConfigError(f"a job with {name} cannot be recorded; leave it out")
        self._controller, self._rounds = controller, controller.start_round + controller.num_rounds
        self._evaluate_fn()
        if controller.model is not None:  # given with the job, in place of a persistor's
            given = controller.model
            if not isinstance(given, FLModel):
                given = controller.model = FLModel(params_type=ParamsType.FULL, params=dict(given))
            self._take_up(given.params)

    def _evaluate_fn(self) -> EvaluateFn | None:
        """The function that ``evaluate`` names."""
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

    def _take_up(self, params: dict[str, Any]) -> None:
        """Put the last recorded model in the place of the initial one, where the history has rounds."""
        controller = self._followed()
        model = self._layout(params)
        self._recording = TrainingHistory.take_up(
            Path(self.history), model, self._evaluate_fn(), log=logger.log, head_every=self.head_every
        )
        if self._recording is None:
            return
        RunMetadata.of(self._recording.history)  # refused if it was not recorded on FLARE
        done = self._recording.rounds
        if self._recording.history.closed and done < self._rounds:
            raise ConfigError(
                f"{self.history}: this training ended after {done} rounds; choose another place"
            )
        logger.info("fedcrab: %s has %d rounds, the job goes on from there", self.history, done)
        params.update(self._recording.last())
        controller.start_round, controller.num_rounds = done, max(self._rounds - done, 0)

    def _layout(self, params: Mapping[str, Any]) -> ArrayLayout:
        tensors = any(hasattr(value, "detach") for value in params.values())
        arrays = {name: numbers(value) for name, value in params.items()}
        pack = as_tensors if tensors else dict
        return ArrayLayout.of(arrays, buffers=self.buffers, read=numbers, pack=pack)

    def _followed(self) -> FedAvg:
        if self._controller is None:
            raise RecordError("the job's controller is not known yet")
        return self._controller

    def _ask(self, fl_ctx: FLContext) -> None:
        """A site is handed the task; by the first one of a round we see from which model it starts."""
        sent = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
        controller = self._followed()
        task = next((t for t in controller.communicator._tasks if t.data is sent), None)
        if task is None or task.name != controller.task_name:
            return
        sent.set_header(AppConstants.NUM_ROUNDS, self._rounds)
        sent.set_header(AppConstants.START_ROUND, 0)
        if self._intake is not None:
            return
        dxo = from_shareable(sent)
        recording = self._recording or self._create(dxo.data, dxo.meta or {})
        start, self._began = recording.model.flatten(dxo.data), utc_now()
        self._intake = ResultCollector(
            recording.model,
            start,
            [getattr(target, "name", target) for target in task.targets],
            weights=controller.aggregation_weights,
            rooms=self._rooms,
        )

    def _create(self, params: Mapping[str, Any], meta: Mapping[str, Any]) -> TrainingHistory:
        """Begin the history with the model of the first round."""
        controller, model = self._followed(), self._layout(params)
        notes = RunMetadata(
            dtypes=model.dtypes,
            tensors=model.pack is as_tensors,
            task=controller.task_name,
            rounds=self._rounds,
            weights=dict(controller.aggregation_weights),
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
        """A new round."""
        self._metrics = WeightedAggregationHelper()

    def accept_model(self, model: FLModel) -> None:
        """Take a site's result in, or leave it out with a reason."""
        try:
            self._accept(model)
        except Exception as error:  # which FLARE would only log
            self._stop(error, self.fl_ctx)

    def _accept(self, model: FLModel) -> None:
        keys = (self.loss_key, *REPORTED) if self.loss_key else REPORTED
        if self._intake is None:
            raise RecordError("a result came before its round began")
        reason = self._intake.add(model, keys)
        client = str(model.meta[CLIENT])
        if reason:
            self.warning(f"fedcrab: the round goes on without {client}: {reason}")
        elif metrics := filter_aggregatable_metrics(model.metrics or {}):
            self._metrics.add(metrics, self._intake.weight(client), client, 0)

    def aggregate_model(self) -> FLModel:
        """Average what came and record the round; a recording that fails ends the job."""
        recording, intake, controller = self._recording, self._intake, self._followed()
        if recording is None or intake is None:
            raise RecordError("fedcrab: a round ended that was never begun")
        recording.settle()  # no round is made before the one before it is on the disk
        index, admitted = recording.rounds, intake.admit()
        if index != controller.current_round:
            raise RecordError(
                f"fedcrab: the job is in round {controller.current_round}, the history in {index}"
            )
        made = (
            self._mean(recording.model, intake.start, admitted.updates) if admitted.updates.clients else None
        )
        after = recording.add(index, intake.start, admitted, made, began=self._began)
        if index + 1 >= self._rounds:
            recording.settle()
        params = recording.model.arrays(intake.start) if after is None else after
        metrics = self._metrics.get_result() or None
        return FLModel(params_type=ParamsType.FULL, params=params, metrics=metrics, meta={})

    def _mean(self, model: ArrayLayout, start: Vector, updates: Any) -> Any:
        return model.arrays(start + fedavg()(updates.vectors, updates.weights))

    def _end(self, fl_ctx: FLContext) -> None:
        recording, self._recording, self._intake = self._recording, None, None
        if recording is None:
            return
        stopped = fl_ctx.get_run_abort_signal()
        if stopped is not None and stopped.triggered:
            recording.release()  # to be resumed
        else:
            recording.end(keep_open=self.keep_open)


def _is_plain(value: object) -> bool:
    """Whether JSON keeps a value as it is."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
