"""The command line: the commands in the order of the work, and what becomes of whatever goes wrong."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedcrab import __version__
from fedcrab.cli import (
    audit,
    bench,
    certify,
    demo,
    detect,
    evaluate,
    plan,
    recover,
    report,
    reproduce,
    seal,
    show,
    train,
    verify,
)
from fedcrab.cli.output import print_tables
from fedcrab.errors import FedcrabError
from fedcrab.extras import missing_package
from fedcrab.terminal import never_fail_to_print, tell_aside

app = typer.Typer(
    help="Recover a federated-learning model after poisoning.",
    epilog="Begin with: fedcrab demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
# What typer raises for a wrong command line: click's class, since typer 0.26 that of its own copy of click
CommandLineError: type[typer.BadParameter] = typer.BadParameter.__mro__[2]
LONGEST_PATH = 200  # characters of a path in a message
COMMANDS = (
    *(demo, train, show, detect, audit, plan, recover, evaluate),
    *(certify, verify, seal, report, bench, reproduce),
)
for command in COMMANDS:
    app.add_typer(command.app)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Recover a federated-learning model after poisoning."""
    if show_version:
        print_tables(f"fedcrab {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; whatever goes wrong is one sentence and an exit code."""
    never_fail_to_print()
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, prog_name="fedcrab", standalone_mode=False)
    except FedcrabError as error:
        return _fail(str(error), 2)
    except CommandLineError as error:
        return _fail(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        return _fail(_refused_by_the_system(error), 2)
    except ModuleNotFoundError as error:
        if needed := missing_package(error):
            return _fail(needed, 2)
        return _mistake(error)
    except Exception as error:
        return _mistake(error)
    if result == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail("interrupted; what was recorded is whole", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _mistake(error: Exception) -> int:
    if os.environ.get("FEDCRAB_DEBUG"):
        raise error
    kind = type(error).__name__
    return _fail(f"a mistake in fedcrab itself ({kind}: {error}); FEDCRAB_DEBUG=1 shows where", 1)


def _refused_by_the_system(error: OSError) -> str:
    """What the operating system refused, and where; a name may be of any length."""
    reason, place = error.strerror or str(error), str(error.filename or "")
    shown = f"{place[:LONGEST_PATH]}…" if len(place) > LONGEST_PATH else place
    return f"{shown}: {reason}" if place else reason


def _fail(sentence: str, code: int) -> int:
    tell_aside(f"fedcrab: {sentence}")
    return code
