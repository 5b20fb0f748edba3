"""Attacks on the model's own task: who the ledger names, and who `detect` names with what clients teach.

usage: python benchmarks/unlearning.py [--minutes M] [--results FILE] [--table]

20 clients, 20 rounds, 200 examples per client, MLPs, Compact(4); Dirichlet 0.1 and 0.5; 10, 25 and 40%
malicious. Seeds start at 8600; thresholds were set on seeds 5300 to 5600. `before` is the ledger's detector
alone with its threshold of 2.1, `ledger` the same with 2.5, and `detect` adds the second look and the clients
that make the model unlearn (no audit: these attacks plant nothing). One line of JSON per training; an
interrupted run resumes. Needs the image sets (FEDCRAB_DATA).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cells import MEMORY
from forensics import read

from fedcrab.audit import lessons
from fedcrab.audit.lessons import spare
from fedcrab.detect import join, ledger
from fedcrab.detect.ledger import ALARM, APART
from fedcrab.experiment.config import load_config
from fedcrab.experiment.forensics import server_for
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History

RESULTS = Path("benchmarks/results/unlearning.jsonl")
ATTACKS = ("sign-flip", "fang-trim", "label-flip", "ipm", "min-max", "lie")
SPREADS, FRACTIONS, FIRST = ("0.1", "0.5"), (0.25, 0.1, 0.4), 8600
WAYS = ("before", "ledger", "detect")
Row = dict[str, Any]


def trainings() -> Iterator[tuple[str, str, str, float, int]]:
    """Yield data, attack, spread, fraction and seed."""
    for i, (fraction, spread, attack) in enumerate(product(FRACTIONS, SPREADS, ATTACKS)):
        yield ("mnist", "fashion-mnist")[i % 2], attack, spread, fraction, FIRST + i


def attacked(data: str, attack: str, spread: str, fraction: float, seed: int) -> Setup:
    """Return an attacked training; ``spread`` is the concentration of Dirichlet's distribution."""
    dirichlet = f"{{name='dirichlet', settings={{concentration={spread}}}}}"
    changes = [f"seed={seed}", "model=mlp", "rounds=20", f"data.name={data}", "data.probe=1000"]
    changes += ["data.examples_per_client=200", "local.batch=32", "local.learning_rate=0.05"]
    changes += ["local.epochs=3", f"clients.partition={dirichlet}", "history={name='compact'}"]
    changes += [f"attack.name={attack}", "attack.settings={}", f"attack.fraction={fraction}"]
    return prepare(load_config("digits", changes), workers=0)


def examine(data: str, attack: str, spread: str, fraction: float, seed: int) -> Row:
    """Run one training; return the clients that each way names."""
    setup = attacked(data, attack, spread, fraction, seed)
    with TemporaryDirectory(dir=MEMORY) as folder:
        with open_for_training(setup, Path(folder) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        history = History.open(Path(folder) / "h")
        server, alone = server_for(setup), ledger(history)
        taught = lessons(history, server.flat, server.x, server.y, classes=server.classes)
        assert taught is not None
        answer = join([spare(alone, taught.teachers, taught.unlearners), taught.detection()])
        row: Row = {"data": data, "attack": attack, "spread": spread, "fraction": fraction, "seed": seed}
        row |= {
            "malicious": sorted(setup.attackers.clients),
            "ta": round(setup.accuracy(history.final_model()), 4),
        }
        row |= {"before": [*alone.suspects, *alone.apart], "ledger": list(alone.suspects)}
        row |= {"detect": list(answer.suspects), "weight": round(alone.strength * ALARM, 3)}
        row |= {"balance": dict(zip(taught.clients, taught.balance.round(3).tolist(), strict=True))}
    setup.close()
    return row


def table(rows: list[Row]) -> str:
    """Return precision / recall in % of each way, over all clients of the trainings of an attack."""
    lines = [f"| attack | spread | trainings | {' | '.join(WAYS)} |", "|---|---|---|---|---|---|"]
    for attack, spread in product(ATTACKS, SPREADS):
        some = [r for r in rows if (r["attack"], r["spread"]) == (attack, spread)]
        if some:
            cells = " | ".join(_right(some, way) for way in WAYS)
            lines.append(f"| {attack} | Dirichlet {spread} | {len(some)} | {cells} |")
    return "\n".join(lines) + "\n"


def _right(rows: list[Row], way: str) -> str:
    hits = sum(client in r["malicious"] for r in rows for client in r[way])
    named, bad = (sum(len(r[what]) for r in rows) for what in (way, "malicious"))
    return f"{f'{100 * hits / named:.0f}' if named else '-'} / {100 * hits / bad:.0f}"


def main() -> None:
    """Run the missing trainings, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    assert APART == 2.1, "`before` is what stands apart, or more"
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * arguments.minutes
    done = {row["seed"] for row in read(arguments.results)}
    for training in [] if arguments.table else trainings():
        if training[-1] in done:
            continue
        if time.monotonic() > until:
            print("some trainings are missing; the same command resumes")
            break
        row = examine(*training)
        with arguments.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*training, row["weight"], {way: len(row[way]) for way in WAYS}, flush=True)
    print(table(read(arguments.results)))


if __name__ == "__main__":
    main()
