"""A fast part of the tests on each Python found here, with the newest packages allowed and with the oldest.

Run by `make compatibility`. Nothing of it needs torch, whose usual builds bring gigabytes for graphics cards:
the simulator is tested by `make test`, on the version in constraints.txt.
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
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([path, "-m", "venv", place], check=True)
    install = [place / "bin" / "pip", "install", "-q"]
    subprocess.run([*install, *packages(age)], check=True)
    subprocess.run([*install, "--no-deps", "-e", ROOT], check=True)
    if "nvidia" in subprocess.run([place / "bin" / "pip", "list"], capture_output=True, text=True).stdout:
        raise SystemExit(f"{place} has got packages of a graphics card; nothing here should ask for them")
    chosen = [f"tests/{test}" for test in TESTS if "flower" in age or not test.startswith("flower")]
    done = subprocess.run([place / "bin" / "pytest", "-q", "-n", "2", *chosen], cwd=ROOT, check=False)
    print(f"{name}, {age}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    rows = [(name, "newest-with-flower") for name in PYTHONS]
    rows += [(PYTHONS[-1], "newest"), (PYTHONS[0], "oldest")]
    results = [tried(*row) for row in rows]
    sys.exit(0 if all(results) else 1)
