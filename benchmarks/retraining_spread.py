"""How much retrainings of one training differ, and replay beside the mean of three, on CIFAR-10.

usage: python benchmarks/retraining_spread.py [--minutes N] [--table]

The cells of replay-cifar10.toml have one retraining per training. Here each is retrained twice more, with
batches of its own. Their deviation says how much of a difference to one retraining is chance.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import cells
from recovery_incidents import quality

from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.config import Config, HistoryConfig
from fedcrab.experiment.matrix import expand
from fedcrab.experiment.setup import aggregate_of, open_for_training, prepare, run
from fedcrab.experiment.suite import load_suite
from fedcrab.experiment.suite_tables import rows_of
from fedcrab.history import History
from fedcrab.recover import retrain
from fedcrab.rollback.decision import plan

ROOT = Path(__file__).parents[1]
SUITE = "replay-cifar10"
RESULTS = ROOT / "benchmarks/results/retraining-spread.jsonl"
METHODS = ("replay", "replay trust=true", "fedrecover")


def suite() -> list[Any]:
    return expand(load_suite(ROOT / f"experiments/{SUITE}.toml"))


def trainings() -> Iterator[cells.Cell]:
    """Yield one cell per training, the first seed of every setting first."""
    poisoned = [cell for cell in suite() if cell.method.name == "poisoned"]
    for cell in sorted(poisoned, key=lambda cell: cell.config.seed):
        yield SUITE, name_of(dict(cell.labels)), partial(retrainings, cell.config)


def name_of(labels: dict[str, Any]) -> str:
    return f"{labels['fraction']:.0%}, {labels['partition']}, seed {labels['seed']}"


def retrainings(config: Config) -> list[dict[str, float | None]]:
    """Return accuracy and attack success of two more retrainings."""
    setup = prepare(config.model_copy(update={"history": HistoryConfig(name="selective")}), workers=0)
    with tempfile.TemporaryDirectory(dir=cells.MEMORY) as place:
        with open_for_training(setup, Path(place) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        decided = plan(History.open(Path(place) / "h"), setup.attackers.clients)
        found = []
        for time in (3, 4):
            model = decided.history.initial_model()
            for step in retrain(decided, setup.fleet_again(time), aggregate=aggregate_of(setup.config)):
                model = step.model
            found.append(quality(setup, model))
        return found


def table() -> str:
    """Return markdown: one row per setting, over its seeds."""
    more = cells.read(RESULTS, SUITE)
    by_training: dict[str, dict[str, Any]] = {}
    for row in rows_of(suite(), CellCache(ROOT / "results", SUITE)):
        by_training.setdefault(name_of(row), {})[row["method"]] = row
    settings: dict[str, list[str]] = {}
    for name in by_training:
        if name in more:
            settings.setdefault(name.rpartition(", ")[0], []).append(name)
    head = [f"{method}: TA, ASR" for method in METHODS]
    lines = [" | ".join(["setting", "retrainings: TA", "deviation", "ASR", "deviation", *head])]
    lines.append(" | ".join(["---"] * (5 + len(head))))
    for setting, names in settings.items():
        again = {
            measure: [
                [by_training[n]["retrain"][measure], *(each[measure] for each in more[n])] for n in names
            ]
            for measure in ("ta", "asr")
        }
        parts = [setting]
        for values in again.values():
            deviation = mean(stdev(three) ** 2 for three in values) ** 0.5
            parts += [f"{100 * mean(map(mean, values)):.1f}", f"{100 * deviation:.1f}"]
        for method in METHODS:
            ours = [
                100 * mean(by_training[n][method][measure] - mean(three) for n, three in pairs)
                for measure, pairs in ((m, list(zip(names, v, strict=True))) for m, v in again.items())
            ]
            parts.append(f"{ours[0]:+.1f}, {ours[1]:+.1f}")
        lines.append(" | ".join(parts))
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    cells.run(__doc__, RESULTS, trainings, table)
