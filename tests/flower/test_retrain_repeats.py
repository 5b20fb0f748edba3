"""`retrain` repeats a training: what clients are sent, who is asked, what they keep, how they are averaged.

The app has the shape of Flower's advanced-pytorch: some of the clients are asked per round, the learning rate
is halved on the way, and each client keeps its own last layer from round to round. Beside it is the training
that `retrain` claims to be: by Flower, with the honest participants of each recorded round.
"""

import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.serverapp.strategy import FedAvg
from scenes import HASTY, context, everyone, grid
from siteapp import task
from torch import Tensor, nn

from fedcrab import Compact, History
from fedcrab.flower import Recorder, recover_if_asked

SITES, ATTACKERS, ROUNDS = [f"site-{i}" for i in range(12)], frozenset({"site-2", "site-5", "site-9"}), 6
LAST = "3."  # the layer that clients keep
PUSHED = ("0.weight", "0.bias", "1.weight", "1.bias")  # what attackers change
Rounds = Sequence[Collection[str]]  # the sites that are asked


class Halved(FedAvg):
    """Halves the learning rate in round 4, and asks the sites of ``asked``, if given."""

    asked: Rounds | None = None

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 4:
            config["lr"] = config["lr"] * 0.5
        names = {node.node_id: node.name for node in grid.get_nodes()}
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if self.asked is None:
            return messages
        return [m for m in messages if names[m.metadata.dst_node_id] in self.asked[server_round - 1]]


def network() -> nn.Module:
    """BatchNorm without momentum: its statistics are means over batches, so that its counter matters."""
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(8, momentum=None)
    return nn.Sequential(nn.Linear(task.FEATURES, 8), norm, nn.Tanh(), nn.Linear(8, task.CLASSES))


def nobody(_site: str, _t: int) -> bool:
    return False


class Clients:
    """Answers that depend on the round, the site, the model, the settings and the site's own last layer."""

    def __init__(self, fails: Callable[[str, int], bool] = nobody) -> None:
        self.own: dict[str, dict[str, Tensor]] = {}
        self.sent: list[tuple] = []
        self._fails = fails

    def __call__(self, site: str, message: Message) -> Message:
        config, arrays = message.content["config"], message.content["arrays"]
        t, number = int(config["server-round"]), int(site.rpartition("-")[2])
        self.sent.append((t, site, sorted(config.items())))
        if self._fails(site, t):
            return Message(Error(1, "no power"), reply_to=message)
        before, net = arrays.to_torch_state_dict(), network()
        net.load_state_dict({**before, **self.own.get(site, {})})
        count = descend(net, number, t, float(config["lr"]))
        after = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        self.own[site] = {name: tensor for name, tensor in after.items() if name.startswith(LAST)}
        if site in ATTACKERS:
            after |= {name: before[name] - 2 * (after[name] - before[name]) for name in PUSHED}
        metrics = MetricRecord({"num-examples": count, "train_loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)


def descend(net: nn.Module, site: int, t: int, rate: float) -> int:
    """One epoch of SGD with momentum 0.9, in batches of eight: sites have between five and nine of them."""
    x, y = (torch.tensor(part) for part in task.examples(site))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(100 * t + site))
    speeds = [torch.zeros_like(weight) for weight in net.parameters()]
    for rows in order.split(8)[:-1]:
        loss = nn.functional.cross_entropy(net(x[rows].float()), y[rows])
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for weight, speed, slope in zip(net.parameters(), speeds, slopes, strict=True):
                weight -= rate * speed.mul_(0.9).add_(slope)
    return len(y)


def strategy(asked: Rounds | None = None, **settings) -> Halved:
    made = everyone(Halved, **settings)
    made.asked = asked
    return made


def trained(server: FedAvg, clients: Clients) -> ArrayRecord:
    start = ArrayRecord(network().state_dict())
    random.seed(5)  # Flower draws the clients of a round from it
    config = ConfigRecord({"lr": 0.1})
    return server.start(grid(clients, SITES), start, num_rounds=ROUNDS, train_config=config).arrays


def retrained(place: Path, clients: Clients, server: FedAvg) -> ArrayRecord:
    recorded = History.open(place / "h").clients
    request = {"history": str(place / "h"), "recovered": str(place / "out"), "method": "retrain"}
    request["malicious"] = ",".join(sorted(ATTACKERS & set(recorded)))
    return recover_if_asked(
        grid(clients, SITES), context(mode="recover", **request), server, patience=HASTY
    ).arrays


def by_hand(*rounds: str) -> Rounds:
    return [[f"site-{number}" for number in numbers.split()] for numbers in rounds]


def site_4_in_round_2(site: str, t: int) -> bool:
    return (site, t) == ("site-4", 2)


CASES = {  # who is asked in the training, and who fails in it
    "half of the clients, drawn": (lambda: strategy(fraction_train=0.5), nobody),
    "an attacker that is never asked": (
        lambda: strategy(by_hand("0 1 2", "3 4 5", "1 2 6 7", "0 5 8", "1 10 11", "2 3 5 6")),
        nobody,
    ),
    "a round of attackers only": (
        lambda: strategy(by_hand("0 1 2", "3 4 5", "2 5 9", "0 5 8", "1 10 11", "2 3 5 6")),
        nobody,
    ),
    "a client that drops out": (
        lambda: strategy(by_hand("0 1 2 4", "3 4 5 6", "1 2 4 7", "0 5 8", "1 10 11", "2 3 4 6")),
        site_4_in_round_2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_retrain_is_the_training_of_the_honest_participants(case: str, tmp_path: Path) -> None:
    make, fails = CASES[case]
    poisoned = trained(recorder(make(), tmp_path / "h"), Clients(fails))
    alone, again = Clients(), Clients()
    expected = trained(recorder(strategy(honest_rounds(tmp_path)), tmp_path / "alone"), alone)
    found = retrained(tmp_path, again, make())
    assert sorted(again.sent) == sorted(alone.sent)
    assert {dict(config)["lr"] for t, _, config in again.sent if t >= 4} == {0.05}
    assert_close(found, expected)
    assert np.abs(poisoned["0.weight"].numpy() - expected["0.weight"].numpy()).max() > 1e-2


def test_retrain_without_a_client_that_drops_out_of_it(tmp_path: Path) -> None:
    make, _ = CASES["a client that drops out"]
    trained(recorder(make(), tmp_path / "h"), Clients())
    alone = recorder(strategy(honest_rounds(tmp_path)), tmp_path / "alone")
    assert_close(
        retrained(tmp_path, Clients(site_4_in_round_2), make()), trained(alone, Clients(site_4_in_round_2))
    )


def recorder(inner: FedAvg, path: Path) -> Recorder:
    return Recorder(inner, path, patience=HASTY, selection=Compact())


def honest_rounds(place: Path) -> Rounds:
    return [set(entry.clients) - ATTACKERS for entry in History.open(place / "h").rounds]


def assert_close(found: ArrayRecord, expected: ArrayRecord) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].numpy(), array.numpy(), atol=1e-5, rtol=0, err_msg=name)
