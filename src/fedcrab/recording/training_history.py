"""A history that grows with a training, on any engine.

Loss and divergence of a round come from data that the server has, or from the clients' reports. With an
``evaluate_fn``, they are its loss and, if it also returns ``probabilities``, KL(p_t ‖ p_{t+1}). Without one,
they are the weighted median of the reported losses and ‖M_{t+1} - M_t‖.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.history import History
from fedcrab.history.chain import LEDGER, Head
from fedcrab.history.limits import real
from fedcrab.history.selection import Selection
from fedcrab.recording.arrays import ArrayLayout, UpdateBuffers
from fedcrab.types import Rejection, Round, ServerState, Updates, Vector, utc_now
from fedcrab.vectors import distance, is_finite

EvaluateFn = Callable[[int, Any], Mapping[str, Any] | None]  # (round, the engine's arrays) -> loss, ...
Log = Callable[..., None]  # like logging.log
LOSS = "loss"
PROBABILITIES = "probabilities"  # the softmax output on the server's examples, flattened
REPORTED = (
    "train_loss",
    "train-loss",
    "loss",
    "train_logloss",
)  # a client's loss in the engines' templates
UNKNOWN = float("nan")


class Answers(Protocol):
    """The answers of a round: those that are used, and why the others are not."""

    @property
    def updates(self) -> Updates:
        """The updates that are used."""
        ...

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The clients that are left out, and why."""
        ...

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        """The reported losses, each with its number of examples."""
        ...


class LossMeter:
    """Evaluates each model once: the model after a round is the model before the next."""

    def __init__(self, evaluate: EvaluateFn | None, model: ArrayLayout, loss_key: str | None = None) -> None:
        self._evaluate, self._model, self._key = evaluate, model, loss_key or LOSS
        self._last: tuple[Vector, Mapping[str, Any]] | None = None

    def loss(self, round: int, vector: Vector) -> float:
        """Return the loss on the server's own data; NaN if there are none."""
        return _number(self._of(round, vector), self._key) if self._evaluate else UNKNOWN

    def after(
        self, round: int, before: Vector, after: Vector, reported: Sequence[tuple[float, float]]
    ) -> tuple[float, float]:
        """Return loss and divergence of a round; ``reported`` has each client's loss and examples."""
        if self._evaluate is None:
            return weighted_median(reported), self._distance(before, after)
        old = self._of(round, before).get(PROBABILITIES)
        new = self._of(round + 1, after)
        both = old is not None and PROBABILITIES in new
        return _number(new, self._key), (
            divergence(np.array(old), np.array(new[PROBABILITIES])) if both else self._distance(before, after)
        )

    def _of(self, round: int, vector: Vector) -> Mapping[str, Any]:
        if self._last is None or not np.array_equal(self._last[0], vector):
            found = self._evaluate(round, self._model.arrays(vector)) if self._evaluate else None
            self._last = vector, {} if found is None else found
        return self._last[1]

    def _distance(self, before: Vector, after: Vector) -> float:
        return distance(after, before, self._model.layout.trained())


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Return the mean over the examples of Σ_k p_k·log(p_k / q_k); Σp is the number of examples."""
    if p.shape != q.shape or not p.sum() > 0:
        raise ConfigError(
            f"the evaluation returned {q.size} probabilities after a round, but {p.size} before it"
        )
    tiny = np.finfo(np.float32).tiny
    terms = p * (np.log(np.maximum(p, tiny)) - np.log(np.maximum(q, tiny)))
    return float(terms.sum() / p.sum())


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Return the least value at which half of the weight is reached; NaN if there are no values."""
    if not values:
        return UNKNOWN
    ordered = sorted(values)
    weights = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))][0]


def _number(record: Mapping[str, object], key: str) -> float:
    value = record.get(key)
    return real(f"the evaluation's {key!r}", value) if isinstance(value, int | float) else UNKNOWN


MEANS = {"FedAvg": "fedavg"}  # other strategies have the name of their class


