"""Undetected attackers: the corrected replay beside retraining with the same rule.

usage: python benchmarks/undetected.py [--results FILE] [--first-seed N] [--most N] [--table]

20 clients × 300 examples, 30 rounds of 5 local epochs, an MLP on MNIST, recorded with Compact(4). Five
clients plant a backdoor; three of them are named, two stay and continue to attack when they are asked.
`liar`: boosted, and one of the two sends its poisoned update ten times as long when it is asked. The training
uses the mean; both recoveries use the mean or the trimmed mean. If replay ends more than 5 points of ASR
above retraining, three more of each, with other batches, show how much these differ from each other. One line
of JSON per training (the last line counts); an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from recovery_incidents import COMMON, quality, read

from fedcrab.aggregate.mean import Aggregate
from fedcrab.experiment.config import Aggregation, load_config
from fedcrab.experiment.setup import Setup, aggregate_of, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.recover import replay, retrain
from fedcrab.rollback.decision import plan
from fedcrab.types import ClientId, Fleet, Updates, Vector

ATTACKS = {
    "boosted": ["attack.name=backdoor", "attack.settings.boost=3.0"],
    "unboosted": ["attack.name=backdoor"],
    "pgd": ["attack.name=pgd", "attack.settings.boost=3.0"],
    "liar": ["attack.name=backdoor", "attack.settings.boost=3.0"],
}
SPREADS = ("iid", "dirichlet 0.3")
RULES = {"mean": Aggregation(), "trimmed mean": Aggregation(name="trimmed-mean", settings={"trim": 2})}
NAMED, SEEDS, LOUDER = 3, 3, 10.0
CLOSE = 0.05  # ASR above that of retraining
MORE = {"replay": (6, 7, 8), "retrain": (3, 4, 5)}  # the batches of further recoveries


@dataclass(frozen=True, slots=True)
class LyingFleet:
    """The same clients, but one of them multiplies its update."""

    fleet: Fleet
    liar: ClientId

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        sent = self.fleet.train(model, clients, round=round, epochs=epochs)
        longer = np.array([LOUDER if client == self.liar else 1.0 for client in sent.clients], np.float32)
        return replace(sent, vectors=sent.vectors * longer[:, None])


def trainings(first_seed: int) -> list[tuple[str, str, int]]:
    """Return all trainings: every attack and spread once, then again with the next seed."""
    return [(a, s, first_seed + n) for n, s, a in product(range(SEEDS), SPREADS, ATTACKS)]


def run_training(attack: str, spread: str, seed: int) -> dict[str, Any]:
    """Train, then recover and retrain with each rule."""
    changes = [f"seed={seed}", "data.name=mnist", "attack.fraction=0.25", *COMMON, *ATTACKS[attack]]
    if spread != "iid":
        amount = spread.removeprefix("dirichlet ")
        changes += [f"clients.partition={{name='dirichlet', settings={{concentration={amount}}}}}"]
    setup = prepare(load_config("paper-mnist", changes), workers=0)
    attackers = sorted(setup.attackers.clients)
    with tempfile.TemporaryDirectory() as place:
        with open_for_training(setup, Path(place) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        history = History.open(Path(place) / "h")
        row = {"attack": attack, "spread": spread, "seed": seed}
        row["poisoned"] = quality(setup, history.final_model())
        for name, aggregation in RULES.items():
            config = setup.config.model_copy(update={"aggregation": aggregation})
            row[name] = _recovered(setup, history, attackers, attack == "liar", aggregate_of(config))
        return row


def _recovered(
    setup: Setup, history: History, attackers: list[ClientId], lying: bool, rule: Aggregate
) -> dict[str, Any]:
    decided = plan(history, attackers[:NAMED])

    def end(method: Any, time: int) -> dict[str, Any]:
        fleet: Fleet = setup.fleet_again(time)
        steps = list(method(decided, LyingFleet(fleet, attackers[-1]) if lying else fleet, aggregate=rule))
        return {
            **quality(setup, steps[-1].model),
            "client_rounds": sum(len(step.asked) for step in steps),
        }

    found: dict[str, Any] = {"replay": end(replay, 1), "retrain": end(retrain, 2)}
    if _above(found) > CLOSE:
        found["more"] = {
            method.__name__: [end(method, time) for time in MORE[method.__name__]]
            for method in (replay, retrain)
        }
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: one row per attack, spread and rule."""
    lines = [
        "| attack, spread | rule | poisoned ASR % | retrain TA / ASR % | replay TA / ASR % | "
        "ASR above retraining's, per seed | client-rounds % |",
        "|---|---|---|---|---|---|---|",
    ]
    for attack, spread in product(ATTACKS, SPREADS):
        group = [row for row in rows if (row["attack"], row["spread"]) == (attack, spread)]
        lines += [f"| {attack}, {spread} | {rule} | {_line(group, rule)} |" for rule in RULES if group]
    above = [_over(row, rule) for row in rows for rule in RULES]
    close = sum(over <= CLOSE for over in above)
    lines += ["", f"{close} of {len(above)} recoveries end at most 5 points of ASR above retraining."]
    lines += [_again(row, rule) for row in rows for rule in RULES if "more" in row[rule]]
    return "\n".join(lines)


def _line(group: Sequence[dict[str, Any]], rule: str) -> str:
    def told(method: str) -> str:
        return " / ".join(
            f"{100 * np.mean([row[rule][method][measure] for row in group]):.1f}" for measure in ("ta", "asr")
        )

    poisoned = 100 * np.mean([row["poisoned"]["asr"] for row in group])
    above = ", ".join(f"{100 * _over(row, rule):+.1f}" for row in group)
    cost = np.mean(
        [row[rule]["replay"]["client_rounds"] / row[rule]["retrain"]["client_rounds"] for row in group]
    )
    return f"{poisoned:.0f} | {told('retrain')} | {told('replay')} | {above} | {100 * cost:.0f}"


def _again(row: dict[str, Any], rule: str) -> str:
    """Return the ASR of each repetition; the first is that of the table."""
    found = row[rule]
    told = []
    for method in MORE:
        each = (f"{100 * one['asr']:.1f}" for one in (found[method], *found["more"][method]))
        told.append(f"{method} {', '.join(each)}")
    name = f"{row['attack']}, {row['spread']}, seed {row['seed']}, {rule}"
    return f"- {name}: ASR % with other batches: {'; '.join(told)}"


def _over(row: dict[str, Any], rule: str) -> float:
    return _above(row[rule])


def _above(found: dict[str, Any]) -> float:
    return float(found["replay"]["asr"] - found["retrain"]["asr"])


def _whole(row: dict[str, Any]) -> bool:
    return all("more" in row[rule] or _over(row, rule) <= CLOSE for rule in RULES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/undetected.jsonl"))
    parser.add_argument("--first-seed", type=int, default=3000)
    parser.add_argument("--most", type=int, default=None, help="number of trainings, from the first on")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows = {(row["attack"], row["spread"], row["seed"]): row for row in read(arguments.results)}
    for training in [] if arguments.table else trainings(arguments.first_seed)[: arguments.most]:
        if training not in rows or not _whole(rows[training]):
            rows[training] = run_training(*training)
            with arguments.results.open("a") as file:
                file.write(json.dumps(rows[training]) + "\n")
            print(*training, flush=True)
    print(table(list(rows.values())))


if __name__ == "__main__":
    main()
