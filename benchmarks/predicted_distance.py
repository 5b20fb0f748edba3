"""The distance to retraining that replay predicts, beside the true one, in the runs of its suites.

usage: python benchmarks/predicted_distance.py [--minutes N] [--table]

The predictions of recoveries from round 0 are in the cells of results/, and of the incidents in
benchmarks/results/incidents.jsonl. A recovery with ``since`` is to be
compared with a retraining from that round, with the same participants; the suites measure distances to one
from round 0, which never had the named clients. So the trainings of replay-since.toml are repeated here:
replay and trust=true, and a retraining of the honest clients from the rollback model with batches of its own.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cells
from scipy.stats import spearmanr

from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.config import Config, HistoryConfig
from fedcrab.experiment.matrix import expand
from fedcrab.experiment.recovery import recover_to_end
from fedcrab.experiment.setup import aggregate_of, open_for_training, prepare, run
from fedcrab.experiment.suite import load_suite
from fedcrab.history import History
from fedcrab.recover.retrain import train_rounds
from fedcrab.rollback.decision import Plan, plan
from fedcrab.types import Fleet, Vector
from fedcrab.vectors import norm

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/predicted-distance.jsonl"
INCIDENTS = ROOT / "benchmarks/results/incidents.jsonl"
FROM_ROUND_0 = ("replay", "replay-cifar10", "methods", "replay-cnn", "full-scale")
METHODS = {"replay": {}, "replay trust=true": {"trust": True}}
SINCE = 20
Pair = tuple[float, float]  # predicted and true


def trainings() -> Iterator[cells.Cell]:
    """Yield one cell per training of replay-since.toml."""
    for cell in expand(load_suite(ROOT / "experiments/replay-since.toml")):
        if cell.method.name == "poisoned":
            name = " ".join(f"{value}" for axis, value in cell.labels if axis != "method")
            yield "since", name, partial(predicted_and_true, cell.config)


def predicted_and_true(config: Config) -> dict[str, Pair]:
    """Return the predicted and the true distance of each method to a retraining from the rollback model."""
    setup = prepare(config.model_copy(update={"history": HistoryConfig(name="compact")}), workers=0)
    with tempfile.TemporaryDirectory(dir=cells.MEMORY) as place:
        with open_for_training(setup, Path(place) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        history = History.open(Path(place) / "h")
        bad = setup.attackers.clients
        again = retrained(plan(history, bad, since=SINCE), setup.fleet_again(2), setup.config)
        found = {}
        for name, settings in METHODS.items():
            outcome = recover_to_end("replay", history, bad, setup, since=SINCE, **settings)
            apart = norm(outcome.model - again, history.charter.layout.trained())
            found[name] = outcome.steps[-1]["replay"]["error"], apart
        return found


def retrained(decided: Plan, fleet: Fleet, config: Config) -> Vector:
    """Return the model of a training from the rollback model with the honest participants."""
    history, first = decided.history, decided.rollback_round
    asked = {t: decided.askable(t) for t in range(first, len(history.rounds))}
    model = history.model(first)
    for step in train_rounds(
        decided, fleet, asked, lambda: history.model(first), aggregate_of(config), None, None
    ):
        model = step.model
    return model


def of_suite(name: str) -> dict[str, list[Pair]]:
    """Return the pairs of a suite's finished cells, by method."""
    found: dict[str, list[Pair]] = {method: [] for method in METHODS}
    store = CellCache(ROOT / "results", name)
    for cell in expand(load_suite(ROOT / f"experiments/{name}.toml")):
        method, finished = dict(cell.labels)["method"], store.find(cell.key)
        if method in found and finished is not None:
            measures: dict[str, Any] = dict(finished.measures)
            number = re.search(r"retraining: ([\d.e+-]+)", measures["predicted"])
            assert number, measures["predicted"]
            found[method].append((float(number[1]), measures["distance"]))
    return found


def of_incidents() -> dict[str, list[Pair]]:
    """Return the pairs of the incidents that were recovered."""
    rows = map(json.loads, INCIDENTS.read_text().splitlines())
    pairs = [(row["predicted"], row["distance"]) for row in rows if "predicted" in row]
    return {"replay": pairs, "replay trust=true": []}


def table() -> str:
    """Return markdown: rank correlations by suite and in all, and the range of the ratio."""
    since = cells.read(RESULTS, "since").values()
    suites: dict[str, Any] = {name: of_suite(name) for name in FROM_ROUND_0}
    suites["incidents"] = of_incidents()
    suites["replay-since"] = {name: [tuple(run[name]) for run in since] for name in METHODS}
    suites["all"] = {name: [p for suite in suites.values() for p in suite[name]] for name in METHODS}
    lines = ["| suite | method | runs | rank correlation | true / predicted |", "|---|---|---|---|---|"]
    for suite, methods in suites.items():
        for name, pairs in methods.items():
            if len(pairs) > 2:
                ratios = sorted(true / predicted for predicted, true in pairs)
                lines.append(
                    f"| {suite} | {name} | {len(pairs)} | {spearmanr(*zip(*pairs, strict=True))[0]:.2f} | "
                    f"{ratios[0]:.2f} to {ratios[-1]:.2f} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    cells.run(__doc__, RESULTS, trainings, table)
