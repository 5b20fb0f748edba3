"""If half of the clients attack: how often the fall of the server's loss identifies the honest half.

usage: python benchmarks/sides.py [--minutes M] [--table]

The trainings of benchmarks/detection.py with half of the clients malicious: every attack, IID and
Dirichlet(0.5), seeds 0 to 2, digits and MNIST. A t above 0 favours the honest half; the table groups the
trainings by |t|.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

from cells import MEMORY, Cell, read, run
from detection import SPREADS
from poisoned import ATTACKS, SEEDS, attacked, recorded

from fedcrab.detect.split import lowers_the_loss

RESULTS = Path("benchmarks/results/sides.jsonl")
DATA = ("digits", "mnist")
BOUNDS = (0, 1, 3, 6, 10, float("inf"))  # of |t|


def clearness(data: str, attack: str, spread: str, seed: int) -> float:
    """Return t for the honest half."""
    setup = attacked(attack, 0.5, spread, seed, data=data)
    honest = set(setup.honest.clients) - setup.attackers.clients
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        t = lowers_the_loss(recorded(setup, Path(place) / "h"), honest)
    setup.close()
    return round(t, 3)


def cells() -> Iterator[Cell]:
    for data, spread, attack, seed in product(DATA, SPREADS, ATTACKS, SEEDS):
        arguments = (data, attack, spread, seed)
        yield f"{data}-{spread}", f"{attack}-{seed}", lambda a=arguments: clearness(*a)


def table() -> str:
    """Return, per range of |t|, the number of trainings, and in how many the honest half was identified."""
    lines = [
        "| t | " + " | ".join(f"{data}: right, of" for data in DATA) + " |",
        "|---|" + "---|" * len(DATA),
    ]
    for least, most in pairwise(BOUNDS):
        row = []
        for data in DATA:
            found = [t for spread in SPREADS for t in read(RESULTS, f"{data}-{spread}").values()]
            clear = [t for t in found if least <= abs(t) < most]
            row.append(f"{sum(t > 0 for t in clear)}, {len(clear)}")
        name = f"{least} to {most}" if most < float("inf") else f"above {least}"
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(__doc__, RESULTS, cells, table)
