"""Flower's public examples, poisoned and recovered, beside training by the same app on the honest clients.

usage: python benchmarks/public_apps.py [sklearn|quickstart|advanced ...] [--seeds 1,2,3] [--repeats 4]
                                        [--results FILE] [--table]

The apps are in flower_apps.py. A seed fixes the first model and the attackers. Each repeat draws the clients
of every round and the order of their batches again, separately in the poisoned training, the honest-only
training and each recovery: this is what differs between two runs of such an app. So one number against one
number says little, and the table compares means over repeats. One line of JSON per repeat; an interrupted run
resumes. Needs the image sets (FEDCRAB_DATA) and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flower_apps import APPS, App, Clients, initial, measured
from flower_grid import FunctionGrid
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcrab import Compact, History
from fedcrab.flower import Patience, Recorder, recover_if_asked

RESULTS = Path("benchmarks/results/public_apps.jsonl")
RUNS = ("poisoned", "honest only", "retrain", "replay")
PATIENT = Patience(deadline=36000.0, attempts=1, poll=0.01)
Row = dict[str, Any]


def grid_of(app: App, sites: list[str], attackers: frozenset[str], seed: tuple[int, ...]) -> FunctionGrid:
    """Clients that have kept nothing yet: every run of an app starts so."""
    clients = Clients(app, attackers, seed)

    def answer(site: str, message: Message) -> Message:
        arrays, examples, loss = clients.train(site, message)
        metrics = MetricRecord({"num-examples": examples, "train_loss": loss})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return FunctionGrid(sites, answer)


def strategy_of(app: App) -> FedAvg:
    return app.strategy(fraction_train=app.fraction, fraction_evaluate=0.0)


def trained(app: App, grid: FunctionGrid, seed: int, history: Path | None) -> ArrayRecord:
    """The model of the app's own training, recorded if there is a path for the history."""
    strategy: Strategy = strategy_of(app)
    if history:
        strategy = Recorder(strategy, history, selection=Compact(), patience=PATIENT)
    config = ConfigRecord({"lr": app.rate})
    return strategy.start(grid, initial(app, seed), num_rounds=app.rounds, train_config=config).arrays


def recovered(
    app: App, grid: FunctionGrid, history: Path, attackers: frozenset[str], method: str
) -> ArrayRecord:
    """The recovered model; attackers that were never asked are not in the history, and cannot be named."""
    seen = attackers & {client for entry in History.open(history).rounds for client in entry.clients}
    asked = {"mode": "recover", "method": method, "malicious": ",".join(sorted(seen))}
    paths = {"history": str(history), "recovered": str(history.with_name("recovered"))}
    context = Context(1, 1, {}, RecordDict(), {**asked, **paths})
    found = recover_if_asked(grid, context, strategy_of(app), patience=PATIENT)
    assert found is not None
    return found.arrays


def incident(name: str, seed: int, repeat: int, place: Path) -> Row:
    """One poisoned training, one of the honest clients alone, and two recoveries."""
    app, row, history = APPS[name], {"app": name, "seed": seed, "repeat": repeat}, place / "history"
    sites = [f"site-{number}" for number in range(app.clients)]
    drawn = np.random.default_rng([seed, 1]).choice(sites, app.attackers, replace=False)
    attackers = frozenset(map(str, drawn))
    honest = [site for site in sites if site not in attackers]
    for number, run in enumerate(RUNS):
        own = (seed, repeat, number)
        random.seed(str(own))  # Flower draws the clients of a round from Python's generator
        grid = grid_of(app, honest if run == "honest only" else sites, attackers, own)
        if run in ("poisoned", "honest only"):
            arrays = trained(app, grid, seed, history if run == "poisoned" else None)
        else:
            arrays = recovered(app, grid, history, attackers, run)
        accuracy, success = measured(app, arrays)
        row[run] = {"accuracy": accuracy, "success": success, "client_rounds": grid.count}
    return row


def table(rows: list[Row]) -> str:
    """Accuracy ± standard deviation / success of the mark, in percent, by app and seed: means over repeats.

    Then the mean differences to honest-only training of the same seed, ± their standard error. Below the
    table: how far two honest-only trainings are apart.
    """
    lines = ["| app, seed | " + " | ".join(RUNS) + " | retrain - honest | replay - honest | client-rounds |"]
    lines.append("|---" * (len(RUNS) + 4) + "|")
    lines_below = []
    for app in dict.fromkeys(row["app"] for row in rows):
        group = [row for row in rows if row["app"] == app]
        for seed in [*sorted({row["seed"] for row in group}), "all"]:
            some = [row for row in group if seed in ("all", row["seed"])]
            lines.append(f"| {app}, {seed} ({len(some)}) | " + " | ".join(cells(some)) + " |")
        lines_below.append(f"{app}: {noise(group)}")
    return "\n".join([*lines, "", *lines_below])


def cells(rows: list[Row]) -> list[str]:
    found = []
    for run in RUNS:
        accuracy, spread = mean(values(rows, run, "accuracy")), deviation(values(rows, run, "accuracy"))
        found.append(f"{accuracy:.1f} ± {spread:.1f} / {mean(values(rows, run, 'success')):.1f}")
    for run in RUNS[2:]:
        ours, theirs = (values(rows, one, "accuracy") for one in (run, "honest only"))
        apart = [one - other for one, other in zip(ours, theirs, strict=True)]  # of the same seed
        success = mean(values(rows, run, "success")) - mean(values(rows, "honest only", "success"))
        error = deviation(apart) / sqrt(len(rows))
        found.append(f"{mean(apart):+.1f} ± {error:.1f} / {success:+.1f}")
    counts = [f"{mean(values(rows, run, 'client_rounds')):.0f}" for run in RUNS[2:]]
    return [*found, ", ".join(counts)]


def values(rows: list[Row], run: str, key: str) -> list[float]:
    return [row[run][key] for row in rows]


def deviation(numbers: list[float]) -> float:
    return stdev(numbers) if len(numbers) > 1 else float("nan")


def noise(rows: list[Row]) -> str:
    """How far two honest-only trainings of the same seed end from each other."""
    apart = [
        abs(one["honest only"]["accuracy"] - other["honest only"]["accuracy"])
        for one, other in combinations(rows, 2)
        if one["seed"] == other["seed"]
    ]
    if not apart:
        return "no two honest-only runs of one seed"
    shares = [f"{sum(a <= limit for a in apart) / len(apart):.0%} within {limit}" for limit in (1, 2, 5)]
    return (
        f"two honest-only runs of one seed: median {median(apart):.1f} points apart, at most "
        f"{max(apart):.1f}, {', '.join(shares)} ({len(apart)} pairs)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("apps", nargs="*", default=list(APPS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only print the table of what has been run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in given.results.open()] if given.results.exists() else []
    done = {(row["app"], row["seed"], row["repeat"]) for row in rows}
    wanted = [
        (app, int(seed), repeat)
        for repeat in range(given.repeats)
        for app in given.apps
        for seed in given.seeds.split(",")
    ]
    for app, seed, repeat in [] if given.table else wanted:
        if (app, seed, repeat) not in done:
            with TemporaryDirectory() as place:
                rows.append(incident(app, seed, repeat, Path(place)))
            with given.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
