"""How tight the bounds of a certificate are on random convex problems, and whether any is violated.

usage: python benchmarks/certificate_problems.py crab|replay [--generator Y|T] [--first N] [--problems N]
                                                             [--rows FILE]

Generator Y: ten clients, 15 to 30 rounds, full batches. Generator T: two to seven clients, 2 to 12 rounds, of
many kinds (tests/trials/convex.py). Problems that are not convex are left out. One line of JSON per problem;
an interrupted run resumes. With --problems 0 nothing is computed, and the tables come from the file.

crab: median bound / distance, and in brackets the share of bounds below the poisoned model's true distance;
with lengths alone, with kept answers and one honest round at the result (anchor), with the history's updates
in 4 and 8 bits, and with exact updates.

replay: the share of retraining's client-rounds that was asked, and the true and the proven distance to
retraining as shares of the poisoned model's true distance; medians. Recorded with Compact(bits=8).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from trials import tightness
from trials.convex import Training, long_training, random_training

GENERATORS = {"Y": (long_training, 0), "T": (random_training, 5000)}
PRESETS = ("hardened", "paper")
EVIDENCE = ("lengths", "anchor", "4 bits", "8 bits", "updates")
TERMS = ("distance.coupled", "distance.anchored", "distance.enclosed", None)
REPLAYS: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay, every 3rd round, all asked": {"every": 3, "asked": 100, "settle": 2},
    "certified, nobody asked": {"proof": 1e5},
    "certified, proof=0.5": {"proof": 0.5},
    "certified, proof=0.2": {"proof": 0.2},
    "certified, proof=0.1": {"proof": 0.1},
    "certified, proof=0.05": {"proof": 0.05},
}
Row = dict[str, Any]


def crab_row(generator: str, seed: int) -> Row:
    """Every bound of one problem's recoveries, beside the distance."""
    found: Row = {}
    for bits in (None, 4, 8):
        with problem(generator, seed, bits) as training:
            for preset in PRESETS if training else ():
                kinds = tightness.EVIDENCE if bits is None else ("anchor",)
                for kind, measured in tightness.measured(training, preset, kinds).items():
                    if tightness.comparable(measured, training):
                        found[f"{preset}, {f'{bits} bits' if bits else kind}"] = measured.numbers()
    return found


def replay_row(generator: str, seed: int) -> Row:
    """What each replay of one problem asks, reaches and proves."""
    with problem(generator, seed, 8) as training:
        rows = tightness.replays(training, REPLAYS) if training else {}
        return {name: {"asked": asked, **row.numbers()} for name, (asked, row) in rows.items()}


def problem(generator: str, seed: int, bits: int | None) -> AbstractContextManager[Training | None]:
    return tightness.convex_training(partial(GENERATORS[generator][0], bits=bits), seed)


def stored(path: Path) -> Iterator[Row]:
    """The rows of an earlier run."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def crab_table(rows: list[Row], generator: str) -> Iterator[str]:
    heads = ("problems, preset", "evidence", "problems", "`coupled`", "`anchored`", "`enclosed`")
    yield f"| {' | '.join(heads)} | conclusion | doing nothing |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for preset in PRESETS:
        for evidence in EVIDENCE:
            cells = [
                row["found"][f"{preset}, {evidence}"]
                for row in rows
                if f"{preset}, {evidence}" in row["found"]
            ]
            found = [tightness.Measured(**cell) for cell in cells]
            if found:
                told = ["{:.2f} ({:.2f})".format(*tightness.ratios(found, name)[:2]) for name in TERMS]
                nothing = median(m.nothing / m.poisoned for m in found if m.nothing and m.poisoned > 1e-3)
                start = f"{generator}, {preset} | {evidence} | {len(found)}"
                yield f"| {start} | {' | '.join(told)} | {nothing:.2f} |"
    yield f"\n{violations([cell for row in rows for cell in row['found'].values()])}"


def replay_table(rows: list[Row], generator: str) -> Iterator[str]:
    yield f"| {generator} | problems | client-rounds | true | proven | below |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in REPLAYS:
        cells = [row["found"][name] for row in rows if name in row["found"]]
        shares = [
            (cell["asked"], cell["truth"] / cell["poisoned"], min(cell["bounds"].values()) / cell["poisoned"])
            for cell in cells
            if cell["poisoned"] > 1e-3
        ]
        if shares:
            asked, true, proven = (median(column) for column in zip(*shares, strict=True))
            below = sum(share[2] < 1 for share in shares) / len(shares)
            yield f"| {name} | {len(shares)} | {asked:.0%} | {true:.3f} | {proven:.3f} | {below:.2f} |"
    yield f"\n{violations([cell for row in rows for cell in row['found'].values()])}"


def violations(cells: list[Row]) -> str:
    """How many sound bounds were checked, and how many are below the distance."""
    pairs = [(cell["truth"], bound) for cell in cells for bound in cell["bounds"].values()]
    violated = sum(truth > bound for truth, bound in pairs)
    return f"{len(pairs)} sound bounds checked, {violated} below the distance."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("crab", "replay"))
    parser.add_argument("--generator", choices=tuple(GENERATORS), default="Y")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--rows", type=Path, default=Path("certificate-problems.jsonl"))
    asked = parser.parse_args()
    key = {"what": asked.what, "generator": asked.generator}
    rows = [row for row in stored(asked.rows) if row.items() >= key.items()]
    done = {row["seed"] for row in rows}
    first = GENERATORS[asked.generator][1] if asked.first is None else asked.first
    run = {"crab": crab_row, "replay": replay_row}[asked.what]
    with asked.rows.open("a") as file:
        for seed in sorted({*range(first, first + asked.problems)} - done):
            rows.append({**key, "seed": seed, "found": run(asked.generator, seed)})
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    table = {"crab": crab_table, "replay": replay_table}[asked.what]
    print("\n".join(table(rows, asked.generator)))


if __name__ == "__main__":
    main()
