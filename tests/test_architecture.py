"""docs/architecture.md: each thing that a newcomer looks for is in one file, and the tree is as described."""

import re
from pathlib import Path

from test_imports import ORDER

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedcrab"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
LOOKED_FOR = {  # what a newcomer searches for, and a word that the file must have
    "time windows": "window",
    "KL selection": "divergence",
    "cosine selection": "cosine",
    "4-bit updates": "bits",
    "Gram matrix": "Gram",
    "hash chain": "sha256",
    "sensitivity": "sensitivity",
    "threshold": "threshold",
    "rollback decision": "rollback",
    "calibration": "calibrat",
    "corrected replay": "contact",
    "L-BFGS": "L-BFGS",
    "trigger": "Trigger",
    "Theorem 1": "theorem",
    "Flower strategy": "Strategy",
    "FLARE aggregator": "Aggregator",
    "page arithmetic": "function",
    "`plan` command": "plan",
    "cell cache": "cell",
    "configuration": "TOML",
    "ledger format": "SQLite",
    "recovery folder": "summary.json",
}


def section(title: str) -> str:
    return DOCUMENT.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> dict[str, str]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")][1:]
    return dict(line.strip("| ").split(" | ", 1) for line in lines)


def test_each_thing_is_in_the_file_that_the_document_names() -> None:
    where = rows("Where to look")
    for thing, word in LOOKED_FOR.items():
        path = SOURCE / where[thing].strip("`")
        assert path.is_file(), f"{thing}: {path} is not there"
        assert word.lower() in path.read_text().lower(), f"{path} says nothing of {word}"


def test_no_file_has_two_homes_and_every_row_is_a_file() -> None:
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
