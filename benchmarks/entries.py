"""The programs that benchmarks/simulator.py compares, with their cores, processes and threads."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PEERS = ("fedjax", "pfl", "fluke", "fedlab", "flower")
BY_HAND = ("lean_jax", "lean_torch")  # programs tuned by hand, without any framework
THREADED = ("bare_torch", "pfl", "fluke", "fedlab")  # may be faster with threads inside a process
ENVIRONMENTS = {"lean_jax": "jax"} | {name: name for name in PEERS}  # in the folder made by peers.sh


@dataclass(frozen=True)
class Entry:
    """A program and its setting. ``processes`` is the number that it distributes its clients over."""

    name: str
    cores: int
    threads: int = 1  # in each process
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {self.cores} cores, {self.setting}"

    @property
    def setting(self) -> str:
        """How it uses its cores."""
        if self.processes > 1:
            return f"{self.processes} processes"
        return f"{self.threads} thread{'s' * (self.threads > 1)}"

    def command(self, settings: dict, peers: Path, prefix: str) -> list[str]:
        told = {"cores": self.cores, "threads": self.threads, "processes": self.processes}
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.cores]))
        script = HERE / "contestants" / f"on_{self.name}.py"
        program = [str(python_of(self.name, peers)), str(script), json.dumps({**settings, **told})]
        return [*shlex.split(prefix), "taskset", "-c", cores, *program]


def python_of(name: str, peers: Path) -> Path:
    """Return the interpreter of the environment that a program needs."""
    return peers / ENVIRONMENTS[name] / "bin" / "python" if name in ENVIRONMENTS else Path(sys.executable)


def entries(model: str, peers: Path, only: list[str], cores: int | None) -> list[Entry]:
    """Return the programs that are installed, know the model and are wanted, each in all useful settings."""
    known = ["fedcrab", "bare_torch", *(() if model == "own" else (*BY_HAND, *PEERS))]
    if model == "cnn":
        known.remove("lean_jax")  # XLA takes a minute per round for convolutions in a scan on a CPU
    found = []
    for name in known:
        if (only and name not in only) or not python_of(name, peers).exists():
            continue
        found += [Entry(name, 1), Entry(name, 2, processes=2 if name in BY_HAND else 1)]
        if name in THREADED:
            found.append(Entry(name, 2, threads=2))
    return [entry for entry in found if cores in (None, entry.cores)]


def environment(entry: Entry) -> dict[str, str]:
    """Return the variables of a process: only fedcrab must find this tree, and XLA's threads are limited."""
    found = dict(os.environ)
    if entry.name == "fedcrab":
        found["PYTHONPATH"] = os.pathsep.join([str(HERE / "contestants"), str(HERE.parent / "src")])
    if entry.name == "lean_jax" and entry.threads == 1:
        found |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}
    return found
