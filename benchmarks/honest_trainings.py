"""How much two honest trainings of a public app differ, and whether `retrain` is one of them.

usage: python benchmarks/honest_trainings.py [APP] [--rows N] [--seeds 1,2,3] [--repeats 4-11]
                                             [--results FILE] [--table]
       python benchmarks/honest_trainings.py [APP] [--seeds 1] --check | --rounding

| run | who is asked in a round | trained by |
|---|---|---|
| honest only | clients drawn among the honest ones | Flower |
| same clients | the honest ones among the participants that the training drew | Flower |
| retrain | the same as in `same clients` | recover_if_asked |

Each run has its own batches. Seeds and repeats are those of public_apps.py: a seed fixes the first model and
the attackers, a repeat the clients of every round. Of a history, `retrain` uses the first model, the
participants and the settings they were sent; so the clients of the recorded training answer without training
here. --rows gives the clients the first N images of the training set only, which takes less time. One line of
JSON per repeat; an interrupted run resumes.

--check gives `same clients` the batches of `retrain` and prints how far apart their models are after each
round: with Flower's own mean, and with the same mean summed in float64. --rounding lets the participants of
round 1 train from two models that differ by 6e-8, with the same batches, and prints how far apart they end;
fedcrab has no part in it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from flower_apps import APPS, App, Clients, accuracy, initial, measured, partition
from flower_grid import FunctionGrid, asking
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from public_apps import Row, deviation, grid_of, noise, recovered, strategy_of, trained

from fedcrab import History
from fedcrab.aggregate import fedavg
from fedcrab.flower.arrays import array_layout

RESULTS = Path("benchmarks/results/honest_trainings.jsonl")
RUNS = ("honest only", "same clients", "retrain")
BATCHES = {"honest only": 1, "retrain": 2, "same clients": 4}  # part of the seed, as in public_apps.py
Models = dict[int, ArrayRecord]  # by the number of rounds before


def watched(grid: FunctionGrid, models: Models) -> FunctionGrid:
    """The grid, which adds each model that is sent out to ``models``."""

    def answer(site: str, message: Message) -> Message:
        models.setdefault(int(message.content["config"]["server-round"]) - 1, message.content["arrays"])
        return inner(site, message)

    inner, grid.answer = grid.answer, answer
    return grid


def without_training(app: App, sites: list[str]) -> FunctionGrid:
    """Clients that return the model that they got."""

    def answer(site: str, message: Message) -> Message:
        examples = len(partition(app)[sites.index(site)])
        metrics = MetricRecord({"num-examples": examples, "train_loss": 1.0})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    return FunctionGrid(sites, answer)


class Incident:
    """The clients of a seed, and a history with the participants of a repeat."""

    def __init__(self, app: App, seed: int, repeat: int, place: Path) -> None:
        self.app, self.seed, self.repeat, self.history = app, seed, repeat, place / "history"
        self.sites = [f"site-{number}" for number in range(app.clients)]
        drawn = np.random.default_rng([seed, 1]).choice(self.sites, app.attackers, replace=False)
        self.attackers = frozenset(map(str, drawn))
        random.seed(str((seed, repeat, 0)))  # Flower draws the clients of a round from Python's generator
        trained(app, without_training(app, self.sites), seed, self.history)
        asked = (entry.clients for entry in History.open(self.history).rounds)
        self.asked = [frozenset(clients) - self.attackers for clients in asked]

    def run(self, name: str, batches: int, strategy: type | None = None) -> tuple[Models, int]:
        """The models after every round of a run, and its client-rounds."""
        own, models = (self.seed, self.repeat, batches), Models()
        random.seed(str(own))
        honest = [site for site in self.sites if site not in self.attackers]
        drawn_here = name == "honest only"
        grid = watched(grid_of(self.app, honest if drawn_here else self.sites, self.attackers, own), models)
        if name == "retrain":
            arrays = recovered(self.app, grid, self.history, self.attackers, "retrain")
        else:
            kind = asking(strategy or self.app.strategy, self.asked)
            start, config = initial(self.app, self.seed), ConfigRecord({"lr": self.app.rate})
            server = strategy_of(self.app) if drawn_here else kind(fraction_train=1.0, fraction_evaluate=0.0)
            arrays = server.start(grid, start, num_rounds=self.app.rounds, train_config=config).arrays
        return {**models, self.app.rounds: arrays}, grid.count


def repeat_of(app: App, seed: int, repeat: int, place: Path) -> Row:
    """The three runs of one repeat.

    ``late`` is the mean accuracy after each round of the second half, on every fourth image of the test set.
    """
    row, incident = Row(seed=seed, repeat=repeat), Incident(app, seed, repeat, place)
    for run in RUNS:
        models, count = incident.run(run, BATCHES[run])
        final, success = measured(app, models[app.rounds])
        late = [accuracy(app, models[t], every=4) for t in range(app.rounds // 2 + 1, app.rounds + 1)]
        row[run] = {"accuracy": final, "success": success, "client_rounds": count, "late": mean(late)}
    return row


def in_float64(kind: type) -> type:
    """The strategy with the same mean, M + Σ p·(M_c - M), summed in float64 as fedcrab does."""

    class Exact(kind):
        def configure_train(self, server_round, arrays, config, grid):
            self.before = arrays
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, _, replies):
            contents = [reply.content for reply in replies]
            layout = array_layout(self.before)
            start = layout.flatten(self.before)
            rows = np.stack([layout.flatten(content["arrays"]) - start for content in contents])
            weights = np.array([content["metrics"]["num-examples"] for content in contents], float)
            return layout.arrays(start + fedavg()(rows, weights)), None

    return Exact


def check(app: App, seed: int, place: Path) -> str:
    """The largest difference between the models of `retrain` and of Flower, after each round."""
    incident = Incident(app, seed, 0, place)
    own = BATCHES["retrain"]
    found, _ = incident.run("retrain", own)
    lines = ["| mean | " + " | ".join(map(str, sorted(found)[1:])) + " | accuracy, retrain |"]
    lines.append("|---" * (len(found) + 1) + "|")
    kinds = {"Flower's": app.strategy, "in float64": in_float64(app.strategy)}
    for mean_, kind in kinds.items():
        models, _ = incident.run("same clients", own, kind)
        apart = [f"{largest_difference(models[t], found[t]):.1e}" for t in sorted(found)[1:]]
        ends = (accuracy(app, last[app.rounds]) for last in (models, found))
        lines.append(f"| {mean_} | " + " | ".join(apart) + " | " + ", ".join(f"{a:.2f}" for a in ends) + " |")
    return "\n".join(lines)


def rounding(app: App, seed: int, place: Path) -> str:
    """How far apart clients end that start 6e-8 apart: the smallest, median and largest difference."""
    incident, start = Incident(app, seed, 0, place), initial(app, seed)
    draw = np.random.default_rng(0)
    moved = {name: array.numpy() for name, array in start.items()}
    moved = {name: (a + draw.uniform(-6e-8, 6e-8, a.shape)).astype(np.float32) for name, a in moved.items()}
    config = ConfigRecord({"lr": app.rate, "server-round": 1})
    apart = []
    for site in sorted(incident.asked[0]):
        ends = []
        for arrays in (start, ArrayRecord({name: Array(a) for name, a in moved.items()})):
            message = Message(RecordDict({"arrays": arrays, "config": config}), 1, MessageType.TRAIN)
            ends.append(Clients(app, frozenset(), (seed, 0, 2)).train(site, message)[0])
        apart.append(largest_difference(*ends))
    return f"{len(apart)} clients end {min(apart):.1e} to {max(apart):.1e} apart, median {median(apart):.1e}"


def largest_difference(one: ArrayRecord, other: ArrayRecord) -> float:
    return max(float(np.abs(one[name].numpy() - other[name].numpy()).max()) for name in one)


def table(rows: list[Row]) -> str:
    """Means ± standard deviation by run; differences of pairs ± standard error; noise of single runs."""
    lines = ["| measure | " + " | ".join(RUNS) + " | retrain - honest | retrain - same | same - honest |"]
    lines.append("|---" * (len(RUNS) + 4) + "|")
    for measure in ("accuracy", "late", "success"):
        by_run = {run: [row[run][measure] for row in rows] for run in RUNS}
        cells = [f"{mean(found):.1f} ± {deviation(found):.1f}" for found in by_run.values()]
        pairs = (("retrain", "honest only"), ("retrain", "same clients"), ("same clients", "honest only"))
        cells += [difference(by_run[one], by_run[other]) for one, other in pairs]
        lines.append(f"| {measure} ({len(rows)}) | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", noise(rows)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    apart = [one - other for one, other in zip(ours, theirs, strict=True)]
    return f"{mean(apart):+.2f} ± {deviation(apart) / sqrt(len(apart)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("app", nargs="?", default="advanced", choices=list(APPS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--repeats", default="4-11", help="first and last")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only print the table of what has been run")
    parser.add_argument("--check", action="store_true", help="the same clients and batches; see above")
    parser.add_argument("--rounding", action="store_true", help="starts that differ by 6e-8; see above")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    app, seeds = replace(APPS[given.app], rows=given.rows), [int(seed) for seed in given.seeds.split(",")]
    if given.check or given.rounding:
        with TemporaryDirectory() as place:
            print((check if given.check else rounding)(app, seeds[0], Path(place)))
        return
    rows = [json.loads(line) for line in given.results.open()] if given.results.exists() else []
    mine = [row for row in rows if (row["app"], row["rows"]) == (given.app, given.rows)]
    done = {(row["seed"], row["repeat"]) for row in mine}
    first, _, last = given.repeats.partition("-")
    wanted = [(seed, n) for n in range(int(first), int(last or first) + 1) for seed in seeds]
    for seed, n in [] if given.table else [one for one in wanted if one not in done]:
        with TemporaryDirectory() as place:
            mine.append({"app": given.app, "rows": given.rows, **repeat_of(app, seed, n, Path(place))})
        with given.results.open("a") as file:
            file.write(json.dumps(mine[-1]) + "\n")
    print(table(mine))


if __name__ == "__main__":
    main()
