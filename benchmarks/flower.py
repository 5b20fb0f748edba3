"""What the Recorder adds to a round of Flower's simulation engine: the same rounds with and without it.

One simulation, 20 clients, a model of 10⁶ parameters; blocks of rounds with and without the Recorder take
turns. Clients train five epochs on 300 random examples of 784 numbers. With ``--epochs 0`` they send the
model back unchanged, which shows the cost of recording alone. Run: python benchmarks/flower.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles

QUIET = ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED")
os.environ.update(dict.fromkeys(QUIET, "0") | {"FLWR_DISABLE_UPDATE_CHECK": "1"})

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch import nn  # noqa: E402

CLIENTS = 20
Moment = tuple[float, float, float]  # the clock, CPU seconds of the server, of the whole simulation


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
        self.begun: list[Moment] = []

    def configure_train(self, *given, **named):
        self.begun.append(now())
        return super().configure_train(*given, **named)

    def rounds(self, ended: Moment) -> list[Moment]:
        """What each round took, but the first, in which connections are made."""
        marks = np.array([*self.begun, ended])
        return [tuple(taken) for taken in np.diff(marks, axis=0).tolist()][1:]


def now() -> Moment:
    return time.perf_counter(), time.process_time(), whole()


def whole() -> float:
    """CPU seconds of this process and of all that it started, as Linux counts them."""
    parents, ticks = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            pid = int(process.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours, found = set(), {os.getpid()}
    while found:
        ours |= found
        found = {pid for pid, parent in parents.items() if parent in found} - ours
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def measure(blocks: int, rounds: int, epochs: int) -> dict[str, list[list[Moment]]]:
    """Blocks of rounds in turn: what each round of each block took."""
    from fedcrab.flower import Recorder

    taken: dict[str, list[list[Moment]]] = {"without": [], "with": []}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        initial = ArrayRecord(network().state_dict())
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
            for block in range(2 * blocks):
                kind, timed = ("with", "without")[block % 2], Timed()
                used = Recorder(timed, Path(place) / str(block)) if kind == "with" else timed
                used.start(grid, initial, num_rounds=rounds + 1)
                taken[kind].append(timed.rounds(now()))

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(epochs), num_supernodes=CLIENTS, backend_config=backend)
    return taken


def report(taken: dict[str, list[list[Moment]]]) -> None:
    middle, quick = {}, {}
    for kind, blocks in taken.items():
        seconds, server, everything = zip(*(moment for block in blocks for moment in block), strict=True)
        middle[kind] = median(seconds), median(server), median(everything)
        quick[kind] = quantiles(seconds, n=4)[0]
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}, {len(seconds)} rounds"
        cpu = f"CPU: server {median(server):.3f} s, all {median(everything):.3f} s"
        print(f"{kind:8} median {median(seconds):.3f} s, quartile {quick[kind]:.3f} s ({spread}); {cpu}")
    (plain, idle, all_of_it), (recorded, busy, _) = middle["without"], middle["with"]
    print(f"the Recorder adds {recorded - plain:+.3f} s, {100 * (recorded / plain - 1):+.1f}% of a round;")
    print(
        f"by the quartiles, when the machine is quiet, {100 * (quick['with'] / quick['without'] - 1):+.1f}%;"
    )
    print(f"its own work is {busy - idle:.3f} s of CPU, {100 * (busy - idle) / all_of_it:.1f}% of a round's")
    pairs = zip(taken["with"], taken["without"], strict=True)
    ratios = sorted(100 * (middle_of(one) / middle_of(other) - 1) for one, other in pairs)
    told = ", ".join(f"{ratio:+.1f}%" for ratio in ratios)
    print(f"block by block, {median(ratios):+.1f}% in the middle: {told}")


def middle_of(block: list[Moment]) -> float:
    return median(seconds for seconds, *_ in block)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    report(measure(given.blocks, given.rounds, given.epochs))
