"""What train, recover, evaluate, certify and bench print: within the terminal, and what to do next."""

import re
import shlex
from pathlib import Path

import pytest
from rich.cells import cell_len

from fedcrab.evaluate import above_chance
from fedcrab.files import hash_regular
from fedcrab.report.tables import CHANCE, methods_table, misr_note
from trials.command import fedcrab

pytestmark = pytest.mark.long(15)
TRAIN = ("train", "digits", "--history", "h", "--workers", "0", "--set", "rounds=3")
FEW = ("--set", "clients.count=6", "--set", "history.name=everything")
IN_ONE_PIECE = ("Next: ", "Deploy: ", "sha256: ")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("printed")


def printed(place: Path, width: int, *arguments: str) -> list[str]:
    """The lines of a command at this width; all of them fit."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        done = fedcrab(*arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if cell_len(line) > width and not line.startswith(IN_ONE_PIECE)] == []
    return lines


@pytest.fixture(scope="module")
def attackers(place: Path) -> str:
    """Trains, and gives the attackers."""
    lines = printed(place, 80, *TRAIN, *FEW)
    assert lines[-1] == "Next: fedcrab detect h"
    return lines[-2].rpartition(": ")[2].replace(" ", "")


@pytest.mark.parametrize("width", [80, 120])
def test_recover_evaluate_and_certify(width: int, place: Path, attackers: str) -> None:
    asked = ("recover", "h", "--malicious", attackers, "--method", "all", "--workers", "0", "--out", "my out")
    lines = printed(place, width, *asked)
    told = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}
    assert told["sha256"] == hash_regular(place / told["Deploy"])
    assert told["Next"] == "fedcrab evaluate 'my out'"
    methods = {folder.name for folder in (place / "my out").iterdir() if folder.is_dir()}
    assert {"replay", "crab-hardened", "retrain"} <= methods
    assert all(any(name in line.replace("│", " ").split() for line in lines) for name in methods)
    more = ("--no-audit", "--workers", "0")
    judged = printed(place, width, *shlex.split(told["Next"])[1:], *more)
    assert judged[-1] == "Next: fedcrab report 'my out' -o incident.html"
    assert any("Left out to fit 80" in line for line in judged) == (width == 80)
    sure = printed(place, width, "certify", "my out/crab-hardened")
    assert sure[0].startswith("Proved: ")
    assert "formula" not in " ".join(sure[:-2])
    assert sure[-1] == "Next: fedcrab verify 'my out/crab-hardened/certificate.json'"
    assert len(printed(place, width, "certify", "my out/crab-hardened", "--terms")) > len(sure) + 20


@pytest.mark.parametrize("width", [80, 120])
def test_bench(width: int, place: Path) -> None:
    (place / "suite.toml").write_text(
        'methods = ["crab-paper", "crab-hardened beta=0.1", "crab-hardened beta=0.2"]\n'
        "seeds = [0]\nset = {rounds = 2, clients.count = 4}\n"
    )
    lines = printed(place, width, "bench", "suite.toml", "--results", "found", "--jobs", "1")
    shown = [re.split(r" {2,}|│", line.strip("│ "))[0].strip() for line in lines]
    assert {"crab-paper", "crab-hardened beta=0.1", "crab-hardened beta=0.2", "retrain"} <= set(shown)
    assert lines[-1] == "Next: less found/suite/table.md"


def test_membership_no_better_than_guessing_is_no_figure() -> None:
    """Recall 100% means nothing where every other example is taken for a member too."""
    assert above_chance(0.6, 1000)
    assert not above_chance(0.52, 1000)
    assert not above_chance(1.0, 1)
    row = {"method": "retrain", "ta": 0.9, "asr": 0.0, "rollback_round": None, "rounds": 1}
    row |= {"client_rounds": 1, "seconds": 1.0, "bytes": 0, "distance": None, "misr": 1.0}
    cells = [
        methods_table([row | {"misr_beyond_chance": told}]).rows[0][3].plain for told in (False, True, None)
    ]
    assert cells == [CHANCE, "100.0%", "100.0%"]
    assert misr_note([row])
    assert not misr_note([row | {"misr": None}])
