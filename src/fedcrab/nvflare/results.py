"""The results of sites, which are not trusted, and facts about a training on FLARE.

A site has the name by which the server gave it the task: in secure mode the common name of its certificate.
What a site says about itself (its peer context, its headers) is never used as an id.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants

from fedcrab.admission import MOST_EXAMPLES, bad_id, no_updates, printable, update_problem
from fedcrab.errors import HistoryError
from fedcrab.history import History
from fedcrab.recording.arrays import ArrayLayout, UpdateBuffers
from fedcrab.recording.engine_notes import from_notes, to_notes
from fedcrab.types import ClientId, Rejection, Updates, Vector

KEY = "nvflare"
CLIENT = "client_name"  # set by FedAvg's controller, whatever the site sent
SILENT = "did not answer"
MOST_WORDS = 300


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """Stored as JSON in the history's settings, so that a recovery asks as the training asked."""

    dtypes: Mapping[str, str]
    tensors: bool = False  # whether the server's arrays are torch tensors
    task: str = "train"
    rounds: int = 0  # as the sites were told
    weights: Mapping[ClientId, float] = field(default_factory=dict)  # FedAvg's aggregation_weights
    meta: Mapping[str, Any] = field(default_factory=dict)  # the metadata sent with each model

    def to_json(self) -> str:
        """Return the metadata as JSON."""
        return to_notes(KEY, self)

    @classmethod
    def of(cls, history: History) -> RunMetadata:
        """Return the metadata of a history; raises HistoryError if it was not recorded on FLARE."""
        found = from_notes(KEY, cls, history)
        if found is None:
            raise HistoryError(f"{history.path}: was not recorded on FLARE; recover it where it was recorded")
        return found

    def model(self, history: History) -> ArrayLayout:
        """Return the layout of the history's model in FLARE's parameters."""
        return ArrayLayout(history.charter.layout, self.dtypes, numbers, as_tensors if self.tensors else dict)


def numbers(value: Any) -> NDArray[np.generic]:
    """Return the numbers of a parameter; raises ValueError if there are none."""
    if hasattr(value, "detach"):  # a torch tensor, where the server was told to expect them
        value = value.detach().cpu().numpy()
    found = value if isinstance(value, np.ndarray | np.generic | int | float) else None
    array = np.asarray(found)
    if found is None or array.dtype.kind not in "fiub":
        raise ValueError(f"a parameter is {type(value).__name__[:40]} instead of an array of numbers")
    return array


def as_tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """Return named numpy arrays as torch tensors."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def handed_to(fl_ctx: FLContext) -> ClientId | None:
    """Return the site that the server gave this result's task to; None if the task has ended."""
    runner, task = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_ID)
    if runner.current_wf is None:
        return None
    handed = runner.current_wf.controller.communicator._client_task_map.get(task)
    return None if handed is None else str(handed.client.name)


def failed(fl_ctx: FLContext) -> tuple[ClientId, str] | None:
    """Return the site that has just sent a failure, and the failure; None if it sent a result."""
    result = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
    code = result.get_return_code() if isinstance(result, Shareable) else None
    site = None if code in (None, ReturnCode.OK) else handed_to(fl_ctx)
    return None if site is None else (site, f"failed: {code}"[:MOST_WORDS])


