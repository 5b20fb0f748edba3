"""Label flips if clients' data differ: what `detect` reports, and what providing mistakes adds.

usage: python benchmarks/label_flips.py [--minutes M] [--table]

Dirichlet 0.1, 25 and 40% malicious, MLPs on MNIST and Fashion-MNIST, otherwise as in unlearning.py. Seeds
start at 10700; no threshold was set on them. The operator looks at the most frequent confusions on test
examples, true class → predicted class, and provides ten examples of each. Needs the image sets
(FEDCRAB_DATA).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cells
import numpy as np
import torch
from numpy.typing import NDArray
from unlearning import attacked

from fedcrab.audit import taught_examples
from fedcrab.detect import ledger
from fedcrab.experiment.forensics import investigate, server_for
from fedcrab.experiment.setup import open_for_training, run
from fedcrab.history import History

RESULTS, GROUP, FIRST = Path("benchmarks/results/label-flips.jsonl"), "label-flips", 10700
CONFUSIONS = 3  # how many the operator provides, one after the other


def examine(data: str, fraction: float, seed: int) -> dict[str, Any]:
    """Run one training; return who `detect` suspects or lists as different, and who the confusions name."""
    setup = attacked(data, "label-flip", "0.1", fraction, seed)
    with TemporaryDirectory(dir=cells.MEMORY) as folder:
        with open_for_training(setup, Path(folder) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        history = History.open(Path(folder) / "h")
        server, test = server_for(setup), setup.dataset
        answer = investigate(history, server=server).answer(ledger(history))
        said = server.flat.predict(history.final_model(), test.test_x)
        brought = []
        for true, predicted in confusions(test.test_y, said, test.classes):
            some = np.flatnonzero((test.test_y == true) & (said == predicted))[:10]
            found, _ = taught_examples(
                history, server.flat, test.test_x[some], said[some], server.x, server.y
            )
            brought.append({"confusion": [true, predicted], "named": list(found.suspects)})
        row = {"data": data, "fraction": fraction, "seed": seed, "ta": float(np.mean(said == test.test_y))}
        row |= {"malicious": sorted(setup.attackers.clients), "detect": list(answer.suspects)}
    setup.close()
    return row | {"apart": sorted(answer.apart), "brought": brought}


def confusions(true: NDArray[Any], said: NDArray[Any], classes: int) -> list[tuple[int, int]]:
    """The pairs (true, predicted) whose share of the true class is greatest."""
    counts = np.zeros((classes, classes))
    np.add.at(counts, (true, said), 1)
    rates = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(rates, 0)
    greatest = np.argsort(-rates, axis=None)[:CONFUSIONS]
    return [(int(k) // classes, int(k) % classes) for k in greatest]


def table() -> str:
    """How many attackers and honest clients each step names, over all trainings."""
    rows = list(cells.read(RESULTS, GROUP).values())
    for row in rows:
        row["named"] = sorted({client for one in row["brought"] for client in one["named"]})
        row["together"] = sorted({*row["detect"], *row["apart"], *row["named"]})
    lines = [f"| {len(rows)} trainings | attackers | honest clients |", "|---|---|---|"]
    steps = {"detect": "suspects of `detect`", "apart": "stand apart, not named"}
    steps |= {"named": f"named for the {CONFUSIONS} confusions", "together": "any of these"}
    total = sum(len(row["malicious"]) for row in rows)
    for step, what in steps.items():
        right = sum(client in row["malicious"] for row in rows for client in row[step])
        wrong = sum(len(row[step]) for row in rows) - right
        lines.append(f"| {what} | {right} of {total} | {wrong} |")
    return "\n".join(lines) + "\n"


def trainings() -> Iterator[cells.Cell]:
    torch.set_num_threads(1)
    for i in range(6):
        data, fraction = ("mnist", "fashion-mnist")[i % 2], (0.25, 0.4, 0.25)[i // 2]
        yield GROUP, str(FIRST + i), partial(examine, data, fraction, FIRST + i)


if __name__ == "__main__":
    cells.run(__doc__, RESULTS, trainings, table)
