"""A small transformer, really trained with two attackers of five, recorded, and recovered on its clients.

Beside it, the same training without the attackers.
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
from loopback import by_app
from scenes import context, everyone, grid
from torch import nn

from fedcrab import Compact, History
from fedcrab.flower import Patience, Recorder, recover_if_asked

PATIENT = Patience(deadline=3600.0, attempts=1, poll=0.01)
SITES, ATTACKERS = [f"site-{i}" for i in range(5)], ("site-1", "site-4")
HONEST = [site for site in SITES if site not in ATTACKERS]
CLASSES, TEST = 4, 400


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


MODELS: dict[str, tuple[Callable[[], nn.Module], int, dict[str, Any]]] = {  # tensors, of the training
    "transformer": (Transformer, 29, {"epochs": 4, "lr": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_trained_recorded_and_recovered(name: str, tmp_path: Path) -> None:
    model, tensors, settings = MODELS[name]
    answers = by_app(client(model, **settings))
    torch.manual_seed(0)
    first = ArrayRecord(model().state_dict())
    assert len(first) == tensors

    def trained(sites: Sequence[str], path: Path) -> ArrayRecord:
        recorder = Recorder(everyone(FedAvg), path, patience=PATIENT, selection=Compact())
        config = ConfigRecord({"turn": 0})
        return recorder.start(grid(answers, sites), first, num_rounds=5, train_config=config).arrays

    poisoned = measured(model, trained(SITES, tmp_path / "h"))
    alone = measured(model, trained(HONEST, tmp_path / "alone"))
    assert History.verify(tmp_path / "h") == []
    request = {"history": str(tmp_path / "h"), "malicious": ",".join(ATTACKERS), "recovered": str(tmp_path)}
    made = recover_if_asked(
        grid(answers, SITES), context(mode="recover", **request), everyone(FedAvg), patience=PATIENT
    )
    assert made.method == "replay"
    found = measured(model, made.arrays)
    print(name, {"poisoned": poisoned, "honest only": alone, "recovered": found})  # shown by pytest -rP
    assert alone[0] > 80
    assert poisoned[1] > alone[1] + 30
    assert found[1] < alone[1] + 5
    assert found[0] > alone[0] - 2
