"""Small trainings, recorded, and fleets that can be followed or that misbehave on purpose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcrab import History, Layout, Round, Updates
from fedcrab.aggregate import fedavg
from fedcrab.aggregate.mean import with_buffers
from fedcrab.recover import Step
from fedcrab.seeds import rng_for
from fedcrab.types import Fleet

Answers = Mapping[str, tuple[object, float]]


@dataclass(frozen=True)
class Answering:
    """A fleet that is one function: (model, client, t, epochs) -> (update, examples), or None."""

    answer: Callable
    asked: list = field(default_factory=list)  # (round, clients, epochs) of each call

    def train(self, model, clients, *, round, epochs=None) -> Updates:
        self.asked.append((round, tuple(clients), epochs))
        found = {c: self.answer(model, c, round, epochs) for c in clients}
        return Updates.of({c: a for c, a in found.items() if a is not None})

    def client_rounds(self) -> int:
        return sum(len(clients) for _, clients, _ in self.asked)


@dataclass(frozen=True)
class Quadratics:
    """Client c descends ½(w - a)ᵀH(w - a), with an H and an a of its own; the ill ones far away."""

    size: int
    ill: frozenset[str] = frozenset()
    steps: int = 3
    rate: float = 0.1
    spread: float = 0.2  # how much the clients' Hessians differ

    def answer(self, model, client, t, epochs=None):
        hessian, goal = self.task(client)
        local = model.astype(np.float64)
        for _ in range(epochs or self.steps):
            local = local - self.rate * hessian @ (local - goal)
        return local - model, 10 + len(client)

    def task(self, client: str) -> tuple[np.ndarray, np.ndarray]:
        shared, own = rng_for(3, "shared"), rng_for(3, client)
        axes, _ = np.linalg.qr(shared.normal(size=(self.size, self.size)))
        values = shared.uniform(0.5, 4, self.size) * np.exp(self.spread * own.normal(size=self.size))
        goal = shared.normal(size=self.size) + 0.3 * own.normal(size=self.size)
        return axes @ np.diag(values) @ axes.T, goal + (30 if client in self.ill else 0)


@dataclass(frozen=True)
class SoftmaxProbe:
    """A server's own inputs, without labels, for softmax regressions of any size."""

    count: int = 40

    def distil(self, student, teacher, *, temperature, rate, epoch):
        classes = 3 if len(student) % 3 == 0 else 2
        x = rng_for(4, epoch).normal(size=(self.count, len(student) // classes))
        x[:, -1] = 1
        weights = (m.astype(np.float64).reshape(-1, classes) for m in (student, teacher))
        own, goal = (_soft(x @ w / temperature) for w in weights)
        return (student - rate * temperature * (x.T @ (own - goal) / len(x)).ravel()).astype(np.float32)


def _soft(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def record(
    path: Path,
    fleet: Fleet,
    clients: list[str],
    rounds: int,
    selection: object,
    *,
    model: np.ndarray,
    layout: Layout | None = None,
    share: float = 1.0,
) -> History:
    """Federated averaging, recorded."""
    rule = with_buffers(fedavg(), layout or Layout.flat(len(model)))
    with History.create(path, model, initial_loss=1.0, selection=selection, layout=layout, seed=0) as history:
        for t in range(rounds):
            present = [c for c in clients if rng_for(5, t, c).random() < share]
            updates = fleet.train(model, present, round=t) if present else nobody(len(model))
            step = rule(updates.vectors, updates.weights) if present else np.zeros_like(model)
            divergence = float(rng_for(5, "divergence", t).random())
            history.record(Round(t, model, updates, step, 0.97**t, divergence))
            model = model + step
    return History.open(path)


def nobody(size: int) -> Updates:
    return Updates((), np.zeros((0, size), np.float32), np.zeros(0))


def scripted(
    path: Path, rounds: list[Answers], selection: object, *, layout: Layout | None = None, **settings: int
) -> History:
    """A history of exactly these updates, from a model of zeros."""
    size = len(next(iter(rounds[0].values()))[0])
    told = Answering(lambda model, client, t, epochs: rounds[t].get(client))
    model = np.zeros(size, np.float32)
    rule = with_buffers(fedavg(), layout or Layout.flat(size))
    fixed = {"initial_loss": 1.0, "selection": selection, "layout": layout, "seed": 0}
    with History.create(path, model, **fixed, **settings) as history:
        for t, answers in enumerate(rounds):
            updates = told.train(model, sorted(answers), round=t)
            step = rule(updates.vectors, updates.weights) if answers else np.zeros_like(model)
            history.record(Round(t, model, updates, step, 0.97**t, 0.1))
            model = model + step
    return History.open(path)


def bits(steps: list[Step]) -> list[tuple[object, ...]]:
    """Everything of these steps, to be compared exactly."""
    return [(s.to_table(), s.model.tobytes()) for s in steps]
