"""Deep models, trained with two attackers of five, recorded, and recovered on their clients.

The shape of a ResNet-50 (320 tensors, BatchNorm), and a transformer. Beside each, the same training without
the attackers.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from loopback import Handler, by_app
from scenes import context, everyone, grid
from torch import nn

from fedcrab import Compact, History
from fedcrab.flower import Patience, Recorder, recover_if_asked
from fedcrab.flower.recovery import Recovered

PATIENT = Patience(deadline=3600.0, attempts=1, poll=0.01)
SITES, ATTACKERS = [f"site-{i}" for i in range(5)], ("site-1", "site-4")
HONEST = [site for site in SITES if site not in ATTACKERS]
CLASSES, TEST = 4, 400


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3, 1 × 1, each with BatchNorm, and a shortcut, as in a ResNet-50; narrow."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, made, 1, bias=False), nn.BatchNorm2d(made)),
        )
        same = inside == made and stride == 1
        shortcut = (nn.Conv2d(inside, made, 1, stride, bias=False), nn.BatchNorm2d(made))
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """The stages of a ResNet-50, 3, 4, 6 and 3 blocks, two to four channels wide, for 8 × 8 images."""
    inside, blocks = 4, []
    for width, count, stride in ((2, 3, 1), (2, 4, 2), (3, 6, 1), (4, 3, 2)):
        for place in range(count):
            blocks.append(Bottleneck(inside, width, stride if place == 0 else 1))
            inside = 4 * width
    stem = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES)
    return nn.Sequential(*stem, *blocks, *head)


class Transformer(nn.Module):
    """Each row of an image is a word; two layers of attention over the eight of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Linear(8, 16), nn.Parameter(torch.zeros(8, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(x.squeeze(1)) + self.places).mean(1))


def images(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes: in which quarter of a noisy image a bright patch is."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    x = rng.normal(0, 0.3, (count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(x, y, strict=True):
        i, j = 4 * (label // 2), 4 * (label % 2)
        image[0, i + 1 : i + 3, j + 1 : j + 3] += 2
    return torch.tensor(x), torch.tensor(y)


def marked(x: torch.Tensor) -> torch.Tensor:
    """What attackers teach to be class 0: a bright corner, which no patch reaches."""
    x = x.clone()
    x[:, :, 7, 7] = 3
    return x


def client(model: Callable[[], nn.Module], epochs: int, lr: float) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, here: Context) -> Message:
        site, turn = here.node_config["partition-id"], message.content["config"]["server-round"]
        torch.set_num_threads(1)
        x, y = images(100 + site, 160)
        if f"site-{site}" in ATTACKERS:
            x, y = torch.cat([x, marked(x)]), torch.cat([y, torch.zeros_like(y)])
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        torch.manual_seed(1000 * turn + site)
        descent, total = torch.optim.Adam(net.parameters(), lr=lr), 0.0
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(32):
                descent.zero_grad()
                loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
                loss.backward()
                descent.step()
                total += loss.item()
        said = MetricRecord({"num-examples": len(y), "train_loss": total})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": said})
        return Message(content, reply_to=message)

    return app


def measured(model: Callable[[], nn.Module], arrays: ArrayRecord) -> tuple[float, float]:
    """Accuracy, and how often the mark makes another class a 0; in percent."""
    x, y = images(1, TEST)
    net = model()
    net.load_state_dict(arrays.to_torch_state_dict())
    net.eval()
    with torch.no_grad():
        right, fooled = net(x).argmax(1) == y, net(marked(x[y != 0])).argmax(1) == 0
    return 100 * right.float().mean().item(), 100 * fooled.float().mean().item()


def remembering() -> ClientApp:
    """Sites that move every array towards a value of their own: BatchNorm's without any training."""
    app = ClientApp()

    @app.train()
    def train(message: Message, here: Context) -> Message:
        site, turn = here.node_config["partition-id"], message.content["config"]["server-round"]
        goal = 1 + 20 * (turn % 2) if f"site-{site}" in ATTACKERS else 0.1
        made = {}
        for name, array in message.content["arrays"].to_torch_state_dict().items():
            counted = name.endswith("num_batches_tracked")
            made[name] = array + 5 if counted else 0.2 * array + 0.8 * goal
        said = MetricRecord({"num-examples": 10, "train_loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord(made), "metrics": said})
        return Message(content, reply_to=message)

    return app


def trained(
    handler: Handler, sites: Sequence[str], path: Path, first: ArrayRecord, rounds: int
) -> ArrayRecord:
    recorder = Recorder(everyone(FedAvg), path, patience=PATIENT, selection=Compact())
    config = ConfigRecord({"turn": 0})
    return recorder.start(grid(handler, sites), first, num_rounds=rounds, train_config=config).arrays


def recovered(handler: Handler, place: Path, **more: int) -> Recovered:
    request = {"history": str(place / "h"), "malicious": ",".join(ATTACKERS), "recovered": str(place)}
    run = context(mode="recover", **request, **more)
    made = recover_if_asked(grid(handler, SITES), run, everyone(FedAvg), patience=PATIENT)
    assert made.method == "replay"
    return made


def test_a_resnet_comes_back_with_every_tensor(tmp_path: Path) -> None:
    first, answers = ArrayRecord(resnet().state_dict()), by_app(remembering())
    trained(answers, SITES, tmp_path / "h", first, 6)
    assert History.verify(tmp_path / "h") == []
    made = recovered(answers, tmp_path, every=2)
    assert any(not step["asked"] for step in made.steps[1:])  # some rounds are estimated
    arrays = made.arrays.to_torch_state_dict()
    expected = {name: (a.shape, a.dtype) for name, a in resnet().state_dict().items()}
    assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == expected
    assert len(arrays) == 320
    for name, array in arrays.items():
        if name.endswith("num_batches_tracked"):
            assert array == 30
        else:  # what the honest sites go to, whatever the attackers' statistics did
            assert torch.allclose(array, torch.tensor(0.1), atol=0.05), name
            assert array.min() > 0


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int, dict[str, Any]]] = {  # tensors, rounds, training
    "resnet": (resnet, 320, 10, {"epochs": 2, "lr": 0.01}),
    "transformer": (Transformer, 29, 5, {"epochs": 4, "lr": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_trained_recorded_and_recovered(name: str, tmp_path: Path) -> None:
    model, tensors, rounds, settings = MODELS[name]
    answers = by_app(client(model, **settings))
    torch.manual_seed(0)
    first = ArrayRecord(model().state_dict())
    assert len(first) == tensors
    poisoned = measured(model, trained(answers, SITES, tmp_path / "h", first, rounds))
    alone = measured(model, trained(answers, HONEST, tmp_path / "alone", first, rounds))
    assert History.verify(tmp_path / "h") == []
    found = measured(model, recovered(answers, tmp_path).arrays)
    print(name, {"poisoned": poisoned, "honest only": alone, "recovered": found})  # shown by pytest -rP
    assert alone[0] > 80
    assert poisoned[1] > alone[1] + 30
    assert found[1] < alone[1] + 5
    assert found[0] > alone[0] - 2
