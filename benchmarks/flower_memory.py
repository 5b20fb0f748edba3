"""How much memory and CPU recording needs on a Flower server: one process, clients that answer from memory.

python benchmarks/flower_memory.py 1e7 10 plain        # FedAvg alone
python benchmarks/flower_memory.py 1e7 10 recorder     # in a Recorder
python benchmarks/flower_memory.py 1e7 10 compact      # in a Recorder with Compact()
python benchmarks/flower_memory.py 1e7 10 training     # what a round costs the clients themselves
"""

import gc
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedcrab import Compact
from fedcrab.flower import Patience, Recorder

ROUNDS = 4
PAGE = 4096


class Answers(Grid):
    """Clients that add their own noise to the model. Only the replies are kept in memory, as in Flower."""

    def __init__(self, size: int, clients: int) -> None:
        self._size, self._nodes, self._sent = size, range(1, clients + 1), dict[str, Message]()
        self._count = 0

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, name=f"site-{n:02}", owner_name="none") for n in self._nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self._count += 1
            name = f"message-{self._count}"
            message.metadata.__dict__["_message_id"] = name
            self._sent[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for name in list(message_ids):
            if message := self._sent.pop(name, None):
                yield self._answer(message)

    def _answer(self, message: Message) -> Message:
        """Return an answer, made with only one other copy of the model, so that the peak is not affected."""
        sent = message.content["arrays"]["w"]
        begin = len(sent.data) - 4 * self._size
        made = np.frombuffer(sent.data, np.float32, offset=begin).copy()
        drawn = np.random.default_rng([self._count, message.metadata.dst_node_id])  # different in each round
        noise = drawn.standard_normal(1000, np.float32)
        made.reshape(-1, 1000)[...] += noise * np.float32(1e-3)
        data = b"".join((sent.data[:begin], memoryview(made)))
        answer = Array(dtype=sent.dtype, shape=sent.shape, stype=sent.stype, data=data)
        said = MetricRecord({"num-examples": 5, "train_loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord({"w": answer}), "metrics": said})
        return Message(content, reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return list(self.pull_messages(self.push_messages(messages)))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def strategy_of(kind: str, place: Path) -> Strategy:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    if kind == "plain":
        return strategy
    selection = Compact() if kind == "compact" else None
    return Recorder(strategy, place / "h", selection=selection, patience=Patience(poll=0.01))


def training(size: int, clients: int, examples: int = 600) -> None:
    """Print the CPU time of a round's clients: one epoch each.

    The network uses every number once per example. This is the least that a number can cost: a convolution
    uses each of its numbers at every place.
    """
    import torch

    torch.set_num_threads(1)
    width = int((size + 397**2) ** 0.5 - 397)  # 784 w + w² + 10 w numbers
    net = torch.nn.Sequential(
        *(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()),
        torch.nn.Linear(width, 10),
    )
    descent = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(examples, 784), torch.randint(0, 10, (examples,))
    begun = time.process_time()
    for rows in torch.randperm(examples).split(32):
        descent.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        descent.step()
    each = time.process_time() - begun
    numbers = sum(p.numel() for p in net.parameters())
    print(
        f"training: {each * clients:.1f} s of CPU per round: {clients} x {each:.2f} s, {numbers:.2e} numbers"
    )


def main(size: int, clients: int, kind: str) -> None:
    if kind == "training":
        return training(size, clients)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    ended, peak = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], resident())

    with TemporaryDirectory() as place:
        strategy = strategy_of(kind, Path(place))
        start = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
        gc.collect()
        before, begun = resident(), time.process_time()
        threading.Thread(target=watch, daemon=True).start()
        strategy.start(Answers(size, clients), start, num_rounds=ROUNDS)
        ended.set()
        cpu = (time.process_time() - begun) / ROUNDS
    times = (peak[0] - before) / (4 * size * clients)
    print(f"{kind}: {cpu:.2f} s of CPU per round, peak {times:.2f} x the updates of a round")
    return None


if __name__ == "__main__":
    main(int(float(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
