"""The first hour of a new user: follows docs/tutorial.md exactly in a new environment, and times it.

usage: python benchmarks/first_hour.py [--requirement '.[simulate]'] [--constraint FILE] [--keep DIR]

Creates a virtual environment, installs fedcrab as the tutorial does from a checkout, runs every command of
the tutorial in an empty directory, and compares its output with the tutorial. The installation is timed
separately, because it depends on the network and on pip's cache. Ends with an error unless there are a
recovered model and a page.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
WANTED = 600  # seconds from `pip install` to the page
RESULTS = ("recovered/replay/model.safetensors", "incident.html")
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command of the tutorial as shell text, with the output that the tutorial shows."""
    for kind, text in BLOCK.findall(TUTORIAL.read_text()):
        if kind == "python":
            yield f"python - <<'END'\n{text}END", ""
        else:
            for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = session.partition("\n")
                yield command, shown


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines that the tutorial shows but the command did not print in this order."""
    lines = iter(printed.splitlines())
    wanted = [line.rstrip() for line in shown.splitlines() if line.strip() not in ("", "...")]
    return [line for line in wanted if not any(_same(line, other.rstrip()) for other in lines)]


def _same(line: str, printed: str) -> bool:
    return printed.startswith(line[:-3]) if line.endswith("...") else printed == line


def timed(command: str, place: Path, env: dict[str, str]) -> tuple[float, str]:
    """Run a command in a shell; return seconds and output."""
    began = time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{command}\nended with exit code {done.returncode}:\n{done.stdout}")
    return time.perf_counter() - began, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirement", default=f"{ROOT}[simulate]", help="what pip installs")
    parser.add_argument(
        "--constraint", default=str(ROOT / "constraints.txt"), help="pip's constraints, or ''"
    )
    parser.add_argument("--keep", type=Path, help="work in this directory and keep it")
    asked = parser.parse_args()
    place = asked.keep or Path(tempfile.mkdtemp(prefix="first-hour-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        follow(place, asked.requirement, asked.constraint)
    finally:
        if not asked.keep:
            shutil.rmtree(place)


def follow(place: Path, requirement: str, constraint: str) -> None:
    """Install and run; print a table."""
    python, bound = place / "fedcrab-env" / "bin" / "python", f"-c '{constraint}'" if constraint else ""
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    env = outside | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    print("| step | seconds |\n|---|--:|")
    made, _ = timed(f"'{sys.executable}' -m venv fedcrab-env", place, outside)
    installed, _ = timed(f"'{python}' -m pip install -q {bound} '{requirement}'", place, env)
    print(f"| a new environment | {made:.1f} |\n| pip install | {installed:.1f} |", flush=True)
    total = 0.0
    for command, shown in steps():
        seconds, printed = timed(command, place, env)
        if lost := missing(shown, printed):
            sys.exit(f"{command}\ndid not print {lost[0]!r}, which the tutorial shows:\n{printed}")
        total += seconds
        print(f"| `{command.splitlines()[0][:70]}` | {seconds:.1f} |", flush=True)
    if gone := [name for name in RESULTS if not (place / name).is_file()]:
        sys.exit(f"the tutorial did not make {gone[0]}")
    whole = made + installed + total
    print(
        f"| the commands together | {total:.1f} |\n| **from nothing to model and page** | **{whole:.1f}** |"
    )
    if whole > WANTED:
        sys.exit(f"{whole:.0f} s, more than {WANTED}")


if __name__ == "__main__":
    main()
