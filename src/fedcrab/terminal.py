"""Text for the terminal. Paths, client ids and labels are not trusted, so all text is made printable here.

Escape sequences, right-to-left overrides and invalid characters never reach the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

REPLACEMENT = "?"


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with ``?`` for every character that is neither printable nor in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else REPLACEMENT for c in text)


def one_line(text: str) -> str:
    """Return the text as one printable line."""
    return printable(" ".join(text.split()))


class Printable(Console):
    """A rich console that makes text printable. Only rich's own control codes reach the terminal."""

    def on_broken_pipe(self) -> None:
        """Raise the error: a closed pipe is for the command to handle, as it is when it prints JSON."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to show, with printable text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for standard output or standard error."""
    return Printable(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_to_stderr(line: str) -> None:
    """Print one line to standard error, so that it stays out of a command's output."""
    sys.stderr.write(f"{one_line(line)}\n")


def never_fail_to_print() -> None:
    """Make standard output and error escape characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
