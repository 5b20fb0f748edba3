"""Who competes in benchmarks/simulator.py, on how many cores and threads."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PEERS = ("fedjax", "pfl", "fluke", "fedlab", "flower")


@dataclass(frozen=True)
class Entry:
    name: str
    cores: int
    threads: int  # that torch may use in one process

    def __str__(self) -> str:
        return f"{self.name}, {self.cores} cores, {self.threads} threads"

    def command(self, settings: dict, peers: Path, prefix: str) -> list[str]:
        python = peers / self.name / "bin" / "python" if self.name in PEERS else Path(sys.executable)
        told = json.dumps({**settings, "cores": self.cores, "threads": self.threads})
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.cores]))
        script = HERE / "contestants" / f"on_{self.name}.py"
        return [*shlex.split(prefix), "taskset", "-c", cores, str(python), str(script), told]


def entries(model: str, peers: Path, only: list[str], cores: int | None) -> list[Entry]:
    installed = [name for name in PEERS if (peers / name / "bin" / "python").exists() and model != "own"]
    found = []
    for name in ["fedcrab", "bare_torch", *installed]:
        if only and name not in only:
            continue
        found += [Entry(name, 1, 1), Entry(name, 2, 1)]
        if name in ("bare_torch", "pfl", "fluke", "fedlab"):
            found.append(Entry(name, 2, 2))
    return [entry for entry in found if cores in (None, entry.cores)]


def environment(entry: Entry) -> dict[str, str]:
    """Only fedcrab needs to find this tree."""
    path = os.pathsep.join([str(HERE / "contestants"), str(HERE.parent / "src")])
    return {**os.environ, "PYTHONPATH": path} if entry.name == "fedcrab" else dict(os.environ)
