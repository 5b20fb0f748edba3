"""A strategy around a strategy: it trains as it did, and every round of it is recorded.

What a client sends is looked at before the strategy inside sees it, and copied, since some strategies
consume their replies. The model goes on as it is recorded, M_t + G_t in float32: at most one rounding
apart from what the strategy made, so that a training killed and resumed is the training uninterrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from logging import INFO
from os import PathLike
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedcrab.errors import ConfigError, RecordError
from fedcrab.flower.arrays import RunMetadata, array_layout, plain
from fedcrab.flower.fleet import Identities
from fedcrab.flower.replies import ReplyCollector
from fedcrab.flower.waiting import Patience, PatientGrid, Reason
from fedcrab.history.selection import Selection
from fedcrab.recording.arrays import UpdateBuffers
from fedcrab.recording.training_history import REPORTED, TrainingHistory
from fedcrab.types import utc_now

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Recorder(Strategy):
    """Records what a strategy does; see the module. ``start`` goes on where an earlier run was killed."""

    def __init__(
        self,
        strategy: Strategy,
        history: str | PathLike[str],
        *,
        evaluate_fn: EvaluateFn | None = None,  # (round, arrays) -> {"loss": ..., "probabilities": [...]}
        selection: Selection | None = None,
        patience: Patience | None = None,
        buffers: Collection[str] | None = None,  # arrays that are not trained, unless it is to be guessed
        keep_open: bool = False,  # True leaves the history open for more rounds after ``start``
        head_every: int = 0,  # log the history's head every so many rounds, to be kept outside; 0 never does
    ) -> None:
        if not isinstance(head_every, int) or head_every < 0:
            raise ConfigError(f"head_every must be a whole number of 0 or more, got {head_every!r}")
        self.strategy, self.path = strategy, Path(history)
        self._evaluate_fn, self._selection, self._buffers = evaluate_fn, selection, buffers
        self._patience, self._keep_open = patience or Patience(), keep_open
        self._head_every = head_every
        self._recording: TrainingHistory | None = None
        self._identities: Identities | None = None
        self._grid: PatientGrid | None = None
        self._intake: ReplyCollector | None = None
        self._rooms = UpdateBuffers()
        self._messages: list[Message] = []
        self._done = 0  # rounds of earlier runs
        self._began: datetime | None = None  # the round that clients are in

    def summary(self) -> None:
        """Say what is recorded where, and what the strategy inside says."""
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
    ) -> Result:
        """Train until the history has this many rounds, going on from those it has already."""
        self._evaluate_fn = self._evaluate_fn or evaluate_fn
        arrays = self._take_up(initial_arrays, num_rounds)
        if self._done >= num_rounds:
            self._end()
            return _result(arrays)
        self._grid = PatientGrid(grid, self._patience, self._judge)
        shifted = None if evaluate_fn is None else self._settled(evaluate_fn)
        left, configs = num_rounds - self._done, (train_config, evaluate_config)
        try:
            result = super().start(self._grid, arrays, left, timeout, *configs, shifted)
        except BaseException:
            if self._recording is not None:
                self._recording.release()
            raise
        self._end()
        return _renumbered(result, self._done)

    def _settled(self, evaluate: EvaluateFn) -> EvaluateFn:
        """The caller's function sees a model, and may keep or show it, once its round is on the disk."""

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self._recording is not None:
                self._recording.settle()
            return evaluate(server_round + self._done, arrays)

        return evaluated

    def _take_up(self, initial: ArrayRecord, rounds: int) -> ArrayRecord:
        """The arrays to go on from: those of the last recorded round, else the initial ones."""
        model = array_layout(initial, buffers=self._buffers)
        every = self._head_every
        self._recording = TrainingHistory.take_up(
            self.path, model, self._evaluate_fn, log=log, head_every=every
        )
        if self._recording is not None:
            RunMetadata.of(self._recording.history)  # refused if it was not recorded on Flower
        if self._recording is None:
            return initial
        self._done = self._recording.rounds
        if self._recording.history.closed and self._done < rounds:
            raise ConfigError(
                f"{self.path}: this training ended after {self._done} rounds; take another place"
            )
        log(INFO, "fedcrab: %s has %d rounds, going on from there", self.path, self._done)
        arrays: ArrayRecord = self._recording.last()
        return arrays

    def _end(self) -> None:
        if self._recording is not None:
            self._recording.end(keep_open=self._keep_open)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy inside; who is asked, and from which model, is remembered."""
        self._began = utc_now()
        kept = plain(config)
        messages = list(self.strategy.configure_train(server_round + self._done, arrays, config, grid))
        self._identities = self._identities or Identities(grid)
        recording = self._recorded(arrays, kept, self._identities.scheme())
        asked = {m.metadata.dst_node_id for m in messages}
        clients = {node: c for node, c in self._identities.clients().items() if node in asked}
        start = recording.model.flatten(arrays)
        examples_key = RunMetadata.of(recording.history).examples_key
        self._intake = ReplyCollector(recording.model, start, clients, examples_key, self._rooms)
        self._messages = [m for m in messages if m.metadata.dst_node_id in clients]
        return self._messages

    def _recorded(self, arrays: ArrayRecord, config: dict[str, object], scheme: str) -> TrainingHistory:
        """The recording, begun with the first round."""
        if self._recording is None:
            model = array_layout(arrays, buffers=self._buffers)
            notes = RunMetadata(
                scheme, _name(self.strategy), model.dtypes, *_keys(self.strategy), config=config
            )
            start, evaluate, selection = model.flatten(arrays), self._evaluate_fn, self._selection
            self._recording = TrainingHistory.create(
                self.path,
                model,
                start,
                strategy=notes.strategy,
                notes=notes.to_json(),
                evaluate=evaluate,
                selection=selection,
                log=log,
                head_every=self._head_every,
            )
        RunMetadata.of(self._recording.history).check_identity(scheme, self.path)
        return self._recording

    def _judge(self, node: int, reply: Message) -> Reason | None:
        return None if self._intake is None else self._intake.judge(node, reply)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy inside see the answers that can be used, and record what it makes of them."""
        intake, recording = self._intake, self._recording
        if intake is None or recording is None:
            raise RecordError("aggregate_train was called before configure_train")
        recording.settle()  # no round is made before the one before it is on the disk
        reasons = self._grid.replies.failed if self._grid else {}
        admitted = intake.admit(self._by_node(replies), reasons, REPORTED)
        made: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)
        if admitted.replies:
            made = self.strategy.aggregate_train(server_round + self._done, list(admitted.replies.values()))
        index = server_round - 1 + self._done
        after = recording.add(index, intake.start, admitted, made[0], began=self._began)
        if self._grid is None:  # a loop of one's own, of which nobody says when it ends
            recording.settle()
        self._intake = None
        return after, made[1]

    def _by_node(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Told by the message that each is a reply to; the first of each node."""
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


def _inside(strategy: Strategy) -> Strategy:
    """The strategy within the wrappers, such as those of differential privacy."""
    inner = getattr(strategy, "strategy", None)
    return _inside(inner) if isinstance(inner, Strategy) else strategy


def _name(strategy: Strategy) -> str:
    wrapper, inner = type(strategy).__name__, _inside(strategy)
    return wrapper if inner is strategy else f"{wrapper}({_name(inner)})"


def _keys(strategy: Strategy) -> tuple[str, str, str]:
    """What the strategy calls the arrays, the configuration and the number of examples."""
    inner = _inside(strategy)
    usual = {"arrayrecord_key": "arrays", "configrecord_key": "config", "weighted_by_key": "num-examples"}
    arrays, config, examples = (str(getattr(inner, name, default)) for name, default in usual.items())
    return arrays, config, examples


def _result(arrays: ArrayRecord) -> Result:
    result = Result()
    result.arrays = arrays
    return result


def _renumbered(result: Result, done: int) -> Result:
    """The rounds of a resumed training by their own numbers."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        metrics = getattr(result, name)
        setattr(result, name, {r + done: found for r, found in metrics.items()})
    return result
