"""How fast the simulator trains clients, compared with other frameworks and with programs written by hand.

    sh benchmarks/peers.sh ~/peers                        # once; what cannot be installed is left out
    python benchmarks/simulator.py --peers ~/peers        # MLP and CNN, one core and two
    python benchmarks/simulator.py --peers ~/peers --model mlp --epochs 1 --clients 100
    python benchmarks/simulator.py --model own            # a user's own module, fedcrab against a bare loop

Every program trains the same 20 clients with 600 MNIST images each (random ones without FEDCRAB_DATA) and the
same settings. `lean_jax` and `lean_torch` are not frameworks but a few dozen lines each, tuned for this
comparison. With more than 100 clients, images are drawn repeatedly; with `--dense` no pixel is 0.

All programs are started first and run a round that does not count. Then they take turns, round by round, so
that all run under the same conditions within seconds. `fedcrab is` is fedcrab's rate divided by the other's
in the same turn on as many cores: the median over the turns, with quartiles. The last column is the same in
seconds of processor time on all cores together. `first` is the time in seconds from the start of the process
to the end of the first round. A second table shows each program at its best setting. A program that fails, or
whose model has not learned, is not counted, and is named.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from entries import entries, environment
from ratios import Rates, show, show_best
from turns import Contestant, start, take_turns, tell

LEARNED = 0.3  # accuracy on the test set; chance is 0.1
EPOCHS = {"mlp": 5, "cnn": 2, "own": 5}
TESTED = 2000


def write_data(folder: Path, clients: int, examples: int, *, dense: bool) -> None:
    """Write the clients' examples, and some test examples."""
    x, y, test_x, test_y = _mnist(clients * examples) if os.environ.get("FEDCRAB_DATA") else _made_up()
    if dense:
        x, test_x = (x + np.float32(0.1)) / np.float32(1.1), (test_x + np.float32(0.1)) / np.float32(1.1)
    drawn = np.arange(clients * examples) % len(y)
    if clients * examples > len(y):
        drawn = np.random.default_rng(1).integers(0, len(y), clients * examples)
    np.save(folder / "x.npy", x[drawn].reshape(clients, examples, 1, 28, 28))
    np.save(folder / "y.npy", y[drawn].reshape(clients, examples))
    np.save(folder / "test_x.npy", test_x)
    np.save(folder / "test_y.npy", test_y)


def _mnist(wanted: int) -> tuple[np.ndarray, ...]:
    from fedcrab.simulate import load_dataset

    mnist = load_dataset("mnist")
    return mnist.train_x[:wanted], mnist.train_y[:wanted], mnist.test_x[:TESTED], mnist.test_y[:TESTED]


def _made_up() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 12000 + TESTED)
    means = rng.random((10, 1, 28, 28), dtype=np.float32)
    x = (means[y] + rng.random((len(y), 1, 28, 28), dtype=np.float32)) / 2
    return x[:12000], y[:12000], x[12000:], y[12000:]


def compete(model: str, options: argparse.Namespace, folder: Path) -> tuple[Rates, Rates, dict]:
    """Return the samples per second and per core second of every turn, and the seconds of the first round."""
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
    rates, core_rates, first = (
        {each.name: each.result[what] for each in counted} for what in ("rates", "core_rates", "first")
    )
    return rates, core_rates, first


def learned(model: str, contestant: Contestant[object]) -> bool:
    """Return whether a program counts; print the reason if it does not."""
    problem = contestant.problem
    if contestant.result and contestant.result["accuracy"] < LEARNED:
        problem = f"has not learned: accuracy {contestant.result['accuracy']:.2f}"
    if problem:
        print(f"\n{model} {contestant.name}: {problem}", file=sys.stderr)
    return problem is None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path("no-peers"), help="folder made by peers.sh")
    parser.add_argument("--model", action="append", choices=list(EPOCHS), help="default: mlp and cnn")
    parser.add_argument("--only", action="append", default=[], help="only this program; can be repeated")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="only on this number of cores")
    parser.add_argument("--turns", type=int, default=30, help="rounds that count, per program")
    parser.add_argument("--epochs", type=int, default=0, help="local epochs; default 5, for the CNN 2")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--examples", type=int, default=600, help="per client")
    parser.add_argument("--dense", action="store_true", help="no pixel is 0")
    parser.add_argument("--prefix", default="", help="a command that runs each program, such as flock")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("quartiles need two turns or more")
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.clients, options.examples, dense=options.dense)
        for model in options.model or ["mlp", "cnn"]:
            rates, core_rates, first = compete(model, options, Path(folder))
            show(model, rates, core_rates, first)
            if any(entry.name == "fedcrab" for entry in rates):
                show_best(rates, core_rates)


if __name__ == "__main__":
    main()
