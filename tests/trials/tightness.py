"""How far each proved bound of a recovery's distance lies above the distance itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from fedcrab import plan
from fedcrab.certificate import SOUND, certify
from fedcrab.recover import CRAB_PRESETS, Answers, RecordedFleet, ask_at, crab, retrain
from fedcrab.rollback.decision import PRESETS
from trials.convex import Training

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
