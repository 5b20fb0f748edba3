"""What recording adds to a training of the MLP: the same rounds bare, with the probe, and recorded.

usage: python benchmarks/recording_share.py [--examples N] [--workers N] [--rounds N] [--turns N]
                                            [--selection NAME]

20 clients × 600 MNIST images (FEDCRAB_DATA), MLP 784-128-10, five local epochs, by `fedcrab.train`; with all
of MNIST a client has 2,950 images (`--examples 2950`). `bare` is the same loop without a probe and with a
history that keeps nothing; `probed` adds loss and divergence of each model on the server's examples;
`recorded` is what `fedcrab train` does. They take turns of some rounds each, and ratios are taken within
turns. With workers (by default one per core) rounds overlap, and only wall time is meaningful, on an idle
machine. With `--workers 0` all is in this process, and CPU time is printed too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from fedcrab.experiment.config import Config, Data, HistoryConfig, LocalConfig
from fedcrab.experiment.names import RULES
from fedcrab.experiment.setup import Setup, open_for_training, prepare
from fedcrab.train import train

SIDES = ("bare", "probed", "recorded")


class NoHistory:
    """What `train` needs of a history; nothing is kept."""

    def __init__(self, like: Any) -> None:
        self.charter, self.rounds = like.charter, list[int]()
        self.final_model = like.final_model

    def record(self, round: Any) -> None:
        self.rounds.append(round.index)


def spent(setup: Setup, side: str, rounds: int, place: Path) -> tuple[float, float]:
    """Return the wall and CPU seconds per round of one side."""
    history: Any = open_for_training(setup, place, resume=False)
    kept = history if side == "recorded" else NoHistory(history)
    silent: Any = SimpleNamespace(loss=lambda *_: 1.0, divergence=lambda *_: 0.0)
    begun = time.perf_counter(), time.process_time()
    steps = train(
        setup.honest,
        setup.honest.clients,
        kept,
        probe=silent if side == "bare" else setup.probe,
        aggregate=RULES["fedavg"](),
        rounds=rounds,
        seed=0,
        ahead=setup.honest.workers > 0,
    )
    for _ in steps:
        pass
    ended = time.perf_counter(), time.process_time()
    history.release()
    return (ended[0] - begun[0]) / rounds, (ended[1] - begun[1]) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--selection", default="compact")
    arguments = parser.parse_args()
    config = Config(
        data=Data(name="mnist", probe=1000, examples_per_client=arguments.examples),
        local=LocalConfig(learning_rate=0.05),
        history=HistoryConfig(name=arguments.selection),
    )
    setup, found = prepare(config, workers=arguments.workers), {side: list[Any]() for side in SIDES}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(arguments.turns + 1):
            for side in SIDES:
                seconds = spent(setup, side, arguments.rounds, Path(place) / f"{side}-{turn}")
                if turn:  # the first warms the caches
                    found[side].append(seconds)
    setup.close()
    kinds = ("wall",) if setup.honest.workers else ("wall", "CPU")
    print(f"{setup.honest.workers} workers, {arguments.selection}, {arguments.examples} examples per client")
    print("| training |" + "".join(f" {kind}, ms per round | beside bare |" for kind in kinds))
    print("|---|" + "---|---|" * len(kinds))
    for side in SIDES:
        cells = []
        for place_of_kind, _ in enumerate(kinds):
            own = [seconds[place_of_kind] for seconds in found[side]]
            bare = [seconds[place_of_kind] for seconds in found["bare"]]
            ratios = [one / other for one, other in zip(own, bare, strict=True)]
            cells += [
                f"{1000 * median(own):.0f}",
                f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            ]
        print(f"| {side} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
