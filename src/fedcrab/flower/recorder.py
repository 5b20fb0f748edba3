"""A strategy around a strategy: training does not change, and every round is recorded.

Replies are checked and copied before the inner strategy sees them, because some strategies consume their
replies. Training continues from the recorded model, M_t + G_t in float32, which differs from the strategy's
own by at most one rounding. So a training that is killed and resumed gives the same model as one that is not.
The state of the strategy is recorded with the model and restored when the training resumes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from logging import INFO, WARNING
from os import PathLike
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedcrab.errors import ConfigError, RecordError
from fedcrab.flower.arrays import array_layout
from fedcrab.flower.fleet import Identities
from fedcrab.flower.replies import ReplyCollector
from fedcrab.flower.run_metadata import RunMetadata, is_weighted_mean, run_metadata
from fedcrab.flower.sent_config import RecordedConfig, SentMessages
from fedcrab.flower.strategy_state import StrategyState
from fedcrab.flower.training_loop import (
    EvaluateFn,
    EvaluateOnce,
    Hooks,
    finished_result,
    has_own_start,
    renumbered,
    replaced,
    start_by_itself,
)
from fedcrab.flower.waiting import Patience, PatientGrid, Reason
from fedcrab.history.selection import Selection
from fedcrab.recording.training_history import REPORTED, TrainingHistory
from fedcrab.types import Vector, utc_now

LARGE = 2**26  # bytes of a round's updates; above this, they are in memory only once


class Recorder(Strategy):
    """Records what a strategy does; see the module. ``start`` resumes an earlier run that was killed."""

    def __init__(
        self,
        strategy: Strategy,
        history: str | PathLike[str],
        *,
        evaluate_fn: EvaluateFn | None = None,  # (round, arrays) -> {"loss": ..., "probabilities": [...]}
        selection: Selection | None = None,
        patience: Patience | None = None,
        buffers: Collection[str] | None = None,  # arrays that are not trained; None guesses
        keep_open: bool = False,  # True leaves the history open for more rounds after ``start``
        head_every: int = 0,  # log the history's head every n rounds, to be stored elsewhere; 0: never
        loss_key: str | None = None,  # the loss in replies and evaluate_fn, if not Flower's name
    ) -> None:
        if not isinstance(head_every, int) or head_every < 0:
            raise ConfigError(f"head_every must be a whole number of 0 or more, got {head_every!r}")
        self.path, self._loss_key = Path(history), loss_key
        self._once: EvaluateOnce | None = None
        self._state, self._mean = StrategyState(strategy), is_weighted_mean(strategy)
        self._sent: SentMessages | None = None
        self._inside: dict[str, Callable[..., Any]] = {}  # the methods that hooks replace
        self._absent: tuple[int, ...] = ()  # arrays that the current model lacks
        self._whole: Vector | None = None  # the model including these
        self._evaluate_fn, self._selection, self._buffers = evaluate_fn, selection, buffers
        self._patience, self._keep_open = patience or Patience(), keep_open
        self._head_every = head_every
        self._recording: TrainingHistory | None = None
        self._identities: Identities | None = None
        self._grid: PatientGrid | None = None
        self._intake: ReplyCollector | None = None

        self._messages: list[Message] = []
        self._done = 0  # rounds of earlier runs
        self._began: datetime | None = None  # when the current round began
        self.strategy = strategy  # last: from here on, its attributes are the recorder's too

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner strategy."""
        if name.startswith("__") or "strategy" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that only the inner strategy has on the inner strategy."""
        inner = self.__dict__.get("strategy")
        ours = inner is None or name in self.__dict__ or hasattr(type(self), name)
        object.__setattr__(self if ours or not hasattr(inner, name) else inner, name, value)

    def summary(self) -> None:
        """Log where the history is, then the inner strategy's summary."""
        log(INFO, "\t├──> Recorded by fedcrab in %s", self.path)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **more: Any,
    ) -> Result:
        """Train until the history has this many rounds, after those it already has.

        If the inner strategy has its own ``start``, that is called, with further arguments from ``more``.
        """
        self._evaluate_fn = self._evaluate_fn or evaluate_fn
        self._once = EvaluateOnce(self._evaluate_fn) if self._evaluate_fn else None
        arrays = self._take_up(initial_arrays, num_rounds)
        if self._done >= num_rounds:
            self._end()
            return finished_result(arrays)
        self._grid = PatientGrid(grid, self._patience, self._judge)
        given = {
            "grid": self._grid,
            "initial_arrays": arrays,
            "num_rounds": num_rounds - self._done,
            "timeout": timeout,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
            "evaluate_fn": self._settled(evaluate_fn),
            **more,
        }
        try:
            result = self._start(given)
        except BaseException:
            if self._recording is not None:
                self._recording.release()
            raise
        self._end()
        return renumbered(result, self._done) if isinstance(result, Result) else result

    def _start(self, given: dict[str, Any]) -> Any:
        """Run Flower's loop, or the inner strategy's own ``start``, with every round recorded."""
        inner = self.strategy
        if not has_own_start(inner):
            return super().start(**given)
        if self._done:
            log(
                WARNING,
                "fedcrab: %s.start counts from 1 again; it trains rounds %d to %d",
                type(inner).__name__,
                self._done + 1,
                self._done + given["num_rounds"],
            )
        hooks: Hooks = {"configure_train": self.configure_train, "aggregate_train": self.aggregate_train}
        self._inside = {name: getattr(inner, name) for name in hooks}
        try:
            with replaced(inner, hooks):  # its loop calls the recorder, which calls the methods it replaced
                return start_by_itself(inner, given)
        finally:
            self._inside = {}

    def _settled(self, evaluate: EvaluateFn | None) -> EvaluateFn | None:
        """Return the caller's function so that it runs once per model, also if the recorder uses it.

        It sees a model only after its round is on disk.
        """
        if evaluate is None:
            return None
        function = self._once if self._once and self._once.function is evaluate else evaluate

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self._recording is not None:
                self._recording.settle()
            return function(server_round + self._done, arrays)

        return evaluated

    def _take_up(self, initial: ArrayRecord, rounds: int) -> ArrayRecord:
        """Return the arrays to continue from: those of the last recorded round, or the initial ones."""
        model = array_layout(initial, buffers=self._buffers)
        every = self._head_every
        self._recording = TrainingHistory.take_up(
            self.path, model, self._measure, log=log, head_every=every, loss_key=self._loss_key
        )
        if self._recording is not None:
            RunMetadata.of(self._recording.history)  # refused if it was not recorded on Flower
        if self._recording is None:
            return initial
        self._done = self._recording.rounds
        if self._recording.history.closed and self._done < rounds:
            raise ConfigError(
                f"{self.path}: this training ended after {self._done} rounds; choose another path"
            )
        log(INFO, "fedcrab: %s has %d rounds, continuing from there", self.path, self._done)
        history = self._recording.history
        if state := history.server_state(self._done):
            self._state.put(state)
        self._absent = RecordedConfig(history, RunMetadata.of(history)).absent(self._done)
        self._whole = history.final_model() if self._absent else None
        arrays: ArrayRecord = self._recording.last(self._absent)
        return arrays

    @property
    def _measure(self) -> EvaluateFn | None:
        return self._once or self._evaluate_fn

    def _end(self) -> None:
        if self._recording is not None:
            self._recording.end(keep_open=self._keep_open)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages; remember who is asked, and from which model."""
        self._began = utc_now()
        configure = self._inside.get("configure_train", self.strategy.configure_train)
        messages = list(configure(server_round + self._done, arrays, config, grid))
        self._identities = self._identities or Identities(grid)
        asked = {m.metadata.dst_node_id for m in messages}
        clients = {node: c for node, c in self._identities.clients().items() if node in asked}
        self._sent = SentMessages(messages, clients, server_round + self._done)
        recording = self._recorded(arrays, messages, self._identities.scheme())
        start = recording.model.flatten(arrays, rest=self._whole)
        examples_key = RunMetadata.of(recording.history).examples_key
        large = start.nbytes * len(clients) > LARGE and self._grid is not None and not self._inside
        self._intake = ReplyCollector(
            recording.model, start, clients, examples_key, recording.buffers, hold=large
        )
        self._messages = [m for m in messages if m.metadata.dst_node_id in clients]
        return self._messages

    def _recorded(self, arrays: ArrayRecord, messages: Sequence[Message], scheme: str) -> TrainingHistory:
        """Return the recording; the first round creates it."""
        if self._recording is None:
            model = array_layout(arrays, buffers=self._buffers)
            common = self._sent.common if self._sent else {}
            notes = run_metadata(self.strategy, scheme, model, messages, mean=self._mean, common=common)
            start, evaluate, selection = model.flatten(arrays), self._measure, self._selection
            self._recording = TrainingHistory.create(
                self.path,
                model,
                start,
                strategy="FedAvg" if notes.mean else notes.strategy,
                notes=notes.to_json(),
                evaluate=evaluate,
                selection=selection,
                log=log,
                head_every=self._head_every,
                loss_key=self._loss_key,
            )
        RunMetadata.of(self._recording.history).check_identity(scheme, self.path)
        return self._recording

    def _judge(self, node: int, reply: Message) -> Reason | None:
        return None if self._intake is None else self._intake.judge(node, reply)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass the usable replies to the inner strategy and record its result."""
        intake, recording = self._intake, self._recording
        if intake is None or recording is None:
            raise RecordError("aggregate_train was called before configure_train")
        recording.settle()  # the previous round must be on disk first
        reasons = self._grid.replies.failed if self._grid else {}
        keys = (self._loss_key,) if self._loss_key else REPORTED
        admitted = intake.admit(self._by_node(replies), reasons, keys)
        index = server_round - 1 + self._done
        for left_out in admitted.rejected:
            log(WARNING, "fedcrab: round %d without %s: %s", index + 1, left_out.client, left_out.reason)
        made: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if admitted.replies:
            aggregate = self._inside.get("aggregate_train", self.strategy.aggregate_train)
            made = aggregate(server_round + self._done, list(admitted.replies.values()))
        admitted = replace(admitted, replies={})
        self._let_go(intake)
        if made[0] is not None:
            self._absent = recording.model.absent(made[0])
        after = recording.add(
            index,
            intake.start,
            admitted,
            made[0],
            began=self._began,
            notes=self._notes(recording),
            server=self._state.take(),
        )
        if after is not None:
            self._whole = recording.model.flatten(after, rest=intake.start) if self._absent else None
        if self._grid is None:  # a custom loop, whose end is unknown
            recording.settle()
        self._intake = None
        return after, made[1]

    def _let_go(self, intake: ReplyCollector) -> None:
        """Free the replies that the strategy has seen; see :meth:`PatientGrid.let_go`."""
        if self._grid is not None and not self._inside:
            self._grid.let_go()
        if intake.hold:
            gc.collect()  # Flower's records contain reference cycles; what is left now is used by somebody
            intake.subtract_start()

    def _notes(self, recording: TrainingHistory) -> str:
        """Return how this round's messages differ from the first round's."""
        notes = RunMetadata.of(recording.history)
        base = {(notes.config_key, key): value for key, value in notes.config.items()}
        return self._sent.notes(base, self._absent) if self._sent else ""

    def _by_node(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Return the first reply of each node, matched by the message that it replies to."""
        sent = {m.metadata.message_id: m.metadata.dst_node_id for m in self._messages}
        sent |= self._grid.replies.sent if self._grid else {}
        found: dict[int, Message] = {}
        for reply in replies:
            node = sent.get(reply.metadata.reply_to_message_id)
            if node is not None:
                found.setdefault(node, reply)
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside."""
        return self.strategy.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy inside."""
        return self.strategy.aggregate_evaluate(server_round + self._done, replies)
