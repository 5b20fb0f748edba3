"""How fast the simulator trains clients, beside a bare torch loop and other frameworks.

    sh benchmarks/peers.sh ~/peers                        # once; what does not install is left out
    python benchmarks/simulator.py --peers ~/peers        # MLP and CNN, one core and two
    python benchmarks/simulator.py --model own            # a user's own module, fedcrab against a bare loop

Every contestant trains the same 20 clients of 600 MNIST images (random ones without FEDCRAB_DATA) with the
same settings. All are started first and do a round that does not count; then they take turns, round by
round, so that each sees the same machine within seconds. `fedcrab is` is the median over the turns of what
fedcrab did in a turn over what the other did in the same turn on as many cores, with its quartiles; in the
last column both are counted in seconds of processor time, on all cores together. A second table has each
contestant at its best setting. One whose model has not learned, or that fails, is not counted and is named.
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


def write_data(folder: Path) -> None:
    """20 clients of 600 examples, and 2,000 to test on."""
    if os.environ.get("FEDCRAB_DATA"):
        from fedcrab.simulate import load_dataset

        mnist = load_dataset("mnist")
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


def learned(model: str, contestant: Contestant[object]) -> bool:
    """Whether it counts; says so if not."""
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
    parser.add_argument("--only", action="append", default=[], help="this contestant; may be repeated")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="on so many only")
    parser.add_argument("--turns", type=int, default=30, help="rounds that count, of each contestant")
    parser.add_argument("--epochs", type=int, default=0, help="local epochs; default 5, for the CNN 2")
    parser.add_argument("--prefix", default="", help="a command to run each contestant under, such as flock")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("quartiles need two turns or more")
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for model in options.model or ["mlp", "cnn"]:
            rates, core_rates = compete(model, options, Path(folder))
            show(model, rates, core_rates)
            if any(entry.name == "fedcrab" for entry in rates):
                show_best(rates, core_rates)


if __name__ == "__main__":
    main()
