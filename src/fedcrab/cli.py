"""The command line: the commands in the order of the work, and what becomes of whatever goes wrong."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
import typer

from fedcrab import __version__
from fedcrab.commands import deciding, proving, recovering, studying, training
from fedcrab.commands.saying import say
from fedcrab.errors import FedcrabError

app = typer.Typer(
    help="Recover a federated-learning model after poisoning.",
    epilog="Begin with: fedcrab demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
for stage in (training, deciding, recovering, proving, studying):
    app.add_typer(stage.app)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Recover a federated-learning model after poisoning."""
    if show_version:
        say(f"fedcrab {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; whatever goes wrong is one sentence and an exit code."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, prog_name="fedcrab", standalone_mode=False)
    except (FedcrabError, click.ClickException) as error:
        sentence = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return _fail(sentence, 2)
    except (KeyboardInterrupt, click.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if os.environ.get("FEDCRAB_DEBUG"):
            raise
        kind = type(error).__name__
        return _fail(f"a mistake in fedcrab itself ({kind}: {error}); FEDCRAB_DEBUG=1 shows where", 1)
    if result == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail("interrupted; what was recorded is whole", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(sentence: str, code: int) -> int:
    plain = " ".join(ascii_safe(sentence).split())
    sys.stderr.write(f"fedcrab: {plain}\n")
    return code


def ascii_safe(text: str) -> str:
    """Without control characters: a name in a message may come from a stranger."""
    return "".join(c if c.isprintable() else " " for c in text)
