"""What a user of ``mypy --strict`` sees: the documents' programs, and every public name."""

import subprocess
import sys

import pytest

import fedcrab
from test_documents import ROOT, blocks

DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "own-loop.md"]
CONFIG = """
[mypy]
strict = true
mypy_path = {source}
[mypy-torch.*]
follow_imports = skip
[mypy-sklearn.*]
ignore_missing_imports = true
"""  # torch is typed, and takes mypy a minute
WRONG = """
import fedcrab
fedcrab.recover("history", 3, malicious={"3"})
fedcrab.recover.replay(3, 4)
fedcrab.report(3)
fedcrab.evaluate({}, 3)
fedcrab.certify(3)
fedcrab.detect.ledger(3)
"""
RIGHT = """
import fedcrab
from collections.abc import Iterator
from pathlib import Path

def respond(history: fedcrab.History, fleet: fedcrab.Fleet) -> fedcrab.Recovery:
    plan: fedcrab.Plan = fedcrab.plan(history, fedcrab.detect.ledger(history).suspects)
    steps: Iterator[fedcrab.Step] = fedcrab.recover.replay(plan, fleet, aggregate=fedcrab.aggregate.median())
    certificate: fedcrab.Certificate = fedcrab.certify(plan, list(steps)[-1].model)
    recovery = fedcrab.recover(history, fleet, malicious={"3"}, out=Path("recovered"))
    page: Path = fedcrab.report(recovery, "incident.html")
    return recovery
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors of each program, from one run."""
    place = tmp_path_factory.mktemp("users")
    programs = {d.stem.replace("-", "_"): "\n".join(blocks(d, "python")) for d in DOCUMENTS}
    programs |= {"wrong": WRONG, "right": RIGHT, "names": names()}
    for name, program in programs.items():
        (place / f"{name}.py").write_text(program)
    (place / "mypy.ini").write_text(CONFIG.format(source=ROOT / "src"))
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "."]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    return {name: [line for line in found if line.startswith(f"{name}.py:")] for name in programs} | {
        "elsewhere": [line for line in found if line.partition(".py:")[0] not in programs]
    }


def names() -> str:
    """A program with every public name of the package and of ``fedcrab.recover``."""
    lines = ["import fedcrab"]
    lines += [f"fedcrab.{name}" for name in fedcrab.__all__]
    lines += [f"fedcrab.recover.{name}" for name in fedcrab.recover.__all__]
    return "\n".join(lines)


@pytest.mark.parametrize("program", ["README", "tutorial", "own_loop", "right", "names", "elsewhere"])
def test_mypy_finds_nothing(errors: dict[str, list[str]], program: str) -> None:
    assert errors[program] == []


def test_mypy_finds_each_wrong_call(errors: dict[str, list[str]]) -> None:
    assert {int(line.split(":")[1]) for line in errors["wrong"]} == set(range(3, 9))
