"""FedRecover: the server's CPU seconds beside its clients', from `Compact()` and from `Everything()`.

usage: python benchmarks/fedrecover_server.py [--rounds N] [--repeats N]      (needs MNIST: FEDCRAB_DATA)

20 clients × 600 MNIST images, MLP 784-128-10, five local epochs, five malicious, one process. A history is
opened for each recovery. The clients' part is what passes inside `fleet.train`, the server's is all the rest
of the recovery; both are CPU time of the process. The two histories take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

import fedcrab
from fedcrab import ClientId, Fleet, History, Updates, Vector
from fedcrab.experiment.config import Config, Data, HistoryConfig, LocalConfig
from fedcrab.experiment.names import RULES
from fedcrab.experiment.setup import Setup, open_for_training, prepare
from fedcrab.train import train

KINDS = ("compact", "everything")


class Timed:
    """A fleet that counts the CPU seconds inside it."""

    def __init__(self, inner: Fleet) -> None:
        self.inner, self.seconds = inner, 0.0

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        begun = time.process_time()
        try:
            return self.inner.train(model, clients, round=round, epochs=epochs)
        finally:
            self.seconds += time.process_time() - begun


def recorded(kind: str, rounds: int, place: Path) -> Setup:
    """Train and record; return what trained."""
    setup = prepare(
        Config(
            data=Data(name="mnist", probe=1000, examples_per_client=600),
            local=LocalConfig(learning_rate=0.05),
            history=HistoryConfig(name=kind),
        ),
        workers=0,
    )
    history = open_for_training(setup, place / kind, resume=False)
    for _ in train(
        setup.honest,
        setup.honest.clients,
        history,
        probe=setup.probe,
        aggregate=RULES["fedavg"](),
        rounds=rounds,
        seed=0,
    ):
        pass
    history.close()
    return setup


def shares(path: Path, setup: Setup) -> tuple[float, float]:
    """Return the CPU seconds of the server and of the clients in one recovery."""
    fleet, begun = Timed(setup.honest), time.process_time()
    plan = fedcrab.plan(History.open(path), malicious=set(setup.honest.clients[:5]))
    for _ in fedcrab.recover.fedrecover(plan, fleet):
        pass
    return time.process_time() - begun - fleet.seconds, fleet.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        setups = {kind: recorded(kind, arguments.rounds, Path(place)) for kind in KINDS}
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for _ in range(arguments.repeats):
            for kind, setup in setups.items():
                found[kind].append(shares(Path(place) / kind, setup))
        for setup in setups.values():
            setup.close()
    print("| history | server, CPU s | clients, CPU s | server beside clients |\n|---|---|---|---|")
    for kind, runs in found.items():
        server, clients = (median(seconds) for seconds in zip(*runs, strict=True))
        ratios = [one / other for one, other in runs]
        middle, low, high = median(ratios), min(ratios), max(ratios)
        print(f"| {kind} | {server:.2f} | {clients:.2f} | {middle:.0%} ({low:.0%} to {high:.0%}) |")


if __name__ == "__main__":
    main()
