"""How fast the simulator trains clients, beside a bare torch loop and other frameworks.

    sh benchmarks/peers.sh ~/peers                        # once; what does not install is left out
    python benchmarks/simulator.py --peers ~/peers        # MLP and CNN, one core and two
    python benchmarks/simulator.py --model own            # a user's own module, fedcrab against a bare loop

Every contestant trains the same 20 clients of 600 MNIST images (random ones without FEDCRAB_DATA) with the
same settings. Contestants take turns, `repeats` times; the first round of each run is left out and the best
of all others counts, which is the fairest on a machine that does other things too. Beside it stand the
median, and the best by the processor time of the contestant's processes, which other load hardly moves. A
contestant whose model has not learned, or that fails, is not counted and is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

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


def run(entry: Entry, settings: dict, peers: Path, prefix: str) -> dict | str:
    """The result of one run, or what went wrong."""
    path = os.pathsep.join([str(HERE / "contestants"), str(HERE.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": path} if entry.name == "fedcrab" else dict(os.environ)
    try:
        done = subprocess.run(
            entry.command(settings, peers, prefix),
            capture_output=True,
            text=True,
            timeout=900,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return "took more than 15 minutes"
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return (done.stderr.strip().splitlines() or ["no result"])[-1]
    result = json.loads(lines[-1].removeprefix("RESULT "))
    return result if result["accuracy"] >= LEARNED else f"has not learned: accuracy {result['accuracy']:.2f}"


def compete(model: str, options: argparse.Namespace, folder: Path) -> tuple[Rates, Rates]:
    """Samples a second, and a second of a core's work, of every round of each contestant."""
    settings = {
        "data": str(folder),
        "model": model,
        "epochs": options.epochs or EPOCHS[model],
        "rounds": options.rounds,
        "batch": 64,
        "learning_rate": 0.05,
    }
    rates: Rates = {}
    core_rates: Rates = {}
    for _ in range(options.repeats):
        for entry in entries(model, options.peers, options.only, options.cores):
            result = run(entry, settings, options.peers, options.prefix)
            if isinstance(result, str):
                print(f"{model} {entry}: {result}", file=sys.stderr)
            else:
                rates.setdefault(entry, []).extend(result["rates"])
                core_rates.setdefault(entry, []).extend(result["core_rates"])
                print(f"{model} {entry}: {max(result['rates']):,.0f}", file=sys.stderr)
    return rates, core_rates


def show(model: str, rates: Rates, core_rates: Rates) -> None:
    """One table: the best, the middle and the best of a core second of each, and fedcrab's over it."""
    best = {entry: max(values) for entry, values in rates.items()}
    middle = {entry: median(values) for entry, values in rates.items()}
    core = {entry: max(values) for entry, values in core_rates.items()}
    ours = {entry.cores: entry for entry in best if entry.name == "fedcrab"}
    titles = [("samples/s", best), ("median", middle), ("/core second", core)]
    print(
        f"\n{model:<12}{'cores':>6}{'threads':>8}",
        *(f"{t:>13}{'fedcrab is':>12}" for t, _ in titles),
        "spread",
    )
    for entry, rate in sorted(best.items(), key=lambda item: (item[0].cores, -item[1])):
        mine = ours.get(entry.cores, entry)
        columns = (f"{found[entry]:>13,.0f}{found[mine] / found[entry]:>10.2f} x" for _, found in titles)
        spread = 1 - min(rates[entry]) / rate
        print(f"{entry.name:<12}{entry.cores:>6}{entry.threads:>8}", *columns, f"{spread:>6.0%}")
    if {1, 2} <= ours.keys():
        one, two = ours[1], ours[2]
        by_median = middle[two] / middle[one]
        print(f"fedcrab's second core: {best[two] / best[one]:.2f} x, by the medians {by_median:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path("no-peers"), help="folder made by peers.sh")
    parser.add_argument("--model", action="append", choices=list(EPOCHS), help="default: mlp and cnn")
    parser.add_argument("--only", action="append", default=[], help="this contestant; may be repeated")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="on so many only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=0, help="local epochs; default 5, for the CNN 2")
    parser.add_argument("--prefix", default="", help="a command to run each contestant under, such as flock")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for model in options.model or ["mlp", "cnn"]:
            show(model, *compete(model, options, Path(folder)))


if __name__ == "__main__":
    main()
