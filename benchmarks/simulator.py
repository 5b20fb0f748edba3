"""How fast the simulator trains clients, beside a bare torch loop and other frameworks.

    sh benchmarks/peers.sh ~/peers                        # once; what does not install is left out
    python benchmarks/simulator.py --peers ~/peers        # MLP and CNN, one core and two
    python benchmarks/simulator.py --model own            # a user's own module, fedcrab against a bare loop

Every contestant trains the same 20 clients of 600 MNIST images (random ones without FEDCRAB_DATA) with the
same settings. All are started first and do a round that does not count; then they take turns, round by
round, so that each sees the same machine within seconds. `fedcrab is` is the median over the turns of what
fedcrab did in a turn over what the other did in the same turn, with its quartiles; in the last column both
are counted in seconds of processor time, on all cores together. A contestant whose model has not learned, or
that fails, is not counted and is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from turns import Contestant, start, take_turns, tell

HERE = Path(__file__).parent
PEERS = ("fedjax", "pfl", "fluke", "fedlab", "flower")
LEARNED = 0.3  # accuracy on the test set; chance is 0.1
Rates = dict["Entry", list[float]]
EPOCHS = {"mlp": 5, "cnn": 2, "own": 5}


@dataclass(frozen=True)
class Entry:
    name: str
    cores: int
    threads: int  # that torch may use in one process

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


def write_data(folder: Path) -> None:
    """20 clients of 600 examples, and 2,000 to test on."""
    if os.environ.get("FEDCRAB_DATA"):
        from fedcrab.simulate import load

        mnist = load("mnist")
        arrays = mnist.train_x[:12000], mnist.train_y[:12000], mnist.test_x[:2000], mnist.test_y[:2000]
    else:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, 14000)
        means = rng.random((10, 1, 28, 28), dtype=np.float32)
        x = (means[y] + rng.random((14000, 1, 28, 28), dtype=np.float32)) / 2
        arrays = x[:12000], y[:12000], x[12000:], y[12000:]
    x, y, test_x, test_y = arrays
    np.save(folder / "x.npy", x.reshape(20, 600, 1, 28, 28))
    np.save(folder / "y.npy", y.reshape(20, 600))
    np.save(folder / "test_x.npy", test_x)
    np.save(folder / "test_y.npy", test_y)


def environment(entry: Entry) -> dict[str, str]:
    path = os.pathsep.join([str(HERE / "contestants"), str(HERE.parent / "src")])
    return {**os.environ, "PYTHONPATH": path} if entry.name == "fedcrab" else dict(os.environ)


def compete(model: str, options: argparse.Namespace, folder: Path) -> tuple[Rates, Rates]:
    """Samples a second, and a second of a core's work, of every turn of each contestant."""
    settings = {
        "data": str(folder),
        "model": model,
        "epochs": options.epochs or EPOCHS[model],
        "rounds": options.turns + 1,
        "batch": 64,
        "learning_rate": 0.05,
    }
    started = []
    for entry in entries(model, options.peers, options.only, options.cores):
        command = entry.command(settings, options.peers, options.prefix)
        started.append(start(entry, command, environment(entry)))
        print(f"{model} {entry}: {started[-1].problem or 'ready'}", file=sys.stderr)
    take_turns(started, tell)
    counted = [each for each in started if learned(model, each)]
    return tuple({each.name: each.result[what] for each in counted} for what in ("rates", "core_rates"))


def learned(model: str, contestant: Contestant[Entry]) -> bool:
    """Whether it counts; says so if not."""
    problem = contestant.problem
    if contestant.result and contestant.result["accuracy"] < LEARNED:
        problem = f"has not learned: accuracy {contestant.result['accuracy']:.2f}"
    if problem:
        print(f"\n{model} {contestant.name}: {problem}", file=sys.stderr)
    return problem is None


def over(ours: list[float], theirs: list[float]) -> list[float]:
    """The quartiles of fedcrab over another, turn by turn."""
    return quantiles(
        [mine / other for mine, other in zip(ours, theirs, strict=True)], n=4, method="inclusive"
    )


def show(model: str, rates: Rates, core_rates: Rates) -> None:
    """One table: the median of each, fedcrab over it turn by turn, the best, and those of a core second."""
    ours = {entry.cores: entry for entry in rates if entry.name == "fedcrab"}
    print(
        f"\n{model:<12}{'cores':>6}{'threads':>8}{'samples/s':>12}{'fedcrab is (quartiles)':>26}"
        f"{'best':>12}{'fedcrab is':>12}{'/core second':>14}{'fedcrab is (quartiles)':>26}"
    )
    for entry in sorted(rates, key=lambda each: (each.cores, -median(rates[each]))):
        mine = ours.get(entry.cores, entry)
        wall, core = (over(found[mine], found[entry]) for found in (rates, core_rates))
        best = max(rates[mine]) / max(rates[entry])
        print(
            f"{entry.name:<12}{entry.cores:>6}{entry.threads:>8}{median(rates[entry]):>12,.0f}{told(wall):>26}"
            f"{max(rates[entry]):>12,.0f}{best:>10.2f} x{median(core_rates[entry]):>14,.0f}{told(core):>26}"
        )
    if {1, 2} <= ours.keys():
        one, two = rates[ours[1]], rates[ours[2]]
        print(f"fedcrab's second core: {told(over(two, one))}; {len(one)} turns")


def told(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"{middle:.2f} x ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path("no-peers"), help="folder made by peers.sh")
    parser.add_argument("--model", action="append", choices=list(EPOCHS), help="default: mlp and cnn")
    parser.add_argument("--only", action="append", default=[], help="this contestant; may be repeated")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="on so many only")
    parser.add_argument("--turns", type=int, default=30, help="rounds that count, of each contestant")
    parser.add_argument("--epochs", type=int, default=0, help="local epochs; default 5, for the CNN 2")
    parser.add_argument("--prefix", default="", help="a command to run each contestant under, such as flock")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for model in options.model or ["mlp", "cnn"]:
            show(model, *compete(model, options, Path(folder)))


if __name__ == "__main__":
    main()
