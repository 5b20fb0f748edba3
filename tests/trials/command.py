"""`fedcrab` called in this process: a new one that imports the simulator takes three seconds to start."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from fedcrab.cli import main


def fedcrab(*arguments: str, cwd: Path, given: str = "") -> CompletedProcess[str]:
    """The exit code and the output of `fedcrab ARGUMENTS` in a directory; `given` is its standard input."""
    command = ["fedcrab", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGINT)
    with (
        chdir(cwd),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.multiple(sys, argv=command, stdin=io.StringIO(given)),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGINT, handler)  # which a command that is done ignores
    return CompletedProcess(command, code, out.getvalue(), err.getvalue())


def sentences(said: str) -> list[str]:
    """The lines on standard error that are not a stage of the work."""
    return [line for line in said.splitlines() if not line.endswith(" …")]
