"""How tight each bound of a certificate is: softmax regression on MNIST, every bound beside what it bounds.

usage: python benchmarks/certificate.py [--rounds 20] [--seeds 3]
       python benchmarks/certificate.py --generators [--trials 400]
       python benchmarks/certificate.py --replays [--trials 220] [--generator Y]

The second prints bound / truth on random convex problems of two kinds (tests/trials/convex.py): Y, long
trainings of ten clients with full batches, and T, short ones of all sorts; with nothing but lengths, with
kept answers and one honest round at the result (anchor), and with the history's updates in 4 bits, in 8
bits, and exact. In brackets the share of bounds below the poisoned model's true distance.

The third compares replays on the same problems, recorded with Compact(bits=8): by their defaults, with
everybody asked in every third round, and certified ones (``proof``). Figures are medians: share of
retraining's client-rounds, true and proved distance to retraining as shares of the poisoned model's true one,
and the share of problems in which the proved one is below it.

20 clients of 300 examples, a quarter of them with a backdoor. The trainings: one full-batch step a round;
the same with weight decay, so that it is strongly convex; five epochs in batches of 64. Each is recorded by
Crab's selection and with every round and client selected. The figure is bound / truth, the median over the
seeds; a figure below 1 would be a violation, and stops the program."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

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
    parser.add_argument("--generators", action="store_true")
    parser.add_argument("--replays", action="store_true")
    parser.add_argument("--generator", choices=("Y", "T"), default="Y")
    parser.add_argument("--trials", type=int, default=400)
    asked = parser.parse_args()
    if asked.generators:
        show_generators(asked.trials)
        return
    if asked.replays:
        show_replays(asked.generator, asked.trials)
        return
    for training, local in TRAININGS.items():
        for kept, history in KEPT.items():
            print(f"\n### {training}; {kept}\n")
            show([*COMMON, *local, *history, f"rounds={asked.rounds}"], asked.seeds)


def show_generators(trials: int) -> None:
    """A table of median bound / truth on the random problems; any violation stops the program."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from trials import tightness
    from trials.convex import long_training, random_training

    kinds = {"lengths": None, "anchor": None, "4 bits": 4, "8 bits": 8, "updates": None}
    head = ("generator, preset", "evidence", "problems", "coupled", "anchored", "enclosed", "conclusion")
    print(f"| {' | '.join(head)} | poisoned |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for generator, make, first in (("Y", long_training, 0), ("T", random_training, 5000)):
        for preset in ("hardened", "paper"):
            for evidence, bits in kinds.items():
                kept = "anchor" if bits else evidence
                tried = tightness.trials(partial(make, bits=bits), range(first, first + trials), preset, kept)
                found = list(tried)
                assert all(m.truth <= bound for m in found for bound in m.bounds.values())
                names = ("distance.coupled", "distance.anchored", "distance.enclosed", None)
                cells = ["{:.3g} ({:.2f})".format(*tightness.ratios(found, name)[:2]) for name in names]
                nothing = [m.nothing / m.poisoned for m in found if m.nothing and m.poisoned > 1e-3]
                row = [f"{generator}, {preset}", evidence, str(len(found)), *cells, f"{median(nothing):.3g}"]
                print(f"| {' | '.join(row)} |", flush=True)


REPLAYS: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay, every 3rd round, all asked": {"every": 3, "asked": 100, "settle": 2},
    "certified, nobody asked": {"proof": 1e5},
    "certified, proof=0.5": {"proof": 0.5},
    "certified, proof=0.2": {"proof": 0.2},
    "certified, proof=0.1": {"proof": 0.1},
    "certified, proof=0.05": {"proof": 0.05},
}


def show_replays(generator: str, trials: int) -> None:
    """A table of what replays ask, reach and prove; any violation stops the program."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from trials.convex import long_training, random_training
    from trials.tightness import replayed

    make, first = (long_training, 0) if generator == "Y" else (random_training, 5000)
    found = replayed(partial(make, bits=8), range(first, first + trials), REPLAYS)
    print(f"{generator}: {max(map(len, found.values()))} convex problems, no bound below the distance\n")
    print("| replay | client-rounds | true | proved | below |")
    print("|---|--:|--:|--:|--:|")
    for name, rows in found.items():
        asked, true, proved = (median(column) for column in zip(*rows, strict=True))
        below = sum(row[2] < 1 for row in rows) / len(rows)
        print(f"| {name} | {asked:.0%} | {true:.3f} | {proved:.3f} | {below:.2f} |", flush=True)


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
