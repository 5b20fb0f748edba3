"""What a recovery leaves on disk, and reading it again.

OUT/METHOD/model.safetensors    the recovered model, its tensors named
OUT/METHOD/summary.json         what was asked, what came out, what it cost
OUT/METHOD/steps/               each step as it was done
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcrab.certify.folder import MODEL, SUMMARY
from fedcrab.errors import DamagedError, HistoryError
from fedcrab.experiment.recovery import Outcome
from fedcrab.history import History
from fedcrab.history.disk import explained, read_regular, sync_directory, write_named
from fedcrab.history.snapshots import is_hash, read_model, write_model
from fedcrab.types import Vector


@dataclass(frozen=True)
class Result:
    """A recovered model read back, with its summary."""

    method: str
    model: Vector = field(repr=False)
    summary: dict[str, Any] = field(repr=False)


def write_result(directory: Path, history: History, outcome: Outcome, row: dict[str, Any]) -> None:
    """Leave a model and its summary, whole."""
    with explained(f"{directory}: the result is not written"):
        digest = write_model(directory / MODEL, history.charter.layout, outcome.model)
        summary = {
            **row,
            "history": str(history.path.absolute()),
            "history_head": history.contents.head,
            "malicious": list(outcome.plan.malicious) if outcome.plan else [],
            "model_sha256": digest,
            "plan": outcome.plan.to_table() if outcome.plan else None,
        }
        write_named(directory / SUMMARY, [json.dumps(summary, indent=1).encode()])
        sync_directory(directory)


def read_results(out: Path) -> tuple[History, list[Result]]:
    """The results under a directory, its own or those of its folders, and the history they came from."""
    places = [out, *sorted(p for p in out.iterdir() if p.is_dir())] if out.is_dir() else []
    summaries = {p: _summary(p / SUMMARY) for p in places if (p / SUMMARY).is_file()}
    if not summaries:
        raise HistoryError(f"{out}: no recovery here; 'fedcrab recover' writes one")
    paths = {summary["history"] for summary in summaries.values()}
    if len(paths) > 1:
        raise HistoryError(f"{out}: recoveries of different histories ({', '.join(sorted(paths))})")
    history = History.open(paths.pop())
    return history, [_read(place, summary, history) for place, summary in summaries.items()]


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(read_regular(path, limit=2**26))
        texts = [summary[name] for name in ("method", "history", "history_head")]
        if not all(isinstance(text, str) for text in texts) or not is_hash(summary["model_sha256"]):
            raise DamagedError(f"{path}: not the summary of a recovery")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path}: not the summary of a recovery") from error
    return dict(summary)


def _read(place: Path, summary: dict[str, Any], history: History) -> Result:
    if summary["history_head"] != history.contents.head:
        raise DamagedError(f"{place}: recovered from another state of {history.path}")
    model = read_model(place / MODEL, summary["model_sha256"], history.charter.layout)
    return Result(summary["method"], model, summary)
