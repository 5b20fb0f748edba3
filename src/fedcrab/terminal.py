"""What reaches a terminal. Paths, client ids and labels come from strangers: here, and only here, all text is
made printable, so that no escape sequence, no right-to-left override and no invalid character gets through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

REPLACEMENT = "?"


def printable(text: str, *, keep: str = "") -> str:
    """The text with everything replaced that is not a printable character; those of ``keep`` stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else REPLACEMENT for c in text)


def one_line(text: str) -> str:
    """The text as one printable line."""
    return printable(" ".join(text.split()))


class Printable(Console):
    """A console of rich whose own control codes reach the terminal, and nobody else's."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something to be shown, their text printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console for standard output or standard error."""
    return Printable(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def tell_aside(line: str) -> None:
    """One line on standard error, beside what a command prints."""
    sys.stderr.write(f"{one_line(line)}\n")


def never_fail_to_print() -> None:
    """Have standard output and error write what their encoding lacks as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
