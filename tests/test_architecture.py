"""docs/architecture.md: each thing that a newcomer looks for is in one file, and the tree is as described."""

import re
from pathlib import Path

from test_imports import ORDER

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedcrab"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
LOOKED_FOR = {  # what a newcomer searches for, and what the file must define
    "time windows": "def closes",
    "KL selection": "def choose",
    "cosine selection": "def select",
    "4-bit updates": "class Packing",
    "Gram matrix": "def measure",
    "hash chain": "def link",
    "ledger format": "class Ledger",
    "snapshots on S3": "class Uploader",
    "server's optimiser state": "def parse_state",
    "sensitivity": "class Influence",
    "threshold": "def plan",
    "rollback decision": "class Plan",
    "onset of an attack": "def onset",
    "calibration": "def calibrate",
    "corrected replay": "def replay",
    "L-BFGS": "def hessian_product",
    "certified replay": "def certified_replay",
    "bound of a replay": "def replay_bound",
    "recovery folder": "class RecoveryFolder",
    "trigger": "class Trigger",
    "trigger inversion": "def invert",
    "who taught a misbehaviour": "def attribute",
    "saved audit": "def write_audit",
    "Theorem 1": "def theorem_terms",
    "certificate": "def certify",
    "Flower strategy": "class Recorder",
    "Flower's strategy in a recovery": "class StrategyRule",
    "what was sent to clients": "class SentMessages",
    "FLARE aggregator": "class Recorder",
    "page arithmetic": "function influence",
    "`plan` command": "def plan_command",
    "cell cache": "class CellCache",
    "configuration": "class Config",
    "compiled kernels": "def library",
}


def section(title: str) -> str:
    return DOCUMENT.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> dict[str, str]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")][1:]
    return dict(line.strip("| ").split(" | ", 1) for line in lines)


def test_each_thing_is_in_the_file_that_the_document_names() -> None:
    where = rows("Where to look")
    assert LOOKED_FOR.keys() <= where.keys()
    for thing, definition in LOOKED_FOR.items():
        path = SOURCE / where[thing].strip("`")
        assert path.is_file(), f"{thing}: {path} is not there"
        assert re.search(rf"\b{definition}\b", path.read_text()), f"{path} does not define {definition}"


def test_every_row_is_a_file() -> None:
    for thing, path in rows("Where to look").items():
        assert (SOURCE / path.strip("`")).is_file(), thing


def test_the_tree_is_the_order_of_imports() -> None:
    named = [name for cell in rows("The tree") for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)]
    assert named == [part for part in reversed(ORDER) if part in named]
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert parts - {"__init__", "__main__"} == set(named)


def test_the_modules_that_the_flows_name_are_there() -> None:
    for path in re.findall(r"`(\w+(?:/\w+)*\.py)`", DOCUMENT):
        assert (SOURCE / path).is_file() or (ROOT / path).is_file(), path
