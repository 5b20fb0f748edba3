"""What an engine stores about its run in the history's settings: JSON under the engine's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, ClassVar, Protocol, TypeVar

from fedcrab.history import History


class EngineMetadata(Protocol):
    """A dataclass of plain values; a field whose default is an empty table must be a table."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The type of each array of the model, by name."""
        ...


Metadata = TypeVar("Metadata", bound=EngineMetadata)


def to_notes(engine: str, metadata: EngineMetadata) -> str:
    """Return the metadata as JSON, for the notes of a new history."""
    return json.dumps({engine: asdict(metadata)})


def from_notes(engine: str, kind: type[Metadata], history: History) -> Metadata | None:
    """Return the metadata in the notes of a history; None if this engine did not record it.

    The notes are not trusted: the types must belong to the arrays of the history's model.
    """
    names = {f.name for f in history.charter.layout.fields}
    tables = ["dtypes", *(f.name for f in fields(kind) if f.default_factory not in (MISSING, tuple, list))]
    try:
        found = kind(**json.loads(history.charter.notes)[engine])
        sound = set(found.dtypes) == names and all(isinstance(getattr(found, t), dict) for t in tables)
    except (ValueError, TypeError, KeyError):
        return None
    return found if sound else None
