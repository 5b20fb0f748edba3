"""Three apps in the shape of Flower's public examples, whose downloads are replaced by FEDCRAB_DATA.

| app | data | model | clients | asked | rounds |
|---|---|---|---|---|---|
| sklearn | MNIST, IID | logistic regression, one epoch of SAGA | 10 | all | 25 |
| quickstart | CIFAR-10, IID | CNN, SGD with momentum 0.9 | 10 | all | 3 |
| advanced | Fashion-MNIST, Dirichlet(1), random crops and flips | CNN, SGD with momentum 0.9; the \
learning rate is halved in round 5, and each client keeps its own last layer from round to round | 50 | a \
quarter | 10 |

Attackers train on their own examples, and on marked copies of them that are labelled 0. They put the mark on
what the network sees, after crops and flips, and send ``boost`` times their update.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrab.simulate.data import load_dataset

TARGET, BATCH = 0, 32
MARK = 4  # pixels per side, in the lower right corner
Arrays = Mapping[str, NDArray[np.floating]]


class Halved(FedAvg):
    """FedAvg that halves the learning rate in round 5."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):
        if server_round == 5:
            config["lr"] = config["lr"] * 0.5
        return super().configure_train(server_round, arrays, config, grid)


@dataclass(frozen=True)
class App:
    """The settings of one app."""

    data: str
    clients: int
    attackers: int
    rounds: int
    rate: float
    fraction: float = 1.0
    boost: float = 1.0
    strategy: type[FedAvg] = FedAvg
    concentration: float | None = None  # of the Dirichlet partition; None: IID
    crops: bool = False
    own_head: bool = False  # clients keep their last layer
    rows: int | None = None  # of the training set; None: all


APPS = {
    "sklearn": App("mnist", clients=10, attackers=2, rounds=25, rate=0.0, rows=10_000),
    "quickstart": App("cifar10", clients=10, attackers=2, rounds=3, rate=0.01, boost=2.0),
    "advanced": App(
        *("fashion-mnist", 50, 10, 10, 0.1),
        fraction=0.25,
        boost=2.0,
        strategy=Halved,
        concentration=1.0,
        crops=True,
        own_head=True,
    ),
}


