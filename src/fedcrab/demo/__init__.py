"""The demonstration: the whole story where the simulator is installed, recording and decision where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType

from fedcrab.demo.small import record_and_plan
from fedcrab.extras import has_extra


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
    if has_extra("simulate"):
        from fedcrab.demo.full import run_full_demo

        with run_full_demo(out) as story:
            yield story
    else:
        with record_and_plan(out) as small:
            yield small
