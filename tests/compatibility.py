"""A fast part of the tests on each Python found here, with the newest packages allowed and with the oldest.

usage: python tests/compatibility.py [ROW ...]        (as in python3.11-oldest; `make compatibility` runs all)

None of these tests needs torch, whose usual builds bring gigabytes for graphics cards: `make test` tests the
simulator, with the version in constraints.txt.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venvs" / "compatibility"
PYTHONS = ("python3.11", "python3.12", "python3.13")
TOOLS = ("hypothesis", "pytest", "pytest-xdist")
HEAVY = ("torch",)
TESTS = (
    *("aggregate", "detect", "flower/test_arrays.py", "flower/test_recorder.py", "history", "recover"),
    *("suite/test_statistics.py", "test_cli.py", "test_lbfgs.py", "rollback/test_decision.py"),
)


def declared() -> dict[str, list[str]]:
    """What pyproject.toml asks for, by extra; the package's own dependencies are under the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [r for r in asked if not r.startswith(HEAVY)] for extra, asked in table.items()}


def oldest(requirement: str) -> str:
    """The lower bound of a requirement as its only version."""
    name, least = re.match(r"([\w\[\]-]+)>=([\d.]+)", requirement).groups()
    return f"{name}=={least}"


def packages(age: str) -> list[str]:
    """Flower asks for newer packages than our oldest, and for an older typer than the newest."""
    asked = declared()
    ours = [*asked[""], *asked["simulate"], *asked["sign"]]
    versions = {
        "newest-with-flower": [*ours, *asked["flower"]],
        "newest": ours,
        "oldest": [oldest(requirement) for requirement in ours],
    }
    return [*versions[age], *TOOLS]


def interpreter(name: str) -> str | None:
    """A Python of this version that starts; a name on the PATH may be a placeholder."""
    others = map(str, Path.home().glob(f".pyenv/versions/*/bin/{name}"))
    for path in filter(None, [shutil.which(name), *others]):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def tried(name: str, age: str) -> bool:
    """Whether the tests pass with this Python and packages of this age."""
    path = interpreter(name)
    if path is None:
        print(f"{name}, {age}: not tried, there is no {name} here", flush=True)
        return True
    place = PLACE / f"{name}-{age}"
    installed(path, place, packages(age))
    chosen = [f"tests/{test}" for test in TESTS if "flower" in age or not test.startswith("flower")]
    done = subprocess.run([place / "bin" / "pytest", "-q", "-n", "2", *chosen], cwd=ROOT, check=False)
    print(f"{name}, {age}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode == 0


def installed(python: str, place: Path, asked: list[str]) -> None:
    """A new environment with these packages and fedcrab; what it got is printed."""
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, "-m", "venv", place], check=True)
    install = [place / "bin" / "pip", "install", "-q"]
    subprocess.run([*install, *asked], check=True)
    subprocess.run([*install, "--no-deps", "-e", ROOT], check=True)
    got = subprocess.run([place / "bin" / "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    if "nvidia" in got:
        raise SystemExit(f"{place} has packages for graphics cards; nothing here should ask for them")
    told = ("numpy", "typer", "click", "rich", "safetensors", "pydantic", "scipy", "scikit-learn", "flwr")
    print(place.name, *(line for line in got.splitlines() if line.split("==")[0] in told), flush=True)


if __name__ == "__main__":
    rows = [(name, "newest-with-flower") for name in PYTHONS]
    rows += [(PYTHONS[-1], "newest"), (PYTHONS[0], "oldest")]
    asked = sys.argv[1:] or ["-".join(row) for row in rows]
    if unknown := {*asked} - {"-".join(row) for row in rows}:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join('-'.join(row) for row in rows)}")
    results = [tried(*row) for row in rows if "-".join(row) in asked]
    sys.exit(0 if all(results) else 1)
