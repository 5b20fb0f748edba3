"""How far each proven bound of a recovery's distance is above the distance itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedcrab import plan
from fedcrab.certificate import SOUND, Certificate, certify
from fedcrab.recover import CRAB_PRESETS, Answers, RecordedFleet, ask_at, crab, replay, retrain
from fedcrab.recover.cost import MeteredFleet
from fedcrab.rollback.decision import PRESETS
from trials.convex import Problem, Training

EVIDENCE = ("lengths", "anchor", "updates")  # what there is besides the ledger, each with the ones before it
Make = Callable[[int, Path], Training]


@dataclass(frozen=True)
class Measured:
    """One recovery: every bound of its distance, the distance, and that of the poisoned model."""

    bounds: Mapping[str, float]
    truth: float
    poisoned: float
    nothing: float | None  # the smallest proven bound of the poisoned model's distance

    @property
    def conclusion(self) -> float:
        """The smallest bound."""
        return min(self.bounds.values())

    @property
    def violated(self) -> list[str]:
        """The bounds that are below the distance."""
        return [name for name, bound in self.bounds.items() if bound < self.truth]

    def numbers(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


@contextmanager
def convex_training(make: Make, seed: int) -> Iterator[Training | None]:
    """The training of this seed, its history in memory where there is room; None if it is not convex."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        training = make(seed, Path(place) / "h")
        yield training if training.problem.convex else None


def measured(training: Training, preset: str, evidence: Sequence[str] = EVIDENCE) -> dict[str, Measured]:
    """Recover by crab; for each kind of evidence, compare what is proven with what is true."""
    decided = plan(training.history, training.malicious, **PRESETS[preset])
    kept: list[Answers] = []
    fleet = RecordedFleet(training.problem, kept.append)
    steps = list(crab(decided, fleet, **CRAB_PRESETS[preset]))
    model = steps[-1].model if steps else training.models[decided.rollback_round]
    goal = list(retrain(decided, training.problem))[-1].model
    ask_at(decided, fleet, model)
    given = {"crab": CRAB_PRESETS[preset], "assumptions": training.problem.assumptions()}
    answers = {"lengths": [], "anchor": kept, "updates": [*kept, *training.sent]}
    return {
        kind: _measured(
            certify(decided, model, steps, **given, answers=answers[kind]),
            apart(model, goal),
            apart(training.models[-1], goal),
        )
        for kind in evidence
    }


def _measured(certificate: Certificate, truth: float, poisoned: float) -> Measured:
    sound = {name: term.value for name, term in certificate.terms.items() if term.flag == SOUND}
    bounds = {name: value for name, value in sound.items() if name.startswith("distance.")}
    wholes = [sound[name] for name in ("poison.whole", "poison.enclosed") if name in sound]
    return Measured(bounds, truth, poisoned, min(wholes, default=None))


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))


def comparable(found: Measured, training: Training) -> bool:
    """Whether the distance is more than rounding, so that a ratio to it means something."""
    return found.truth > 1e-4 * (1 + float(np.linalg.norm(training.models[0])))


def trials(make: Make, seeds: Sequence[int], preset: str, evidence: str = "updates") -> Iterator[Measured]:
    """The convex ones of these seeds that have something to compare with."""
    for seed in seeds:
        with convex_training(make, seed) as training:
            if training is not None:
                found = measured(training, preset, (evidence,))[evidence]
                if comparable(found, training):
                    yield found


def ratios(found: Sequence[Measured], name: str | None = None) -> tuple[float, float, int]:
    """Median of bound / truth, share of bounds below the poisoned model's true distance, and of how many."""
    rows = [(m, m.conclusion if name is None else m.bounds[name]) for m in found if name in (None, *m.bounds)]
    below = sum(bound < m.poisoned for m, bound in rows)
    return median(bound / m.truth for m, bound in rows), below / len(rows), len(rows)


def replayed(
    make: Make, seeds: Sequence[int], ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[tuple[float, float, float]]]:
    """Of each way to replay: the share of client-rounds asked, and true and proven distance to retraining.

    Both as shares of the poisoned model's. Raises if a bound that is called sound is below the distance.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for seed in seeds:
        with convex_training(make, seed) as training:
            for name, (asked, row) in (replays(training, ways) if training else {}).items():
                assert not row.violated, f"seed {seed}: {name}: {row.violated}: {row}"
                if row.poisoned > 1e-3:
                    found[name].append((asked, row.truth / row.poisoned, row.conclusion / row.poisoned))
    return found


def replays(training: Training, ways: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, Measured]]:
    """Of each way to replay that proves something: the share of client-rounds asked, and its bounds."""
    decided, problem = plan(training.history, training.malicious), training.problem
    goal = list(retrain(decided, problem))[-1].model
    whole = sum(len(decided.askable(t)) for t in range(len(training.history.rounds)))
    rows = {}
    for name, how in ways.items():
        answers: list[Answers] = []
        fleet = MeteredFleet(RecordedFleet(problem, answers.append), epochs=1)
        steps = list(replay(decided, fleet, **how, **(constants(problem) if "proof" in how else {})))
        told = {"method": "replay", "assumptions": problem.assumptions()}
        certificate = certify(
            decided, steps[-1].model, steps, **told, answers=answers if "proof" in how else ()
        )
        row = _measured(certificate, apart(steps[-1].model, goal), apart(training.models[-1], goal))
        if whole and row.bounds:
            rows[name] = (fleet.cost.client_rounds / whole, row)
    return rows


def constants(problem: Problem) -> dict[str, Any]:
    """What a certified replay needs to know about the clients."""
    centre, spread = problem.assumptions().local_affine() or (0.0, 0.0)
    return {"centre": centre, "spread": spread, "full_batch": problem.full_batch}
