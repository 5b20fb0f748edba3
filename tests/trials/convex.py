"""Federated problems with known constants, convex or nearly, and random trainings on them under attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcrab import Compact, History, Round, Selective, Updates
from fedcrab.aggregate import fedavg
from fedcrab.certificate import Assumptions
from fedcrab.recover import Answers

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]  # w -> (f(w), ∇f(w))


@dataclass
class Client:
    """One client's loss, and how curved it is."""

    loss: Callable[
        [np.ndarray, int], tuple[float, np.ndarray]
    ]  # (w, round): sampling may depend on the round
    examples: float


@dataclass
class Problem:
    """Clients with losses of curvature [μ, L], who descend for some steps a round."""

    clients: dict[str, Client]
    mu: float
    smoothness: float
    rate: float
    steps: int
    size: int
    full_batch: bool
    steepest: float = 0.0  # the longest gradient that anybody ever computed

    @property
    def convex(self) -> bool:
        """Whether local training stretches no distance: κ ≤ 1."""
        return self.mu >= 0 and self.rate * self.smoothness <= 2

    def answer(self, model: np.ndarray, client: str, t: int) -> np.ndarray:
        local = model.astype(np.float64)
        for _ in range(self.steps):
            _, slope = self.clients[client].loss(local, t)
            self.steepest = max(self.steepest, float(np.linalg.norm(slope)))
            local = local - self.rate * slope
        return local - model

    def train(self, model, clients: Sequence[str], *, round: int, epochs=None) -> Updates:
        return Updates.of({c: (self.answer(model, c, round), self.clients[c].examples) for c in clients})

    def honest_loss(self, w: np.ndarray, honest: Sequence[str]) -> float:
        weights = np.array([self.clients[c].examples for c in honest])
        return float(weights @ [self.clients[c].loss(w, 0)[0] for c in honest] / weights.sum())

    def assumptions(self, **others) -> Assumptions:
        known = {"rate": self.rate, "fewest_steps": self.steps, "most_steps": self.steps}
        curved = {"convexity": self.mu, "smoothness": self.smoothness, "full_batch": self.full_batch}
        return Assumptions(**{**known, **curved, **others})


def quadratics(rng: np.random.Generator, count: int) -> Problem:
    """½(w - a)ᵀH(w - a), each client with an H and an a of its own; a may be drawn anew in each round."""
    size, sampled = int(rng.integers(1, 9)), bool(rng.random() < 0.3)
    mu = float(rng.choice([0.0, 0.05, 0.5, -0.1]))  # below 0 it is not convex
    smoothness = float(rng.choice([0.5, 1.0, 4.0]))
    clients = {}
    for name in map(str, range(count)):
        axes, _ = np.linalg.qr(rng.normal(size=(size, size)))
        hessian = axes @ np.diag(rng.uniform(mu, smoothness, size)) @ axes.T
        goal, salt = rng.normal(size=size) * rng.choice([0.1, 1, 10]), int(rng.integers(2**31))

        def loss(w, t, hessian=hessian, goal=goal, salt=salt):
            drawn = np.random.default_rng((salt, t)).normal(size=size) if sampled else 0
            off = w - goal - drawn
            return float(off @ hessian @ off / 2), hessian @ off

        clients[name] = Client(loss, float(rng.integers(1, 100)))
    rate = float(rng.uniform(0.05, rng.choice([0.5, 1.99, 2.3]))) / smoothness
    return Problem(clients, mu, smoothness, rate, int(rng.integers(1, 5)), size, not sampled)


def softmax_regressions(rng: np.random.Generator, count: int) -> Problem:
    """Cross-entropy of a linear model with an L2 term; its Hessian is at most ½·λmax(XᵀX/n) + λ."""
    classes, features = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    ridge = float(rng.choice([0.0, 0.01, 0.1]))
    size, clients, smoothness = classes * (features + 1), {}, 0.0
    for name in map(str, range(count)):
        n = int(rng.integers(3, 30))
        x = np.hstack([rng.normal(size=(n, features)) * rng.choice([0.3, 1, 3]), np.ones((n, 1))])
        y = np.eye(classes)[rng.integers(0, classes, n)]
        smoothness = max(smoothness, float(np.linalg.eigvalsh(x.T @ x / n)[-1]) / 2 + ridge)

        def loss(w, t, x=x, y=y):
            logits = x @ w.reshape(features + 1, classes)
            shifted = logits - logits.max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            slope = x.T @ (np.exp(log_p) - y) / len(x)
            return -float((y * log_p).sum(axis=1).mean()) + ridge / 2 * float(
                w @ w
            ), slope.ravel() + ridge * w

        clients[name] = Client(loss, float(n))
    rate = float(rng.uniform(0.05, rng.choice([0.5, 1.99, 2.3]))) / smoothness
    return Problem(clients, ridge, smoothness, rate, int(rng.integers(1, 5)), size, True)


