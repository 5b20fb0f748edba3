"""The demonstration: the whole story where the simulator is installed, recording and decision where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType

from fedcrab.demo.recording import record_and_plan

NEEDED = ("torch", "sklearn", "pydantic", "matplotlib")


class Demo(Protocol):
    """What a demonstration found."""

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        ...

    def tables(self) -> list[RenderableType]:
        """For people."""
        ...


@contextmanager
def run_demo(out: Path | None = None) -> Iterator[Demo]:
    """Run as much of the story as what is installed allows."""
    if all(find_spec(name) for name in NEEDED):
        from fedcrab.demo.story import tell

        with tell(out) as story:
            yield story
    else:
        with record_and_plan(out) as small:
            yield small
