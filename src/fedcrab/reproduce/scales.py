"""How much of the paper's evaluation is run: its share of the examples, its rounds, its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAPER_DATASETS = ("mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Scale:
    """A size of the evaluation, and what has to be said of numbers that come from it."""

    name: str
    says: str
    base: str
    set: Mapping[str, Any] = field(default_factory=dict)
    datasets: tuple[str, ...] = PAPER_DATASETS
    fractions: tuple[float, ...] = (0.1, 0.25, 0.5)
    seeds: tuple[int, ...] = (0, 1, 2)
    lambdas: tuple[float, ...] = (0.3, 0.5, 0.6, 0.7, 0.9)
    deltas: tuple[float, ...] = (0.3, 0.5, 0.7, 0.8, 1.0)
    betas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)

    def first(self, dataset: str) -> str:
        """The data set that stands for one of the paper's."""
        return dataset if dataset in self.datasets else self.datasets[0]


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "scikit-learn's digits in place of the three data sets, 10 clients, 6 rounds, an MLP, one seed: "
            "shows that everything runs, says nothing about the paper",
            "digits",
            {"rounds": 6, "clients.count": 10, "local.learning_rate": 0.2, "attack.settings.boost": 1.0},
            datasets=("digits",),
            fractions=(0.25, 0.5),
            seeds=(0,),
            lambdas=(0.3, 0.6),
            deltas=(0.3, 0.7),
            betas=(0.1, 0.9),
        ),
        Scale(
            "laptop",
            "20 clients of 600 examples (the paper: all, 3,000 or 2,500 a client), 40 rounds of 5 local "
            "epochs, batches of 64, an MLP of 128 hidden units, three seeds; five times the paper's learning "
            "rate (0.025), since there are a fifth as many steps",
            "paper-mnist",
            {"model": "mlp", "data.examples_per_client": 600, "local.learning_rate": 0.025},
        ),
        Scale(
            "full",
            "20 clients with all examples, 40 rounds of 5 local epochs, batches of 64, learning rate 0.005, "
            "as in the paper; a small CNN (the paper does not say which model), three seeds",
            "paper-mnist",
        ),
    )
}
