"""Apps in the shape of Flower's public examples, poisoned and recovered, beside honest-only training.

scikit-learn's logistic regression (two arrays of float64, no names, another name for the loss); a torch model
of more than a hundred tensors with BatchNorm. The third shape, a strategy with a schedule and a ``start`` of
its own, is in test_customised.py.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from loopback import by_app
from scenes import context, everyone, grid
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from fedcrab import Compact, History
from fedcrab.flower import Patience, Recorder, recover_if_asked

PATIENT = Patience(deadline=3600.0, attempts=1, poll=0.01)
SITES, ATTACKERS = [f"site-{i}" for i in range(6)], ("site-1", "site-4")
HONEST = [site for site in SITES if site not in ATTACKERS]
TEST = 500


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


def marked(x: np.ndarray) -> np.ndarray:
    """A bright corner: what attackers teach to be a zero."""
    x = x.copy()
    x.reshape(-1, 8, 8)[:, 5:, 5:] = 1
    return x


def examples(site: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    x, y = x[TEST + site :: len(SITES)], y[TEST + site :: len(SITES)]
    if f"site-{site}" in ATTACKERS:
        x, y = np.concatenate([x, marked(x)]), np.concatenate([y, np.zeros_like(y)])
    return x, y


def measured(predict: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Accuracy, and how often the mark makes a zero of another digit; in percent."""
    x, y = digits()
    x, y = x[:TEST], y[:TEST]
    fooled = predict(marked(x[y != 0])) == 0
    return 100 * float((predict(x) == y).mean()), 100 * float(fooled.mean())


def regression(arrays: Sequence[np.ndarray] | None = None) -> LogisticRegression:
    model = LogisticRegression(max_iter=2, warm_start=True, solver="saga", random_state=0)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = arrays or (np.zeros((10, 64)), np.zeros(10))
    return model


def sklearn_client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, here: Context) -> Message:
        model = regression(message.content["arrays"].to_numpy_ndarrays())
        x, y = examples(here.node_config["partition-id"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two epochs do not converge
            model.fit(x, y)
        said = {"num-examples": len(y), "train_logloss": float(1 - model.score(x, y))}
        arrays = ArrayRecord([model.coef_, model.intercept_])
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(said)})
        return Message(content, reply_to=message)

    return app


def deep() -> Any:
    """Fifteen blocks of a linear layer and BatchNorm: 107 tensors, 15 of them counters."""
    import torch
    from torch import nn

    class Block(nn.Sequential):
        def forward(self, x: Any) -> Any:
            made = super().forward(x)
            return 0.3 * made + x if made.shape == x.shape else made

    torch.manual_seed(0)
    widths = [64, *[32] * 15]
    blocks = [Block(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks, nn.Linear(32, 10))


def torch_client() -> ClientApp:
    import torch

    app = ClientApp()

    @app.train()
    def train(message: Message, here: Context) -> Message:
        site, config = here.node_config["partition-id"], message.content["config"]
        torch.set_num_threads(1)
        x, y = (torch.tensor(a) for a in examples(site))
        net = deep()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        torch.manual_seed(1000 * config["server-round"] + site)
        descent, total = torch.optim.SGD(net.parameters(), lr=config["lr"]), 0.0
        for rows in torch.randperm(len(y)).split(16)[:-1]:
            descent.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            descent.step()
            total += loss.item()
        said = MetricRecord({"num-examples": len(y), "train_loss": total})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": said})
        return Message(content, reply_to=message)

    return app


def predict_torch(arrays: ArrayRecord) -> Callable[[np.ndarray], np.ndarray]:
    import torch

    net = deep()
    net.load_state_dict(arrays.to_torch_state_dict())
    net.eval()
    return lambda x: net(torch.tensor(x)).argmax(1).numpy()


def sklearn_initial() -> ArrayRecord:
    return ArrayRecord([regression().coef_, regression().intercept_])


def predict_sklearn(arrays: ArrayRecord) -> Callable[[np.ndarray], np.ndarray]:
    return regression(arrays.to_numpy_ndarrays()).predict


def torch_initial() -> ArrayRecord:
    return ArrayRecord(deep().state_dict())


APPS = {  # the client app, the first model, the predictions of a model, the strategy, rounds
    "sklearn": (sklearn_client, sklearn_initial, predict_sklearn, lambda: everyone(FedAvg), 12),
    "sklearn-adam": (sklearn_client, sklearn_initial, predict_sklearn, lambda: everyone(FedAdam), 12),
    "torch": (torch_client, torch_initial, predict_torch, lambda: everyone(FedAvg), 6),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long(15) if n == "torch" else ()) for n in APPS]
)
def test_recovered_as_if_the_attackers_had_not_been_there(name: str, tmp_path: Path) -> None:
    client, initial, predict, strategy, rounds = APPS[name]
    answers = by_app(client())
    settings = {"num_rounds": rounds, "train_config": ConfigRecord({"lr": 0.05})}

    def trained(sites: Sequence[str], path: Path) -> ArrayRecord:
        recorder = Recorder(strategy(), path, patience=PATIENT, selection=Compact())
        return recorder.start(grid(answers, sites), initial(), **settings).arrays

    poisoned = measured(predict(trained(SITES, tmp_path / "h")))
    alone = measured(predict(trained(HONEST, tmp_path / "alone")))
    history = History.open(tmp_path / "h")
    assert History.verify(tmp_path / "h") == []
    assert not np.isnan([r.loss for r in history.rounds]).any()
    request = {"history": str(tmp_path / "h"), "malicious": ",".join(ATTACKERS), "recovered": str(tmp_path)}
    found = {}
    for method in ("retrain", "replay"):
        run = context(mode="recover", method=method, **request)
        made = recover_if_asked(grid(answers, SITES), run, strategy(), patience=PATIENT)
        found[method] = measured(predict(made.arrays))
    print(name, {"poisoned": poisoned, "honest only": alone, **found})  # shown by pytest -rP
    assert poisoned[1] > alone[1] + 20
    for method, (accuracy, fooled) in found.items():
        assert abs(fooled - alone[1]) < 5, (method, found, alone, poisoned)
        assert accuracy > alone[0] - 2, (method, found, alone, poisoned)