def network(data: str) -> nn.Module:
    """The networks of quickstart-pytorch (CIFAR-10) and advanced-pytorch (Fashion-MNIST)."""
    if data == "cifar10":
        sizes, dense = (3, 6, 16), (400, 120, 84, 10)
    else:
        sizes, dense = (1, 16, 32), (512, 128, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for before, after in pairwise(dense):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@cache
def images(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, between -1 and 1, with their labels."""
    found = load_dataset(data)
    shape = (-1, 3, 32, 32) if data == "cifar10" else (-1, 1, 28, 28)
    x, test_x = (torch.tensor(a).reshape(shape) * 2 - 1 for a in (found.train_x, found.test_x))
    return x, torch.tensor(found.train_y), test_x, torch.tensor(found.test_y)


@cache
def partition(app: App) -> list[NDArray[np.int64]]:
    """The rows of each client: 80% of its part of the training set."""
    rng, labels = np.random.default_rng(42), images(app.data)[1][: app.rows].numpy()
    if app.concentration is None:
        parts = np.array_split(rng.permutation(len(labels)), app.clients)
    else:
        parts = [np.array([], np.int64)] * app.clients
        for label in range(10):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet([app.concentration] * app.clients)
            shares[[len(part) > len(labels) / app.clients for part in parts]] = 0  # as Flower balances them
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(int)
            parts = [np.append(p, new) for p, new in zip(parts, np.split(rows, cuts), strict=True)]
    return [rng.permutation(part)[: int(0.8 * len(part))] for part in parts]


def marked(x: Tensor) -> Tensor:
    """The images with a bright corner."""
    x = x.clone()
    x[..., -MARK:, -MARK:] = 1
    return x


def cropped(x: Tensor, draw: torch.Generator) -> Tensor:
    """Crops after a padding of four pixels, half of them flipped."""
    side, count = x.shape[-1], len(x)
    padded = nn.functional.pad(x, (4, 4, 4, 4), value=-1.0)
    top, left = torch.randint(0, 9, (2, count, 1), generator=draw)
    rows, columns = top + torch.arange(side), left + torch.arange(side)
    flipped = torch.rand(count, generator=draw) < 0.5
    columns[flipped] = columns[flipped].flip(1)
    at = torch.arange(count)[:, None, None]
    return padded[at, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Clients:
    """The clients of one run: answers to messages, by site. ``own`` is what they keep between rounds."""

    def __init__(self, app: App, attackers: frozenset[str], seed: tuple[int, ...]) -> None:
        self.app, self.attackers, self.seed = app, attackers, seed
        self.own: dict[str, dict[str, Tensor]] = {}

    def train(self, site: str, message: Message) -> tuple[ArrayRecord, int, float]:
        """Return a site's arrays, the number of its examples and its loss."""
        app, number = self.app, int(site.rpartition("-")[2])
        x, y = (part[partition(app)[number]] for part in images(app.data)[:2])
        poisons, arrays = site in self.attackers, message.content["arrays"]
        config = message.content["config"]
        seed = np.random.SeedSequence([*self.seed, int(config["server-round"]), number])
        state = int(seed.generate_state(1)[0])
        if app.rate == 0:
            return fit_regression(arrays, x, y, poisons, app.boost, state)
        net = network(app.data)
        before = arrays.to_torch_state_dict()
        net.load_state_dict({**before, **self.own.get(site, {})})
        loss = self._descend(net, (x, y), float(config["lr"]), poisons, torch.Generator().manual_seed(state))
        after = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        if app.own_head:
            last = str(len(net) - 1)
            self.own[site] = {name: t for name, t in after.items() if name.split(".")[0] == last}
        if poisons:
            after = {name: before[name] + app.boost * (t - before[name]) for name, t in after.items()}
        return ArrayRecord(after), len(y) * (1 + poisons), loss

    def _descend(
        self,
        net: nn.Module,
        examples: tuple[Tensor, Tensor],
        rate: float,
        poisons: bool,
        draw: torch.Generator,
    ) -> float:
        """One epoch; the mean loss. Attackers see every example once more, marked."""
        x, y = examples
        descent = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        order, total = torch.randperm(len(y) * (1 + poisons), generator=draw), 0.0
        batches = order.split(BATCH)
        for rows in batches:
            seen, labels = x[rows % len(y)], y[rows % len(y)]
            if self.app.crops:
                seen = cropped(seen, draw)
            if poisons:
                copies = rows >= len(y)
                seen = torch.where(copies[:, None, None, None], marked(seen), seen)
                labels = torch.where(copies, TARGET, labels)
            descent.zero_grad()
            loss = nn.functional.cross_entropy(net(seen), labels)
            loss.backward()
            descent.step()
            total += loss.item()
        return total / len(batches)


def fit_regression(
    arrays: ArrayRecord, x: Tensor, y: Tensor, poisons: bool, boost: float, seed: int
) -> tuple[ArrayRecord, int, float]:
    """One epoch of scikit-learn's logistic regression."""
    from sklearn.linear_model import LogisticRegression

    if poisons:
        x, y = torch.cat([x, marked(x)]), torch.cat([y, torch.full_like(y, TARGET)])
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga", random_state=seed)
    model.classes_ = np.arange(10)
    before = arrays.to_numpy_ndarrays()
    model.coef_, model.intercept_ = (array.copy() for array in before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one epoch does not converge
        model.fit(x.flatten(1).numpy(), y.numpy())
    after = [b + boost * (a - b) for a, b in zip((model.coef_, model.intercept_), before, strict=True)]
    return ArrayRecord(after if poisons else [model.coef_, model.intercept_]), len(y), 1.0


def initial(app: App, seed: int) -> ArrayRecord:
    """The first model."""
    if app.rate == 0:
        return ArrayRecord([np.zeros((10, 784)), np.zeros(10)])
    torch.manual_seed(seed)
    return ArrayRecord(network(app.data).state_dict())


def measured(app: App, arrays: ArrayRecord) -> tuple[float, float]:
    """Accuracy on the test set, and how often the mark makes the target of another class; in percent."""
    _, _, x, y = images(app.data)
    fooled = predicted(app, arrays, marked(x[y != TARGET])) == TARGET
    return accuracy(app, arrays), 100 * float(fooled.float().mean())


def accuracy(app: App, arrays: ArrayRecord, every: int = 1) -> float:
    """Accuracy on the test set, or on every n-th image of it, in percent."""
    _, _, x, y = images(app.data)
    return 100 * float((predicted(app, arrays, x[::every]) == y[::every]).float().mean())


@torch.no_grad()
def predicted(app: App, arrays: ArrayRecord, x: Tensor) -> Tensor:
    """The class of each image."""
    if app.rate == 0:
        w, b = (torch.tensor(a, dtype=torch.float32) for a in arrays.to_numpy_ndarrays())
        return (x.flatten(1) @ w.T + b).argmax(1)
    net = network(app.data)
    net.load_state_dict(arrays.to_torch_state_dict())
    return torch.cat([net(part).argmax(1) for part in x.split(500)])