@dataclass
class Attacked:
    """A fleet in which some clients send whatever they like."""

    problem: Problem
    malicious: frozenset[str]
    kind: str
    rng: np.random.Generator
    scale: float = field(default=1.0)
    since: int = 0

    def train(self, model, clients: Sequence[str], *, round: int, epochs=None) -> Updates:
        honest = [c for c in clients if c not in self.malicious]
        sent = {c: self.problem.answer(model, c, round) for c in clients}
        middle = np.mean([sent[c] for c in honest], axis=0) if honest else np.zeros(len(model))
        for c in clients:
            if c in self.malicious and round >= self.since:
                sent[c] = self._poison(sent[c], middle)
        return Updates.of({c: (u, self.problem.clients[c].examples) for c, u in sent.items()})

    def _poison(self, own: np.ndarray, middle: np.ndarray) -> np.ndarray:
        random = self.rng.normal(size=len(own))
        return {
            "flip": -self.scale * own,
            "noise": self.scale * random,
            "boost": own + 100 * self.scale * random,
            "mimic": middle + 1e-4 * random,
            "push": np.full(len(own), self.scale),
            "nothing": np.zeros(len(own)),
        }[self.kind]


@dataclass
class Training:
    """A recorded training, every model of it still there."""

    problem: Problem
    malicious: frozenset[str]
    history: History
    models: list[np.ndarray]
    since: int = 0
    sent: list[Answers] = field(default_factory=list)  # what a history that keeps every update would have


def random_training(
    seed: int, path: Path, make=None, late: bool = False, bits: int | None = None
) -> Training:
    """Generator T: anything from a gentle training with all clients to a wild one with few of them."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    problem = (make or rng.choice([quadratics, softmax_regressions]))(rng, count)
    names = list(problem.clients)
    malicious = frozenset(rng.permutation(names)[: rng.integers(1, count)].tolist())
    kind = str(rng.choice(["flip", "noise", "boost", "mimic", "push", "nothing"]))
    fleet = Attacked(problem, malicious, kind, rng, float(rng.choice([0.01, 1, 5])))
    share, rounds = float(rng.choice([1.0, 1.0, 0.6])), int(rng.integers(2, 13))
    fleet.since = int(np.random.default_rng((seed, 2)).integers(rounds)) if late else 0
    start = rng.normal(size=problem.size).astype(np.float32)
    kept = {"rounds": float(rng.choice([0.3, 0.6, 1.0])), "clients": float(rng.choice([0.5, 0.7, 1.0]))}
    limit = int(rng.choice([1000, 1000, 1000, 1]))  # some ledgers are sketched
    return _recorded(path, fleet, start, _selection(kept, bits), rounds, share, limit)


def long_training(seed: int, path: Path, bits: int | None = None) -> Training:
    """Generator Y: ten clients, 15 to 30 rounds, one to four attackers, convex, full batches, κ ≤ 1."""
    rng = np.random.default_rng((seed, 2))
    make = rng.choice([quadratics, softmax_regressions])
    problem = make(rng, 10)
    while not problem.convex or not problem.full_batch:
        problem = make(rng, 10)
    malicious = frozenset(rng.permutation(list(problem.clients))[: rng.integers(1, 5)].tolist())
    kind = str(rng.choice(["flip", "noise", "boost", "push"]))
    fleet = Attacked(problem, malicious, kind, rng, float(rng.choice([0.01, 1, 5])))
    start, rounds = rng.normal(size=problem.size).astype(np.float32), int(rng.integers(15, 31))
    kept = {"rounds": 0.6, "clients": 0.7}
    return _recorded(path, fleet, start, _selection(kept, bits), rounds, 1.0, 1000)


def _selection(kept: dict[str, float], bits: int | None) -> Selective | Compact:
    """Crab's, which keeps no update, or the same with every update in so many bits."""
    return Selective(**kept) if bits is None else Compact(bits=bits, **kept)


def _recorded(
    path: Path,
    fleet: Attacked,
    start: np.ndarray,
    selection: Selective | Compact,
    rounds: int,
    share: float,
    limit: int,
) -> Training:
    """A training in which each client takes part with this chance, from its beginning to its end."""
    problem, rng, models, sent = fleet.problem, fleet.rng, [start], []
    with History.create(
        path, start, initial_loss=1.0, selection=selection, seed=0, gram_limit=limit
    ) as history:
        for t in range(rounds):
            present = [c for c in problem.clients if rng.random() < share or t == 0]
            updates = fleet.train(models[-1], present, round=t)
            step = fedavg()(updates.vectors, updates.weights) if present else np.zeros_like(start)
            updates = (
                updates if present else Updates((), np.zeros((0, problem.size), np.float32), np.zeros(0))
            )
            history.record(Round(t, models[-1], updates, step, 0.93**t, float(rng.random())))
            sent.append(Answers(t, models[-1], updates))
            models.append(models[-1] + step)
    return Training(problem, fleet.malicious, History.open(path), models, fleet.since, sent)
