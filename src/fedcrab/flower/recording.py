"""A history that grows with a training on Flower."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from logging import ERROR, WARNING
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.supercore import log

from fedcrab.errors import ConfigError
from fedcrab.flower.arrays import Model
from fedcrab.flower.intake import Admitted
from fedcrab.flower.measures import EvaluateFn, Measures
from fedcrab.flower.notes import Notes
from fedcrab.history import History
from fedcrab.history.seal import LEDGER
from fedcrab.history.selection import Selection
from fedcrab.types import Rejection, Round, Vector
from fedcrab.vectors import is_finite

RULES = {"FedAvg": "fedavg"}  # every other strategy is named as its class is


class Recording:
    """One writer, from the first round to the last. Made by :meth:`create` or :meth:`take_up`.

    A round is written on a thread of its own, while clients train the next one. It counts once
    :meth:`settle` has returned; whoever is killed before that does this one round again.
    """

    def __init__(self, history: History, model: Model, evaluate: EvaluateFn | None) -> None:
        self.history, self.model = history, model
        self.notes = Notes.of(history)
        self._measures = Measures(evaluate, model)
        self._beside = ThreadPoolExecutor(1, "fedcrab-recording")
        self._writing: Future[None] | None = None  # of the last round

    @classmethod
    def create(
        cls,
        path: Path,
        model: Model,
        start: Vector,
        notes: Notes,
        *,
        evaluate: EvaluateFn | None,
        selection: Selection | None,
    ) -> Recording:
        """Begin a history with this model."""
        history = History.create(
            path,
            start,
            initial_loss=Measures(evaluate, model).loss(0, start),
            selection=selection,
            layout=model.layout,
            aggregation=RULES.get(notes.strategy, notes.strategy),
            notes=notes.to_json(),
        )
        return cls(history, model, evaluate)

    @classmethod
    def take_up(cls, path: Path, model: Model, evaluate: EvaluateFn | None) -> Recording | None:
        """Go on with the history that is there, if one is."""
        if not (path / LEDGER).is_file():
            return None
        found = History.open(path)
        if found.charter.layout != model.layout:
            raise ConfigError(
                f"{path}: recorded with another model; go on with that one, or take another place"
            )
        return cls(found if found.closed else History.resume(path), model, evaluate)

    @property
    def rounds(self) -> int:
        """How many are recorded."""
        return len(self.history.rounds)

    def last(self) -> ArrayRecord:
        """The model after the last recorded round."""
        return self.model.arrays(self.history.final_model())

    def check_identity(self, scheme: str) -> None:
        """Clients are named now as they were when the history began."""
        if scheme != self.notes.identity:
            raise ConfigError(
                f"{self.history.path}: its clients are named by {self.notes.identity}, those here by {scheme}"
            )

    def add(
        self, index: int, start: Vector, admitted: Admitted, made: ArrayRecord | None
    ) -> ArrayRecord | None:
        """Begin to record a round; the model after it, None where nothing came of it."""
        step = self._step(start, made) if admitted.updates.clients else "no usable answer came"
        if isinstance(step, str):
            log(WARNING, "fedcrab: round %d leaves the model as it was: %s", index + 1, step)
            self._skip(index, start, admitted, step)
            return None
        after = start + step
        measured = self._measures.after(index, start, after, admitted.losses)
        self._write(Round(index, start, admitted.updates, step, *measured, admitted.rejected))
        return self.model.arrays(after)

    def _step(self, start: Vector, made: ArrayRecord | None) -> Vector | str:
        """G_t = M_{t+1} - M_t, or why there is none."""
        if made is None:
            return "the strategy made nothing of the answers"
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                after = self.model.flatten(made)
            except ValueError as error:
                raise ConfigError(
                    f"the strategy's model is not the one that was begun with: {error}"
                ) from error
            self._round_off(after)
            step = after - start
        return step if is_finite(step) else "the strategy's model is not finite"

    def _round_off(self, vector: Vector) -> None:
        """Counters stay whole, whatever was averaged."""
        for field, view in zip(
            self.model.layout.fields, self.model.layout.views(vector).values(), strict=True
        ):
            if field.integer:
                np.rint(view, out=view)

    def _skip(self, index: int, start: Vector, admitted: Admitted, why: str) -> None:
        """A round in which nobody counted: what was sent did not move the model."""
        unused = tuple(Rejection(client, why) for client in admitted.updates.clients)
        rejected = tuple(sorted((*admitted.rejected, *unused), key=lambda r: r.client))
        loss, divergence = self._measures.after(index, start, start, ())
        nothing = admitted.updates.only(())
        self._write(Round(index, start, nothing, np.zeros_like(start), loss, divergence, rejected))

    def _write(self, round: Round) -> None:
        self.settle()
        self._writing = self._beside.submit(self.history.record, round)

    def settle(self) -> None:
        """Wait until the last round is on the disk, whole; what kept it from there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

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
            log(ERROR, "fedcrab: %s", error)
        self.history.release()
