"""The command line: the commands in the order in which they are used, and how errors end.

Each command is in the module of its name, which is imported only when the command is called.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated

import click
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from fedcrab import __version__, native
from fedcrab.errors import ConfigError, FedcrabError
from fedcrab.extras import missing_package
from fedcrab.terminal import never_fail_to_print, print_to_stderr

COMMANDS = {  # each with the first sentence of its help
    "demo": "Show a training under attack, and every way to recover from it, side by side.",
    "train": "Train simulated clients, attackers included, and record the training.",
    "show": "Show a history: rounds, windows, kept models, clients, bytes.",
    "detect": "Name the clients that seem malicious, with reasons; or report no sign of attack.",
    "audit": "Look for a trigger in the model: its class, its size, how certain it is, since when.",
    "plan": "Decide how far to roll back, and what each method would cost; nothing is run.",
    "recover": "Rebuild the model with the honest simulated clients.",
    "evaluate": "Measure the recovered models: accuracy, attack success, membership, trigger, cost.",
    "certify": "State what is proven about a recovery, under which assumptions; "
    "hashes bind it to history and models.",
    "verify": "Check every byte of a history against its hashes, "
    "or recompute a certificate from its history.",
    "seal": "Check a history and sign its head, so that nobody without the key can rewrite it unnoticed.",
    "report": "Write the incident page: one HTML file that needs no server and no network.",
    "bench": "Run a matrix of experiments; finished cells are not computed again.",
    "reproduce": "Reproduce the paper's tables and figures; "
    "show its numbers beside ours and which claims hold.",
}


LONGEST_METAVAR = 24  # characters of choices next to an option; longer lists are in its help
LINE_WITHIN_PARAGRAPH = re.compile(r"(?<!\n)\n(?!\n)")


def load_command(name: str) -> click.Command:
    """Return a command from the module of its name."""
    group = typer.main.get_group(import_module(f"fedcrab.cli.{name}").app)
    command = group.commands[name]
    command.help = LINE_WITHIN_PARAGRAPH.sub(" ", command.help or "")  # the terminal breaks lines itself
    for parameter in command.params:
        _list_choices(parameter)
    return command


def _list_choices(parameter: click.Parameter) -> None:
    """Move a long list of choices into an option's help, where no name is broken."""
    choices = getattr(parameter.type, "choices", ())
    if isinstance(parameter, TyperOption) and len("|".join(choices)) > LONGEST_METAVAR:
        parameter.metavar = (parameter.name or "").upper()
        parameter.help = f"{parameter.help} One of: {', '.join(choices)}."


class Commands(TyperGroup):
    """The commands by name; listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order in which the commands are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command for the list: its name and what it does."""
        does = COMMANDS.get(cmd_name)
        return None if does is None else TyperCommand(cmd_name, help=does, rich_markup_mode=None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to run."""
        if args and args[0] in COMMANDS:
            return args[0], load_command(args[0]), args[1:]
        if args and not args[0].startswith("-"):
            raise ConfigError(_no_such_command(args[0]))
        return super().resolve_command(ctx, args)


def _no_such_command(name: str) -> str:
    near = get_close_matches(name, COMMANDS, n=1)
    return f"no command {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
    )


app = typer.Typer(
    cls=Commands,
    help="Recover a federated-learning model after poisoning.",
    epilog="Start with: fedcrab demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
# Typer raises this for a wrong command line: click's class, or since typer 0.26 that of its copy of click
CommandLineError: type[typer.BadParameter] = typer.BadParameter.__mro__[2]
LONGEST_PATH = 200  # characters of a path in a message


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Recover a federated-learning model after poisoning."""
    if show_version:
        sys.stdout.write(f"fedcrab {__version__} (compiled kernels: {native.level()})\n")
        raise typer.Exit


def main() -> None:
    """Run a command; any error is one sentence and an exit code."""
    never_fail_to_print()
    code = _run(sys.argv[1:])
    with suppress(ValueError):  # raised outside the main thread, which alone handles signals
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C while Python exits would print a traceback
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, prog_name="fedcrab", standalone_mode=False)
    except FedcrabError as error:
        return _fail(str(error), 2)
    except CommandLineError as error:
        return _fail(_wrong_command_line(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except SystemExit as end:  # typer raises this for a closed pipe that rich did not notice
        if isinstance(end.__context__, BrokenPipeError):
            return 0
        raise
    except OSError as error:
        return _fail(_refused_by_the_system(error), 2)
    except ImportError as error:
        if needed := missing_package(error):
            return _fail(needed, 2)
        return _internal_error(error)
    except Exception as error:
        return _internal_error(error)
    if result == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail("interrupted; everything recorded so far is complete", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _wrong_command_line(error: typer.BadParameter) -> str:
    """Return what is wrong and where to look; for an unknown option or choice, click lists the known ones."""
    message, context = error.format_message(), error.ctx
    if context is None or not message.startswith("Missing"):
        return message
    return f"{message.rstrip('.')}; '{context.command_path} --help' has an example"


def _internal_error(error: Exception) -> int:
    if os.environ.get("FEDCRAB_DEBUG"):
        raise error
    kind = type(error).__name__
    return _fail(f"an error in fedcrab itself ({kind}: {error}); FEDCRAB_DEBUG=1 shows where", 1)


def _refused_by_the_system(error: OSError) -> str:
    """Return what the operating system refused, and for which path; a long path is cut."""
    reason, place = error.strerror or str(error), str(error.filename or "")
    shown = f"{place[:LONGEST_PATH]}…" if len(place) > LONGEST_PATH else place
    return f"{shown}: {reason}" if place else reason


def _fail(sentence: str, code: int) -> int:
    print_to_stderr(f"fedcrab: {sentence}")
    return code
