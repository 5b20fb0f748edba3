"""How tight each bound of a certificate is: softmax regression on MNIST, each bound beside the true value.

usage: python benchmarks/certificate.py [--rounds 20] [--seeds 3]

20 clients with 300 examples each; a quarter of them plant a backdoor. The trainings: one full-batch step per
round; the same with weight decay, so that it is strongly convex; five epochs in batches of 64. Each is
recorded with Crab's selection, and with every round and client selected. Figures are medians over the seeds.
A ratio below 1 would be a violation, and stops the program. Random convex problems:
benchmarks/certificate_problems.py.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from fedcrab.certificate import SOUND, certify
from fedcrab.experiment.config import load_config
from fedcrab.experiment.known_constants import known_assumptions
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.recover import CRAB_PRESETS, Answers, RecordedFleet, ask_at, crab, retrain
from fedcrab.rollback.decision import Plan, plan
from fedcrab.types import Vector

COMMON = [
    "model=softmax",
    "data.examples_per_client=300",
    "attack.fraction=0.25",
    "attack.settings.boost=1.0",
]
FULL = ["local.batch=300", "local.epochs=1", "local.learning_rate=0.02"]
TRAININGS = {
    "full batch": FULL,
    "full batch, decay 0.1": [*FULL, "local.weight_decay=0.1"],
    "batches of 64": ["local.batch=64", "local.epochs=5", "local.learning_rate=0.005"],
}
KEPT = {"Crab's selection": [], "everything selected": ["history.settings={rounds=1.0, clients=1.0}"]}
BETA = 0.3


def distance(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))


def trial(changes: list[str], preset: str, place: Path) -> dict[str, tuple[float, float]]:
    """Every sound bound of one recovery, beside what it bounds."""
    setup = prepare(load_config("paper-mnist", changes), workers=0)
    try:
        with open_for_training(setup, place, resume=False) as history:
            models = [history.initial_model(), *(step.model for step in run(setup, history))]
        decided = plan(History.open(place), setup.attackers.clients, beta=BETA)
        return compared(setup, decided, models, preset)
    finally:
        setup.close()


def compared(
    setup: Setup, decided: Plan, models: list[Vector], preset: str
) -> dict[str, tuple[float, float]]:
    settings = CRAB_PRESETS[preset]
    answers: list[Answers] = []
    asked, again = RecordedFleet(setup.fleet, answers.append), list(retrain(decided, setup.fleet))
    steps = list(crab(decided, asked, **settings))
    ask_at(decided, asked, steps[-1].model)
    scratch, model, t = [models[0], *(s.model for s in again)], steps[-1].model, decided.rollback_round
    given = replace(known_assumptions(setup, decided), residual=residual(setup, decided, model))
    told = {"crab": settings, "assumptions": given, "retrained_steps": again, "answers": answers}
    found = certify(decided, model, steps, **told).terms
    pairs = zip(scratch[t:-1], scratch[t + 1 :], strict=True)
    truth = {
        "path": distance(model, models[t]),
        "poison.rollback": distance(models[t], scratch[t]),
        "poison.whole": distance(models[-1], scratch[-1]),
        "poison.enclosed": distance(models[-1], scratch[-1]),
        "retraining": sum(distance(a, b) for a, b in pairs),
        "distance": distance(model, scratch[-1]),
    }
    sound = {
        name: term.value for name, term in found.items() if term.flag == SOUND and term.value is not None
    }
    rows = {n: (value, truth.get(n, truth.get(n.split(".")[0], 0.0))) for n, value in sound.items()}
    rows["theorem1.printed"] = (found["theorem1.printed"].value or 0.0, truth["distance"])
    return rows


def residual(setup: Setup, decided: Plan, model: Vector) -> float:
    """‖Σ p_c·u_c‖ of all honest clients at the recovered model."""
    honest = [c for c in setup.honest.clients if c not in decided.malicious]
    updates = setup.honest.train(model, honest, round=0)
    return float(np.linalg.norm(updates.weights @ updates.vectors.astype(np.float64) / updates.weights.sum()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    for training, local in TRAININGS.items():
        for kept, history in KEPT.items():
            print(f"\n### {training}; {kept}\n")
            show([*COMMON, *local, *history, f"rounds={asked.rounds}"], asked.seeds)


def show(changes: list[str], seeds: int) -> None:
    columns: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for preset in ("paper", "hardened"):
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as name:
                rows = trial([*changes, f"seed={seed}"], preset, Path(name) / "h")
            columns.setdefault(preset, []).append(rows)
    print("| term | paper: bound | truth | ratio | hardened: bound | truth | ratio |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in dict.fromkeys(name for found in columns.values() for rows in found for name in rows):
        given = ([rows[name] for rows in found if name in rows] for found in columns.values())
        cells = [cell for rows in given for cell in figures(name, rows)]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def figures(name: str, rows: list[tuple[float, float]]) -> list[str]:
    """Bound, truth and their ratio, medians over the seeds."""
    if not rows:
        return ["-", "-", "-"]
    assert name.startswith("theorem1") or all(bound >= truth for bound, truth in rows), (name, rows)
    bound, truth = (median(column) for column in zip(*rows, strict=True))
    ratio = f"{median(b / t for b, t in rows if t):.3g}" if any(t for _, t in rows) else "-"
    return [f"{bound:.4g}", f"{truth:.4g}", ratio]


if __name__ == "__main__":
    main()
