"""Synthetic trainings for detectors: clients with data of their own, some of them attackers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedcrab import Everything, History, Round, Updates
from fedcrab.seeds import rng_for

SIZE, CLIENTS, ROUNDS = 300, 20, 14
Attack = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def boosted(rng: np.random.Generator, own: np.ndarray, honest: np.ndarray) -> np.ndarray:
    return 5 * own


def flipped(rng: np.random.Generator, own: np.ndarray, honest: np.ndarray) -> np.ndarray:
    return -own


def noisy(rng: np.random.Generator, own: np.ndarray, honest: np.ndarray) -> np.ndarray:
    return own + 3 * np.linalg.norm(own) / np.sqrt(SIZE) * rng.normal(size=SIZE)


def cloned(rng: np.random.Generator, own: np.ndarray, honest: np.ndarray) -> np.ndarray:
    return honest.mean(axis=0) - 0.5 * honest.std(axis=0)


ATTACKS: dict[str, Attack] = {"boosted": boosted, "flipped": flipped, "noisy": noisy, "cloned": cloned}


def names(count: int = CLIENTS) -> list[str]:
    return [f"c{i}" for i in range(count)]


def gathering(
    path: Path,
    attack: Attack | None = None,
    bad: frozenset[str] = frozenset(),
    *,
    seed: int = 0,
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
    share: float = 1.0,
    spread: float = 1.0,
    selection: object = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
    see: Callable[[np.ndarray, Updates], None] = lambda model, updates: None,
) -> History:
    """Clients walk towards goals of their own around a shared one; the loss is the distance to that one."""
    shared = rng_for(seed, "goal").normal(size=SIZE)
    goals = {c: shared + spread * rng_for(seed, "goal", c).normal(size=SIZE) for c in names(clients)}
    model = np.zeros(SIZE, np.float32)
    selection = selection or Everything()
    with History.create(
        path, model, initial_loss=loss(model, shared), selection=selection, seed=0
    ) as history:
        for t in range(rounds):
            updates = answers(model, goals, attack, bad, seed, t, share, sizes)
            see(model, updates)
            step = np.average(updates.vectors, axis=0, weights=updates.weights).astype(np.float32)
            history.record(Round(t, model, updates, step, loss(model + step, shared), 0.1))
            model = model + step
    return History.open(path)


def answers(model, goals, attack, bad, seed, t, share, sizes) -> Updates:
    present = [c for c in goals if rng_for(seed, "present", t, c).random() < share] or [*goals]
    own = {
        c: 0.2 * (goals[c] - model) + 0.1 * rng_for(seed, "noise", t, c).normal(size=SIZE) for c in present
    }
    honest = np.array([own[c] for c in present if c not in bad] or [np.zeros(SIZE)])
    sent = {
        c: attack(rng_for(seed, "attack", t, c), own[c], honest) if attack and c in bad else own[c]
        for c in present
    }
    usual = {c: 50 + int(rng_for(seed, "size", c).integers(50)) for c in sent}
    return Updates.of({c: (v, sizes.get(c, usual[c])) for c, v in sent.items()})


def loss(model: np.ndarray, goal: np.ndarray) -> float:
    return float(np.mean((model - goal) ** 2))
