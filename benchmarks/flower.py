"""What the Recorder adds to a round of Flower's simulation engine: the same rounds with it and without.

One simulation, 20 clients, a model of 10⁶ parameters, blocks of rounds with and without the Recorder in turn.
Clients train five epochs on 300 random examples of 784 numbers; ``--epochs 0`` sends the model back as it
came, which shows the cost of recording alone. Run: python benchmarks/flower.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

QUIET = ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED")
os.environ.update(dict.fromkeys(QUIET, "0") | {"FLWR_DISABLE_UPDATE_CHECK": "1"})

import torch  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch import nn  # noqa: E402

CLIENTS = 20


def network() -> nn.Module:
    """784-1258-10: 1,000,120 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1258), nn.ReLU(), nn.Linear(1258, 10))


def client_app(epochs: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        seed = 100 * int(message.content["config"]["server-round"]) + int(context.node_config["partition-id"])
        draw = torch.Generator().manual_seed(seed)
        x, y = torch.randn(300, 784, generator=draw), torch.randint(10, (300,), generator=draw)
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        descent = torch.optim.SGD(net.parameters(), lr=0.005)
        for _ in range(epochs):
            for rows in torch.randperm(300, generator=draw).split(64):
                descent.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                descent.step()
        metrics = MetricRecord({"num-examples": 300, "train_loss": 1.0})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
        )

    return app


class Timed(FedAvg):
    """FedAvg that notes when each round begins; a round ends where the next one begins."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.begun: list[float] = []

    def configure_train(self, *given, **named):
        self.begun.append(time.perf_counter())
        return super().configure_train(*given, **named)

    def rounds(self, ended: float) -> list[float]:
        """Seconds of each round but the first, in which connections are made."""
        marks = [*self.begun, ended]
        return [b - a for a, b in pairwise(marks)][1:]


def measure(blocks: int, rounds: int, epochs: int) -> dict[str, list[float]]:
    from fedcrab.flower import Recorder

    seconds: dict[str, list[float]] = {"without": [], "with": []}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        initial = ArrayRecord(network().state_dict())
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
            for block in range(2 * blocks):
                kind, timed = ("with", "without")[block % 2], Timed()
                used = Recorder(timed, Path(place) / str(block)) if kind == "with" else timed
                used.start(grid, initial, num_rounds=rounds + 1)
                seconds[kind] += timed.rounds(time.perf_counter())

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(epochs), num_supernodes=CLIENTS, backend_config=backend)
    return seconds


def report(seconds: dict[str, list[float]]) -> None:
    plain, recorded = statistics.median(seconds["without"]), statistics.median(seconds["with"])
    for kind, found in seconds.items():
        spread = f"{min(found):.3f} to {max(found):.3f}, {len(found)} rounds"
        print(f"{kind:8} median {statistics.median(found):.3f} s  ({spread})")
    print(f"the Recorder adds {recorded - plain:+.3f} s, {100 * (recorded / plain - 1):+.1f}% of a round")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    report(measure(given.blocks, given.rounds, given.epochs))
