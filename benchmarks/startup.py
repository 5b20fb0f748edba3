"""How long a person waits: CPU seconds of every `--help`, and seconds to the first output of every command.

usage: python benchmarks/startup.py [--repeats 5] [--keep DIR]

Every command runs on its own terminal, with a history of the embedded digits (eight rounds) and a recovery of
it. It is stopped after its first output. The modules are compiled first, as pip does when it installs them.
Ends with an error if a median is above its bound.
"""

from __future__ import annotations

import argparse
import compileall
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import fedcrab
from fedcrab.cli import COMMANDS

HELP, IMPORT, FIRST = 0.4, 0.25, 1.0  # seconds
FEDCRAB = (sys.executable, "-m", "fedcrab")
DATA = "train digits --history history --set rounds=8 --set attack.fraction=0.2"
MARKED = "--malicious 1,2"
RUNS = {  # in the directory that `prepared` fills
    "demo": "demo --out shown",
    "train": "train digits --history other --set rounds=8",
    "show": "show history",
    "detect": "detect history",
    "audit": "audit history",
    "plan": f"plan history {MARKED}",
    "recover": f"recover history {MARKED} --out again",
    "evaluate": "evaluate recovered",
    "certify": "certify recovered/crab-hardened",
    "verify": "verify history",
    "seal": "seal history --key key.pem",
    "report": "report recovered -o page.html",
    "bench": "bench suite.toml --results cells",
    "reproduce": "reproduce --results cells",
}
SUITE = 'methods = ["crab-hardened"]\nset = {rounds = 4}\n'


def prepared(place: Path) -> None:
    """Create a history, a recovery, a key and a suite."""
    (place / "suite.toml").write_text(SUITE)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", place / "key.pem"], check=True)
    for line in (DATA, f"recover history {MARKED} --method crab-hardened --out recovered"):
        subprocess.run([*FEDCRAB, *line.split()], cwd=place, check=True, capture_output=True)


def cpu_seconds(command: tuple[str, ...], place: Path) -> float:
    """Return the user and system seconds of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_output(line: str, place: Path) -> tuple[float, float]:
    """Return seconds and CPU seconds until a command prints its first byte on a terminal; then stop it."""
    ours, theirs = pty.openpty()
    begun = time.perf_counter()
    command = [*FEDCRAB, *line.split()]
    running = subprocess.Popen(command, cwd=place, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    select.select([ours], [], [], 60)
    waited = time.perf_counter() - begun
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    worked = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    os.close(ours)
    return waited, worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="work in this directory and keep it")
    asked = parser.parse_args()
    place = asked.keep or Path(tempfile.mkdtemp(prefix="startup-"))
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "recovered").exists():
        prepared(place)
    compileall.compile_dir(Path(fedcrab.__file__).parent, quiet=1)
    slow = []

    def row(name: str, times: list[float], bound: float) -> None:
        print(f"| `{name}` | {median(times):.2f} | {max(times):.2f} | {bound} |", flush=True)
        if median(times) > bound:
            slow.append(name)

    print("| CPU seconds | median | most | bound |\n|---|--:|--:|--:|")
    many = range(asked.repeats)
    row(
        "import fedcrab", [cpu_seconds((sys.executable, "-c", "import fedcrab"), place) for _ in many], IMPORT
    )
    for name in ("", *COMMANDS):
        command = (*FEDCRAB, *name.split(), "--help")
        row(" ".join(("fedcrab", *command[3:])), [cpu_seconds(command, place) for _ in many], HELP)
    print("\n| to the first output | seconds, median | most | CPU seconds, median |\n|---|--:|--:|--:|")
    for name in COMMANDS:
        waited, worked = zip(*(first_output(RUNS[name], place) for _ in many), strict=True)
        print(
            f"| `fedcrab {name}` | {median(waited):.2f} | {max(waited):.2f} | {median(worked):.2f} |",
            flush=True,
        )
        slow += [name] * (median(waited) > FIRST)
    if slow:
        sys.exit(f"above the bound: {', '.join(slow)}")


if __name__ == "__main__":
    main()
