"""How far each proved bound of a recovery's distance lies above the distance itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedcrab import plan
from fedcrab.certificate import SOUND, certify
from fedcrab.recover import CRAB_PRESETS, Answers, RecordedFleet, ask_at, crab, replay, retrain
from fedcrab.recover.cost import MeteredFleet
from fedcrab.rollback.decision import PRESETS
from trials.convex import Problem, Training

EVIDENCE = ("lengths", "anchor", "updates")  # what there is besides the ledger, each with the ones before it


@dataclass(frozen=True)
class Measured:
    """One recovery: every bound of its distance, the distance, and that of the poisoned model."""

    bounds: Mapping[str, float]
    truth: float
    poisoned: float
    nothing: float | None  # the least proved bound of the poisoned model's distance

    @property
    def conclusion(self) -> float:
        """The least bound."""
        return min(self.bounds.values())


def measured(training: Training, preset: str, evidence: str = "updates") -> Measured:
    """Recover by crab, and compare what is proved with what is so."""
    decided = plan(training.history, training.malicious, **PRESETS[preset])
    kept: list[Answers] = []
    fleet = RecordedFleet(training.problem, kept.append)
    steps, again = (
        list(crab(decided, fleet, **CRAB_PRESETS[preset])),
        list(retrain(decided, training.problem)),
    )
    model = steps[-1].model if steps else training.models[decided.rollback_round]
    ask_at(decided, fleet, model)
    answers = {"lengths": [], "anchor": kept, "updates": [*kept, *training.sent]}[evidence]
    terms = certify(
        decided,
        model,
        steps,
        crab=CRAB_PRESETS[preset],
        assumptions=training.problem.assumptions(),
        answers=answers,
    ).terms
    sound = {name: term.value for name, term in terms.items() if term.flag == SOUND}
    bounds = {name: value for name, value in sound.items() if name.startswith("distance.")}
    wholes = [sound[name] for name in ("poison.whole", "poison.enclosed") if name in sound]
    return Measured(
        bounds,
        apart(model, again[-1].model),
        apart(training.models[-1], again[-1].model),
        min(wholes, default=None),
    )


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))


def trials(
    make: Callable[[int, Path], Training], seeds: Sequence[int], preset: str, evidence: str = "updates"
) -> Iterator[Measured]:
    """The convex ones of these seeds that have something to compare with."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        for seed in seeds:
            training = make(seed, Path(name) / str(seed))
            if training.problem.convex:
                found = measured(training, preset, evidence)
                if found.truth > 1e-4 * (1 + apart(training.models[0], 0 * training.models[0])):
                    yield found


def ratios(found: Sequence[Measured], name: str | None = None) -> tuple[float, float, int]:
    """Median of bound / truth, share of bounds below the poisoned model's true distance, and of how many."""
    rows = [(m, m.conclusion if name is None else m.bounds[name]) for m in found if name in (None, *m.bounds)]
    below = sum(bound < m.poisoned for m, bound in rows)
    return median(bound / m.truth for m, bound in rows), below / len(rows), len(rows)


def replayed(
    make: Callable[..., Training], seeds: Sequence[int], ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[tuple[float, float, float]]]:
    """Of each way to replay: the share of client-rounds asked, and true and proved distance to retraining.

    Both as shares of the poisoned model's. Raises where a bound that is called sound is below the distance.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as place:
            training = make(seed, Path(place) / "h")
            if training.problem.convex:
                for name, row in _replayed(training, ways).items():
                    found[name].append(row)
    return found


def _replayed(
    training: Training, ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, float, float]]:
    decided, problem = plan(training.history, training.malicious), training.problem
    goal = list(retrain(decided, problem))[-1].model
    nothing = float(np.linalg.norm(training.models[-1].astype(np.float64) - goal))
    whole = sum(len(decided.askable(t)) for t in range(len(training.history.rounds)))
    given = problem.assumptions()
    rows = {}
    for name, how in ways.items():
        answers: list[Answers] = []
        fleet = MeteredFleet(RecordedFleet(problem, answers.append), epochs=1)
        steps = list(replay(decided, fleet, **how, **(constants(problem) if "proof" in how else {})))
        told = {"method": "replay", "assumptions": given, "answers": answers if "proof" in how else ()}
        certificate = certify(decided, steps[-1].model, steps, **told)
        truth = float(np.linalg.norm(steps[-1].model.astype(np.float64) - goal))
        for term, bound in certificate.terms.items():
            if term.startswith("distance.") and bound.flag == SOUND:
                assert truth <= bound.value, (
                    f"{training.history.path}: {name}: {term} {bound.value} < {truth}"
                )
        if nothing > 1e-3 and whole and certificate.distance.value is not None:
            rows[name] = (
                fleet.cost.client_rounds / whole,
                truth / nothing,
                certificate.distance.value / nothing,
            )
    return rows


def constants(problem: Problem) -> dict[str, Any]:
    """What a certified replay needs to know of the clients."""
    centre, spread = problem.assumptions().local_affine() or (0.0, 0.0)
    return {"centre": centre, "spread": spread, "full_batch": problem.full_batch}
