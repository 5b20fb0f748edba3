"""Fleets small enough to follow by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedcrab.seeds import rng_for
from fedcrab.types import Updates


@dataclass(frozen=True)
class FixedFleet:
    """Answers the same update whatever the model: {client: (vector, examples)}."""

    answers: Mapping

    def train(self, model, clients, *, round, epochs=None):
        return Updates.of({c: self.answers[c] for c in clients})


@dataclass(frozen=True)
class SoftmaxFleet:
    """Softmax regression by gradient descent; shows its examples."""

    shards: Mapping  # client -> (images, labels)
    classes: int
    rate: float = 0.5
    epochs: int = 1
    asked: list = field(default_factory=list)  # the epochs of each call

    @property
    def clients(self):
        return tuple(sorted(self.shards))

    @property
    def size(self):
        features = np.prod(next(iter(self.shards.values()))[0].shape[1:])
        return int(features + 1) * self.classes

    def train(self, model, clients, *, round, epochs=None):
        self.asked.append(epochs)
        return Updates.of({c: self._answer(model, c, epochs or self.epochs) for c in clients})

    def examples(self, client):
        return self.shards[client]

    def with_examples(self, replaced):
        return replace(self, shards={**self.shards, **replaced})

    def _answer(self, model, client, epochs):
        images, labels = self.shards[client]
        x = with_bias(images)
        truth, local = np.eye(self.classes)[labels], model.astype(np.float64).reshape(-1, self.classes)
        for _ in range(epochs):
            local = local - self.rate * x.T @ (softmax(x @ local) - truth) / len(x)
        return local.ravel() - model, len(labels)


def with_bias(images):
    flat = images.reshape(len(images), -1).astype(np.float64)
    return np.hstack([flat, np.ones((len(flat), 1))])


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def predict(model, images, classes):
    return (with_bias(images) @ model.astype(np.float64).reshape(-1, classes)).argmax(axis=1)


def random_fleet(clients="abcdefg", examples=12, classes=3, side=4):
    """Clients with random small images, (n, 1, side, side)."""
    shards = {}
    for c in clients:
        rng = rng_for(7, "examples", c)
        images = rng.random((examples, 1, side, side)).astype(np.float32)
        shards[c] = images, rng.integers(0, classes, examples)
    return SoftmaxFleet(shards, classes)


def run(fleet, size, clients, rounds, aggregate, rounds_from=0):
    """The model after some rounds of federated training."""
    model = np.zeros(size, np.float32)
    for t in range(rounds_from, rounds_from + rounds):
        updates = fleet.train(model, clients, round=t)
        model = model + aggregate(updates.vectors, updates.weights)
    return model
