"""How much memory and CPU recording needs on a Flower server: one process, clients that answer from memory.

python benchmarks/flower_memory.py 1e7 10 plain        # FedAvg alone
python benchmarks/flower_memory.py 1e7 10 recorder     # in a Recorder
python benchmarks/flower_memory.py 1e7 10 compact      # in a Recorder with Compact()
python benchmarks/flower_memory.py 1e7 10 training     # what a round costs the clients themselves
python benchmarks/flower_memory.py 1e7 10 share        # all of these: recording's share of a round's CPU time

`training` and `share` take ``--examples``, by default 4,000 per client as in Flower's quickstart-pytorch: ten
clients, each with 80% of a tenth of CIFAR-10, for one epoch in batches of 32. The epoch is timed on the first
640 of them. The networks have about as many parameters as given: `mlp` uses every number once per example,
which is the least that a number can cost; `cnn` is quickstart-pytorch's network with wider layers; `resnet`
is a ResNet-18 as torchvision has it, with as many channels as fit.
"""

import argparse
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from flower_grid import FunctionGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcrab import Compact
from fedcrab.flower import Patience, Recorder

ROUNDS = 4
PAGE = 4096
SERVERS, NETWORKS = ("plain", "recorder", "compact"), ("mlp", "cnn", "resnet")
BATCH, TIMED = 32, 640


class Noise:
    """Clients that add their own noise to the model."""

    def __init__(self, size: int) -> None:
        self._size, self._count = size, 0

    def __call__(self, site: str, message: Message) -> Message:
        """Return an answer, made with only one other copy of the model, so that the peak is not affected."""
        self._count += 1
        sent = message.content["arrays"]["w"]
        begin = len(sent.data) - 4 * self._size
        made = np.frombuffer(sent.data, np.float32, offset=begin).copy()
        drawn = np.random.default_rng([self._count, int(site[-2:])])  # different in each round
        noise = drawn.standard_normal(1000, np.float32)
        made.reshape(-1, 1000)[...] += noise * np.float32(1e-3)
        data = b"".join((sent.data[:begin], memoryview(made)))
        answer = Array(dtype=sent.dtype, shape=sent.shape, stype=sent.stype, data=data)
        said = MetricRecord({"num-examples": 5, "train_loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord({"w": answer}), "metrics": said})
        return Message(content, reply_to=message)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def strategy_of(kind: str, place: Path) -> Strategy:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    if kind == "plain":
        return strategy
    selection = Compact() if kind == "compact" else None
    return Recorder(strategy, place / "h", selection=selection, patience=Patience(poll=0.01))


def network(kind: str, size: int):
    """A network for CIFAR-10 with about ``size`` parameters."""
    from torch import nn

    if kind == "mlp":
        width = int((size + 1541**2) ** 0.5 - 1541)  # 3072 w + w² + 10 w numbers
        dense = (nn.Linear(3072, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        return nn.Sequential(nn.Flatten(), *dense)
    if kind == "cnn":
        a, b, c, d = (round(n * (size / 60_480) ** 0.5) for n in (6, 16, 120, 84))
        layers = [nn.Conv2d(3, a, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 5), nn.ReLU()]
        dense = (nn.Linear(25 * b, c), nn.ReLU(), nn.Linear(c, d), nn.ReLU(), nn.Linear(d, 10))
        return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), *dense)
    w = round(64 * (size / 11_181_642) ** 0.5)
    layers = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for before, after in ((w, w), (w, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w), (4 * w, 4 * w)):
        layers.append(residual(before, after))
    layers += [residual(4 * w, 8 * w), residual(8 * w, 8 * w), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * w, 10))


def residual(before: int, after: int):
    """Two convolutions around which the input is added; halves the image if it has more channels."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stride = 1 if before == after else 2
            self.inner = nn.Sequential(
                *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
                *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
            )
            shorter = nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            self.around = nn.Sequential(*(shorter if stride == 2 else ()))

        def forward(self, x):
            return torch.relu(self.inner(x) + self.around(x))

    return Residual()


def training(size: int, clients: int, kind: str, examples: int) -> float:
    """Print and return the CPU seconds of a round's clients: one epoch each."""
    import torch

    torch.set_num_threads(1)
    net, timed = network(kind, size), min(examples, TIMED)
    descent = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(timed, 3, 32, 32), torch.randint(0, 10, (timed,))
    begun = time.process_time()
    for rows in torch.randperm(timed).split(BATCH):
        descent.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        descent.step()
    each = (time.process_time() - begun) * examples / timed
    numbers = sum(p.numel() for p in net.parameters())
    told = f"{clients} x {each:.2f} s, {numbers:.2e} numbers, {examples} examples"
    print(f"training {kind}: {each * clients:.1f} s of CPU per round: {told}", flush=True)
    return each * clients


def server(size: int, clients: int, kind: str) -> None:
    """Print the memory and the CPU seconds of the server."""
    ended, peak = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], resident())

    grid = FunctionGrid([f"site-{n:02}" for n in range(1, clients + 1)], Noise(size))
    with TemporaryDirectory() as place:
        strategy = strategy_of(kind, Path(place))
        start = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
        gc.collect()
        before, begun = resident(), time.process_time()
        threading.Thread(target=watch, daemon=True).start()
        strategy.start(grid, start, num_rounds=ROUNDS)
        ended.set()
        cpu = (time.process_time() - begun) / ROUNDS
    times = (peak[0] - before) / (4 * size * clients)
    print(f"{kind}: {cpu:.2f} s of CPU per round, peak {times:.2f} x the updates of a round")


def share(size: int, clients: int, examples: int) -> None:
    """Print how much of a round's CPU time recording takes, if clients train one of the networks."""
    cpu = {}
    for kind in SERVERS:  # each in its own process, so that none inherits memory
        command = [sys.executable, __file__, str(size), str(clients), kind]
        *_, line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        print(line, flush=True)
        cpu[kind] = float(line.split()[1])
    for name in NETWORKS:
        spent = training(size, clients, name, examples)
        shares = (f"{k} {(cpu[k] - cpu['plain']) / (spent + cpu[k]):.1%}" for k in SERVERS[1:])
        print(f"recording's share of the round: {', '.join(shares)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("size", type=float)
    parser.add_argument("clients", type=int)
    parser.add_argument("kind", choices=(*SERVERS, "training", "share"))
    parser.add_argument("--examples", type=int, default=4000)
    given = parser.parse_args()
    if given.kind == "share":
        share(int(given.size), given.clients, given.examples)
    elif given.kind == "training":
        for each in NETWORKS:
            training(int(given.size), given.clients, each, given.examples)
    else:
        server(int(given.size), given.clients, given.kind)
