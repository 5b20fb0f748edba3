"""What is imported when: a command that is slow to start is slow a hundred times a day."""

import json
import subprocess
import sys

import pytest

import fedcrab

HEAVY = {"torch", "pandas", "scipy", "sklearn", "matplotlib", "pydantic", "flwr", "pooch"}
SHOWN = "import sys, json; sys.stdout.write(chr(10) + json.dumps(sorted(sys.modules)))"


def imported(program: str) -> set[str]:
    """The modules that a program has imported when it ends."""
    command = [sys.executable, "-c", f"{program}\n{SHOWN}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_fedcrab_imports_hardly_anything() -> None:
    assert not imported("import fedcrab") & (HEAVY | {"numpy", "rich", "typer", "sqlite3"})


def test_every_public_name_is_found_without_heavy_packages() -> None:
    found = imported("import fedcrab\nfor name in fedcrab.__all__: getattr(fedcrab, name)")
    assert not found & HEAVY
    assert "numpy" in found


COMMANDS = """
import sys
from fedcrab.cli import main
for arguments in {commands!r}:
    sys.argv = ["fedcrab", *arguments.split()]
    try:
        main()
    except SystemExit:
        if {heavy!r} & set(sys.modules):
            raise RuntimeError(arguments)
"""
HELP = ("--help", "--version", "dance", "demo --help", "train --help", "reproduce --help", "recover --help")
WRONG = (
    "train nowhere.toml --history h",
    "train digits --history h --set attack.name=shout",
    "train digits --history h --set data.name=faces",
    "train digits --history h --workers -1",
    "train digits --history h --resume",
    "recover nowhere --malicious 1 --out o",
    "recover nowhere --malicious 1 --out o --method prayer",
    "evaluate nowhere",
    "reproduce --scale huge",
    "reproduce fame",
    "bench nowhere.toml",
)


def test_help_imports_nothing_heavy() -> None:
    imported(COMMANDS.format(commands=HELP, heavy=HEAVY))
    assert "numpy" not in imported(COMMANDS.format(commands=HELP[:3], heavy=HEAVY))


def test_arguments_are_checked_before_torch_is_loaded() -> None:
    imported(COMMANDS.format(commands=WRONG, heavy={"torch", "scipy", "sklearn", "matplotlib"}))


def test_choices_are_those_that_there_are() -> None:
    """The command lists them without importing what they name."""
    pytest.importorskip("pydantic")
    from fedcrab.cli import reproduce
    from fedcrab.reproduce.items import ITEMS, SCALES

    assert (tuple(ITEMS), tuple(SCALES)) == (reproduce.ITEMS, reproduce.SCALES)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fedcrab' has no attribute 'undo'"):
        fedcrab.undo  # noqa: B018
    assert set(fedcrab.__all__) <= set(dir(fedcrab))
