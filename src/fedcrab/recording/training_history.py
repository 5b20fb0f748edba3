"""A history that grows with a training, whichever engine trains.

Loss and divergence of a round: from data that the server holds, else from what clients report.

With an ``evaluate_fn``, the loss it gives and, where it also gives ``probabilities``, KL(p_t ‖ p_{t+1});
without one, the weighted median of the reported losses and ‖M_{t+1} - M_t‖.
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

from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.history.chain import LEDGER
from fedcrab.history.limits import real
from fedcrab.history.selection import Selection
from fedcrab.recording.arrays import ArrayLayout
from fedcrab.types import Rejection, Round, ServerState, Updates, Vector, utc_now
from fedcrab.vectors import distance, is_finite

EvaluateFn = Callable[[int, Any], Mapping[str, Any] | None]  # (round, the engine's arrays) -> loss, ...
Log = Callable[..., None]  # as logging.log
LOSS = "loss"
PROBABILITIES = "probabilities"  # the softmax output on the server's examples, flattened
REPORTED = (
    "train_loss",
    "train-loss",
    "loss",
    "train_logloss",
)  # what engines' templates call a client's loss
UNKNOWN = float("nan")


class Answers(Protocol):
    """What came of a round: whose answers are used, and why the others' are not."""

    @property
    def updates(self) -> Updates:
        """Of those that are used."""
        ...

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The others."""
        ...

    @property
    def losses(self) -> tuple[tuple[float, float], ...]:
        """Reported, each with the examples it is of."""
        ...


class LossMeter:
    """Each model is evaluated once: the one after a round is the one before the next."""

    def __init__(self, evaluate: EvaluateFn | None, model: ArrayLayout, loss_key: str | None = None) -> None:
        self._evaluate, self._model, self._key = evaluate, model, loss_key or LOSS
        self._last: tuple[Vector, Mapping[str, Any]] | None = None

    def loss(self, round: int, vector: Vector) -> float:
        """F of a model by the server's own data; not a number without them."""
        return _number(self._of(round, vector), self._key) if self._evaluate else UNKNOWN

    def after(
        self, round: int, before: Vector, after: Vector, reported: Sequence[tuple[float, float]]
    ) -> tuple[float, float]:
        """Loss and divergence of a round; ``reported`` has the loss and the examples of each client."""
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
    """Mean over the examples of Σ_k p_k·log(p_k / q_k); each example's p sums to one, so Σp counts them."""
    if p.shape != q.shape or not p.sum() > 0:
        raise ConfigError(f"the evaluation gave {q.size} probabilities after a round and {p.size} before it")
    tiny = np.finfo(np.float32).tiny
    terms = p * (np.log(np.maximum(p, tiny)) - np.log(np.maximum(q, tiny)))
    return float(terms.sum() / p.sum())


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The least value at which half of the weight is reached; not a number of nothing."""
    if not values:
        return UNKNOWN
    ordered = sorted(values)
    weights = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))][0]


def _number(record: Mapping[str, object], key: str) -> float:
    value = record.get(key)
    return real(f"the evaluation's {key!r}", value) if isinstance(value, int | float) else UNKNOWN


MEANS = {"FedAvg": "fedavg"}  # every other strategy is named as its class is


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
        self._loss_key, self._told_unknown = loss_key, False
        self._beside = ThreadPoolExecutor(1, "fedcrab-recording")
        self._writing: Future[None] | None = None  # of the last round

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
        """Begin a history with this model."""
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
        """Go on with the history that is there, if one is."""
        if not (path / LEDGER).is_file():
            return None
        found = History.open(path)
        if found.charter.layout != model.layout:
            raise ConfigError(
                f"{path}: recorded with another model; continue with that one, or choose another path"
            )
        history = found if found.closed else History.resume(path)
        return cls(history, model, evaluate, log=log, head_every=head_every, loss_key=loss_key)

    @property
    def rounds(self) -> int:
        """How many are recorded."""
        return len(self.history.rounds)

    def last(self, absent: Collection[int] = ()) -> Any:
        """The model after the last recorded round, without the arrays at these places."""
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
        """Begin to record a round; the model after it, None where nothing came of it.

        ``made`` is the engine's model, or all of it as one vector, which is used up. It may have some of the
        model's arrays only, and so has then what is given back; the others did not change. ``notes`` and
        ``server`` are the round's (:class:`fedcrab.types.Round`).
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
        if self._told_unknown or not np.isnan(loss):
            return
        self._told_unknown = True
        names = ", ".join([self._loss_key] if self._loss_key else REPORTED)
        self._log(
            WARNING,
            "fedcrab: the loss is unknown: neither an evaluate_fn nor the clients give one called %s; which "
            "rounds are kept follows from the length of the steps alone. loss_key= takes another name",
            names,
        )

    def _step(self, start: Vector, made: Any | None) -> tuple[Vector, Vector] | str:
        """G_t = M_{t+1} - M_t and the model that continues, M_t + G_t in float32; or why there is none."""
        if made is None:
            return "the strategy made nothing of the answers"
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
            sound = is_finite(after)  # and so is the step, as M_t is
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
        """A round in which nobody counted: what was sent did not move the model."""
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
        """Wait until the last round is on the disk, whole; what kept it from there is raised here."""
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
        """The training has ended."""
        try:
            self.settle()
            if not keep_open:
                self.history.close()
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the history, once the last round is written or has failed to be."""
        self._beside.shutdown()
        error = self._writing.exception() if self._writing else None
        if error is not None:
            self._log(ERROR, "fedcrab: %s", error)
        self.history.release()


def _times(began: datetime | None) -> tuple[datetime, datetime]:
    """When a round began and ended, now; a clock that was set back meanwhile does not turn them round."""
    now = utc_now()
    return (now, now) if began is None else (began, max(began, now))
