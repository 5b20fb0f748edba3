"""Random trainings with all that makes them awkward: partial participation, unequal weights, copies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from fedcrab import Round, Selective, Updates


@dataclass(frozen=True, repr=False)
class Training:
    """A recorded training, vectors and all."""

    initial_model: np.ndarray
    initial_loss: float
    rounds: list[Round]
    selection: Selective = field(default_factory=Selective)
    malicious: frozenset[str] = frozenset()
    made_with: str = ""  # the arguments of :func:`training`

    def __repr__(self) -> str:
        """Short, and enough to make it again."""
        return f"training(**{self.made_with})"


def training(
    *,
    seed: int = 0,
    rounds: int = 12,
    clients: int = 6,
    size: int = 20,
    taking_part: float = 1.0,
    kind: str = "spread",
    losses: str = "falling",
    attackers: int = 2,
    selection: Selective | None = None,
) -> Training:
    """``kind`` says how the clients' updates lie to each other; see :func:`_vectors`."""
    made_with = str(locals())
    rng = np.random.default_rng(seed)
    names = [str(i) for i in range(clients)]
    malicious = frozenset(rng.permutation(names)[:attackers].tolist())
    model = start = rng.normal(size=size).astype(np.float32)
    weights = rng.integers(1, 1000, clients).astype(float)
    done = []
    for index in range(rounds):
        present = [i for i in range(clients) if rng.random() < taking_part]
        vectors = _vectors(rng, kind, clients, size, [n in malicious for n in names])[present]
        updates = Updates(tuple(names[i] for i in present), vectors, weights[present])
        aggregate = _mean(updates) if present else np.zeros(size, np.float32)
        loss = _loss(rng, losses, index)
        done.append(Round(index, model, updates, aggregate, loss, float(rng.exponential())))
        model = model + aggregate
    return Training(start, 2.3, done, selection or Selective(), malicious, made_with)


def _mean(updates: Updates) -> np.ndarray:
    shares = updates.weights / updates.weights.sum()
    return (shares @ updates.vectors.astype(float)).astype(np.float32)


def _vectors(rng: np.random.Generator, kind: str, clients: int, size: int, bad: list[bool]) -> np.ndarray:
    spread = rng.normal(size=(clients, size))
    if kind == "close":  # everybody sends nearly the same
        spread = rng.normal(size=size) + 1e-5 * spread
    elif kind == "mimic":  # attackers send the honest mean, but for a trace
        honest = spread[~np.array(bad)].mean(axis=0) if not all(bad) else spread.mean(axis=0)
        spread[bad] = honest + 1e-5 * rng.normal(size=(sum(bad), size))
    elif kind == "sybils":  # attackers send copies of one vector, some of nothing at all
        spread[bad] = spread[0]
        spread[rng.random(clients) < 0.1] = 0
    elif kind == "boosted":
        spread[bad] *= 1e4
    return spread.astype(np.float32)


def _loss(rng: np.random.Generator, losses: str, index: int) -> float:
    if losses == "odd" and rng.random() < 0.3:
        return [float("nan"), float("inf"), float("-inf"), 0.0][rng.integers(4)]
    if losses == "stalled":
        return 2.3
    return 2.3 * 0.95 ** (index + 1) + 0.1 * rng.random()


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """Any training of a size that a plain loop can follow."""
    clients = draw(st.integers(2, 7))
    selection = Selective(
        alpha=draw(st.sampled_from([0.0, 0.05, 0.1, 0.3])),
        rounds=draw(st.sampled_from([0.1, 0.35, 0.5, 0.6, 1.0])),
        clients=draw(st.sampled_from([0.1, 0.5, 0.7, 1.0])),
        max_window=draw(st.sampled_from([1, 2, 4, 10])),
    )
    return training(
        seed=draw(st.integers(0, 2**32)),
        rounds=draw(st.integers(1, 14)),
        clients=clients,
        size=draw(st.sampled_from([1, 2, 5, 40, 700])),
        taking_part=draw(st.sampled_from([1.0, 0.8, 0.3])),
        kind=draw(st.sampled_from(["spread", "close", "mimic", "sybils", "boosted"])),
        losses=draw(st.sampled_from(["falling", "odd", "stalled"])),
        attackers=draw(st.integers(1, clients - 1)),
        selection=selection,
    )