def unaccepted(fl_ctx: FLContext) -> tuple[ClientId, str] | None:
    """Return the site whose result FLARE has just rejected, and why; None if it accepted it.

    Call this at AFTER_CONTRIBUTION_ACCEPT.
    """
    if fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED):
        return None
    site = handed_to(fl_ctx)
    return failed(fl_ctx) or (None if site is None else (site, "sent no parameters"))


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answers that are used, and why the others are not."""

    updates: Updates
    rejected: tuple[Rejection, ...]
    losses: tuple[tuple[float, float], ...]  # reported, each with its number of steps


class ResultCollector:
    """The answers of one round, checked as they arrive, each in one row of a matrix."""

    def __init__(
        self,
        model: ArrayLayout,
        start: Vector,
        asked: list[ClientId],
        *,
        weights: Mapping[ClientId, float],
        rooms: UpdateBuffers | None = None,
    ) -> None:
        self.start, self._model, self._weights = start, model, weights
        self._rows = {client: row for row, client in enumerate(sorted(asked))}
        self._rooms = rooms or UpdateBuffers()
        self._room: NDArray[np.float32] | None = None  # allocated with the first answer
        self._accepted: dict[ClientId, tuple[float, float | None]] = {}  # the weight and the loss of each
        self._reasons: dict[ClientId, str] = {}

    @property
    def _matrix(self) -> NDArray[np.float32]:
        """One row per site that was asked."""
        if self._room is None:
            self._room = self._rooms.take(len(self._rows), self._model.layout.size)
        return self._room

    def reject(self, client: ClientId, reason: str) -> None:
        """Leave a site out of the round."""
        if client in self._rows:
            self._reasons.setdefault(client, reason)

    def forget_reasons(self) -> None:
        """Forget the reasons, as sites without a usable answer are asked again."""
        self._reasons.clear()

    def add(self, result: FLModel, loss_keys: tuple[str, ...] = ()) -> str | None:
        """Add an answer; return why it cannot be used, or None."""
        client = (result.meta or {}).get(CLIENT)
        if client not in self._rows:
            return f"{printable(client)} was not asked"
        if client in self._accepted:
            return "answered twice"
        steps = (result.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        reason = bad_id(client) or self._read(client, result, 1 if steps is None else steps)
        if reason:
            self.reject(client, reason)
            return reason
        weight = float(1 if steps is None else steps) * self._weights.get(client, 1.0)
        if not 0 < weight <= MOST_EXAMPLES:
            reason = f"the weight is {weight:g}"
            self.reject(client, reason)
            return reason
        self._accepted[client] = weight, loss_of(result.metrics, loss_keys)
        return None

    def _read(self, client: ClientId, result: FLModel, steps: object) -> str | None:
        row = self._matrix[self._rows[client]]
        try:
            self._fill(row, result)
        except Exception as error:  # whatever a hostile object does
            return (str(error) or type(error).__name__)[:MOST_WORDS]
        return update_problem(row, steps, self._model.layout.size)

    def _fill(self, row: Vector, result: FLModel) -> None:
        """Fill in the local model minus its start model."""
        if not isinstance(result.params, dict):
            raise ValueError("the parameters are not arrays by name")  # noqa: TRY004 - as any other bad answer
        if result.params_type == ParamsType.DIFF:
            self._model.flatten(result.params, row)
        else:
            self._model.difference(result.params, self.start, row)

    @property
    def used(self) -> list[ClientId]:
        """The sites with a usable answer."""
        return sorted(self._accepted)

    @property
    def open(self) -> list[ClientId]:
        """The sites without a usable answer."""
        return [client for client in self._rows if client not in self._accepted]

    @property
    def silent(self) -> list[ClientId]:
        """The sites that have not answered at all."""
        return [client for client in self.open if client not in self._reasons]

    def weight(self, client: ClientId) -> float:
        """Return the weight of a site whose answer is used."""
        return self._accepted[client][0]

    def admit(self) -> Admitted:
        """Return the usable answers, and why the others are rejected."""
        reasons = {c: self._reasons.get(c, SILENT) for c in self._rows if c not in self._accepted}
        rejected = tuple(Rejection(printable(c), reasons[c]) for c in sorted(reasons))
        losses = tuple((loss, weight) for weight, loss in self._accepted.values() if loss is not None)
        return Admitted(self._updates(self.used), rejected, losses)

    def _updates(self, clients: list[ClientId]) -> Updates:
        if not clients:
            return no_updates(self._model.layout.size)
        rows = [self._rows[client] for client in clients]
        matrix = self._matrix if len(rows) == len(self._rows) else self._matrix[rows]
        return Updates(tuple(clients), matrix, np.array([self._accepted[c][0] for c in clients]))


def loss_of(metrics: object, keys: tuple[str, ...]) -> float | None:
    """Return the reported loss, by the first of these names that the site uses."""
    found = next((metrics[k] for k in keys if k in metrics), None) if isinstance(metrics, dict) else None
    sound = isinstance(found, int | float | np.floating | np.integer) and not isinstance(found, bool)
    return float(found) if sound and abs(found) <= sys.float_info.max else None  # type: ignore[arg-type]