class TrainingHistory:
    """One writer, from the first round to the last. Made by :meth:`create` or :meth:`take_up`.

    A round is written on a thread of its own, while clients train the next one. It counts once
    :meth:`settle` has returned; a process killed before that repeats this round.
    """

    def __init__(
        self,
        history: History,
        model: ArrayLayout,
        evaluate: EvaluateFn | LossMeter | None,
        *,
        log: Log,
        head_every: int = 0,
        loss_key: str | None = None,
    ) -> None:
        self.history, self.model = history, model
        self._log, self._head_every = log, head_every
        self._measures = evaluate if isinstance(evaluate, LossMeter) else LossMeter(evaluate, model, loss_key)
        self._loss_key, self._warned_of_unknown_loss = loss_key, False
        self._beside = ThreadPoolExecutor(1, "fedcrab-recording")
        self._writing: Future[None] | None = None  # the last round
        self.buffers = UpdateBuffers(self.settle)  # memory for the updates of the next round

    @classmethod
    def create(
        cls,
        path: Path,
        model: ArrayLayout,
        start: Vector,
        *,
        strategy: str,
        notes: str,
        evaluate: EvaluateFn | None,
        selection: Selection | None,
        log: Log,
        head_every: int = 0,
        loss_key: str | None = None,
    ) -> TrainingHistory:
        """Create a history that starts with this model."""
        measures = LossMeter(evaluate, model, loss_key)
        history = History.create(
            path,
            start,
            initial_loss=measures.loss(0, start),
            selection=selection,
            layout=model.layout,
            aggregation=MEANS.get(strategy, strategy),
            notes=notes,
        )
        return cls(history, model, measures, log=log, head_every=head_every, loss_key=loss_key)

    @classmethod
    def take_up(
        cls,
        path: Path,
        model: ArrayLayout,
        evaluate: EvaluateFn | None,
        *,
        log: Log,
        head_every: int = 0,
        loss_key: str | None = None,
    ) -> TrainingHistory | None:
        """Resume the history at this path; None if there is none."""
        if not (path / LEDGER).is_file():
            return None
        found = History.open(path)
        if found.charter.layout != model.layout:
            raise ConfigError(
                f"{path}: recorded with another model; continue with that one, or choose another path"
            )
        if found.closed:
            _complete_closing(path)
            history = found
        else:
            history = History.resume(path)
        return cls(history, model, evaluate, log=log, head_every=head_every, loss_key=loss_key)

    @property
    def rounds(self) -> int:
        """The number of recorded rounds."""
        return len(self.history.rounds)

    def last(self, absent: Collection[int] = ()) -> Any:
        """Return the model after the last recorded round, without the arrays at these positions."""
        return self.model.arrays(self.history.final_model(), absent)

    def add(
        self,
        index: int,
        start: Vector,
        admitted: Answers,
        made: Any | None,
        *,
        began: datetime | None = None,
        notes: str = "",
        server: ServerState | None = None,
    ) -> Any | None:
        """Start recording a round; return the model after it, or None if the model did not change.

        ``made`` is the engine's model, or the whole model as one vector, which is overwritten. It may have
        only some of the model's arrays; the returned model then has the same ones. ``notes`` and ``server``
        are as in :class:`fedcrab.types.Round`.
        """
        more = notes, server
        moved = self._step(start, made) if admitted.updates.clients else "no usable answer came"
        if isinstance(moved, str):
            self._log(WARNING, "fedcrab: round %d leaves the model as it was: %s", index + 1, moved)
            self._skip(index, start, admitted, moved, began, more)
            return None
        step, after = moved
        measured = self._measures.after(index, start, after, admitted.losses)
        self._warn_of_unknown_loss(measured[0])
        times = _times(began)
        self._write(Round(index, start, admitted.updates, step, *measured, admitted.rejected, *times, *more))
        absent = () if isinstance(made, np.ndarray) else self.model.absent(made or ())
        return self.model.arrays(after, absent)

    def _warn_of_unknown_loss(self, loss: float) -> None:
        """Warn once: without a loss, windows close after a fixed number of rounds."""
        if self._warned_of_unknown_loss or not np.isnan(loss):
            return
        self._warned_of_unknown_loss = True
        names = ", ".join([self._loss_key] if self._loss_key else REPORTED)
        self._log(
            WARNING,
            "fedcrab: the loss is unknown: neither an evaluate_fn nor the clients report one called %s; "
            "which rounds are kept depends on the length of the steps alone. Pass another name as loss_key=",
            names,
        )

    def _step(self, start: Vector, made: Any | None) -> tuple[Vector, Vector] | str:
        """Return G_t = M_{t+1} - M_t and the next model, M_t + G_t in float32; or why there is none."""
        if made is None:
            return "the strategy returned no model"
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                whole = isinstance(made, np.ndarray)
                after: Vector = made if whole else self.model.flatten(made, rest=start)
            except ValueError as error:
                raise ConfigError(
                    f"the strategy's model is not the one that the training started with: {error}"
                ) from error
            self.model.round_off(after)
            step = after - start
            np.add(start, step, out=after)
            sound = is_finite(after)  # then the step is finite too, as M_t is
        return (step, after) if sound else "the strategy's model is not finite"

    def _skip(
        self,
        index: int,
        start: Vector,
        admitted: Answers,
        why: str,
        began: datetime | None,
        more: tuple[str, ServerState | None],
    ) -> None:
        """Record a round in which no answer was used and the model did not change."""
        unused = tuple(Rejection(client, why) for client in admitted.updates.clients)
        rejected = tuple(sorted((*admitted.rejected, *unused), key=lambda r: r.client))
        loss, divergence = self._measures.after(index, start, start, ())
        nothing = admitted.updates.only(())
        step, times = np.zeros_like(start), _times(began)
        self._write(Round(index, start, nothing, step, loss, divergence, rejected, *times, *more))

    def _write(self, round: Round) -> None:
        self.settle()
        self._writing = self._beside.submit(self.history.record, round)

    def settle(self) -> None:
        """Wait until the last round is on disk; raises whatever error prevented that."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
            self._tell_head()

    def _tell_head(self) -> None:
        """Log the head. If logs are stored elsewhere, a rewritten history cannot match it."""
        if self._head_every and self.rounds % self._head_every == 0:
            head = self.history.contents.head
            self._log(INFO, "fedcrab: head after round %d of %s: %s", self.rounds, self.history.path, head)

    def end(self, *, keep_open: bool) -> None:
        """Finish the recording."""
        try:
            self.settle()
            if not keep_open:
                self.history.close()
        finally:
            self.release()

    def release(self) -> None:
        """Release the history after the last round was written or has failed."""
        self._beside.shutdown()
        error = self._writing.exception() if self._writing else None
        if error is not None:
            self._log(ERROR, "fedcrab: %s", error)
        self.history.release()


def _complete_closing(path: Path) -> None:
    """Seal a closed history whose writer was killed before it could; a sealed one stays as it is."""
    try:
        History.resume(path)  # seals it, then refuses: no round can be added
    except HistoryError:
        if Head.read(path).ledger is None:
            raise


def _times(began: datetime | None) -> tuple[datetime, datetime]:
    """Return when a round began, and now as its end; never earlier, even if the clock was set back."""
    now = utc_now()
    return (now, now) if began is None else (began, max(began, now))
