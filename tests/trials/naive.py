"""Crab's decisions by plain loops over full vectors: slow, obvious, and independent of the package."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from trials.trainings import Training


@dataclass
class NaiveRound:
    """A round with every vector still there."""

    vectors: dict[str, np.ndarray]
    weights: dict[str, float]
    selected: list[str]


def select_clients(training: Training) -> list[NaiveRound]:
    """The clients nearest to the aggregate, ties to the smaller id."""
    rounds = []
    for r in training.rounds:
        vectors = {c: v.astype(np.float64) for c, v in zip(r.updates.clients, r.updates.vectors, strict=True)}
        weights = dict(zip(r.updates.clients, r.updates.weights.tolist(), strict=True))
        goal = r.aggregate.astype(np.float64)
        scores = {}
        for c, v in vectors.items():
            scale = np.linalg.norm(v) * np.linalg.norm(goal)
            scores[c] = v @ goal / scale if scale > 0 else -1.0
        count = max(1, round(training.selection.clients * len(vectors))) if vectors else 0
        ranked = sorted(vectors, key=lambda c: (-scores[c], c))
        rounds.append(NaiveRound(vectors, weights, sorted(ranked[:count])))
    return rounds


def keep_rounds(training: Training) -> tuple[list[list[int]], list[int]]:
    """The windows, and the rounds kept of them."""
    s, reference = training.selection, training.initial_loss
    windows: list[list[int]] = []
    window: list[int] = []
    kept, chosen_so_far, seen = set(), 0, 0
    for r in training.rounds:
        window.append(r.index)
        fell = isfinite(r.loss) and isfinite(reference) and r.loss <= (1 - s.alpha) * reference
        last = r.index == len(training.rounds) - 1
        if not (fell or len(window) == s.max_window or last):
            continue
        seen += len(window)
        quota = round(s.rounds * seen) - chosen_so_far
        best = sorted(window, key=lambda t: (-training.rounds[t].divergence, t))[:quota]
        kept |= set(best)
        chosen_so_far += len(best)
        reference = r.loss if isfinite(r.loss) else reference
        windows.append(window)
        window = []
    return windows, sorted(kept | {0})


def mean(round: NaiveRound, clients: list[str]) -> np.ndarray:
    """Σ p_c·u_c, p renormalised over these clients."""
    total = sum(round.weights[c] for c in clients)
    result = 0
    for c in clients:
        result = result + round.weights[c] / total * round.vectors[c]
    return result


def influence(
    round: NaiveRound, clients: list[str], malicious: frozenset[str], against: np.ndarray | float
) -> tuple[float, float]:
    """s and φ of one round."""
    if not clients:
        return 0.0, 0.0
    everyone = mean(round, clients) - against
    honest = [c for c in clients if c not in malicious]
    if not honest:
        return float(np.linalg.norm(everyone)), 0.0
    theirs = mean(round, honest) - against
    if len(honest) == len(clients):
        return 0.0, float(np.linalg.norm(theirs))
    return float(np.linalg.norm(everyone - theirs)), float(np.linalg.norm(theirs))


def decide(
    training: Training, beta: float, evidence: str, rule: str, since: dict[str, int] | None = None
) -> tuple[list[int], list[float], list[float], int]:
    """The candidates, S, Φ and j*."""
    rounds, (_, kept) = select_clients(training), keep_rounds(training)
    found: dict[int, tuple[float, float]] = {}
    previous: np.ndarray | float = 0.0
    for t, r in enumerate(rounds):
        bad = frozenset(c for c in training.malicious if t >= (since or {}).get(c, 0))
        if evidence == "all":
            found[t] = influence(r, sorted(r.vectors), bad, 0.0)
        elif t in kept:
            found[t] = influence(r, r.selected, bad, previous)
            previous = mean(r, r.selected) if r.selected else 0.0
    sensitivity = [sum(s for t, (s, _) in found.items() if t < j) for j in kept]
    threshold = [beta * sum(phi for t, (_, phi) in found.items() if t < j) for j in kept]
    fine = [j for j in range(len(kept)) if sensitivity[j] <= threshold[j]]
    if rule == "last":
        return kept, sensitivity, threshold, max(fine)
    best = 0
    while best + 1 < len(kept) and best + 1 in fine:
        best += 1
    return kept, sensitivity, threshold, best
