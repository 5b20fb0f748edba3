"""What recording costs on NVIDIA FLARE: the server's CPU seconds and memory, with and without the Recorder.

    python benchmarks/flare_recording.py --parameters 10000000 --sites 10 --rounds 3 --examples 1000

FLARE's own runner, communicator and FedAvg run in this process, without the network. The sites answer at once
with a model that was drawn before. Runs with and without the Recorder take turns. The share of a round is
computed for a round in which each site trains a network with two hidden layers and as many parameters for one
epoch in torch, with SGD in batches of 32. The network between server and sites is not included.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "nvflare"))

from flare_job import Persistor, answer, run  # noqa: E402
from nvflare.app_common.workflows.fedavg import FedAvg  # noqa: E402

import fedcrab  # noqa: E402
from fedcrab.nvflare import Recorder  # noqa: E402

WITHOUT = "without"
SHIFT = 997  # numbers between the models of two sites, or of two rounds
SELECTIONS = {"Selective()": fedcrab.Selective(), "Compact()": fedcrab.Compact()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--examples", type=int, default=1000, help="examples per site, for one epoch")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(options.parameters + SHIFT * options.sites * options.rounds, np.float32)
    local = {f"site-{i + 1}": drawn[SHIFT * options.rounds * i :] for i in range(options.sites)}
    seconds = dict[str, list[float]]()
    for repeat in range(options.repeats + 1):  # the first one is for the imports
        for kind in (WITHOUT, *SELECTIONS):
            spent = one(kind, local, options.parameters, options.rounds)
            if repeat:
                seconds.setdefault(kind, []).append(spent / options.rounds)
    training = options.sites * trained(options.parameters, options.examples)
    plain, updates = float(np.median(seconds[WITHOUT])), 4 * options.parameters * options.sites
    print(f"training of {options.sites} sites: {training:.2f} CPU seconds per round")
    for kind, found in seconds.items():
        more = float(np.median(found)) - plain
        listed = " ".join(f"{s:.3f}" for s in found)
        print(
            f"{kind:12} {np.median(found):.3f} CPU seconds per round ({listed}), "
            f"recording {more / (training + plain + more):.1%} of a round, "
            f"peak memory {peak(kind, local, options.parameters) / updates:.2f} x updates"
        )


def one(kind: str, local: dict[str, np.ndarray], size: int, rounds: int) -> float:
    """The CPU seconds of a job."""
    place = Path(tempfile.mkdtemp())
    recorder = None if kind == WITHOUT else Recorder(str(place / "h"), selection=SELECTIONS[kind])
    controller = FedAvg(
        num_clients=len(local), num_rounds=rounds, task_check_period=0.05, aggregator=recorder
    )

    def site(drawn: np.ndarray):  # another model in every round, which takes no time to make
        return lambda index, _params, _meta: answer({"w": drawn[SHIFT * index :][:size]})

    sites = {name: site(drawn) for name, drawn in local.items()}
    began = time.process_time()
    outcome = run(controller, sites, Persistor(w=np.zeros(size, np.float32)))
    spent = time.process_time() - began
    shutil.rmtree(place)
    assert outcome.failures == []
    return spent


def peak(kind: str, local: dict[str, np.ndarray], size: int) -> int:
    """The most bytes that arrays of a job took at once, beside the sites' own models."""
    tracemalloc.start()
    one(kind, local, size, 2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def trained(parameters: int, examples: int) -> float:
    """The CPU seconds of one site's epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    width = max(8, int(((784 + 10) ** 2 + 4 * parameters) ** 0.5 - 794) // 2)
    net = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(examples, 784), torch.randint(10, (examples,))

    def epoch(rows: int) -> None:
        for part in torch.arange(rows).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()

    epoch(64)
    began = time.process_time()
    epoch(examples)
    return time.process_time() - began


if __name__ == "__main__":
    main()
