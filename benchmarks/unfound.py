"""Attackers whom nobody found stay in the fleet and poison the recovery: what a robust rule makes of that.

usage: python benchmarks/unfound.py [--minutes M] [--table]

Digits, 20 clients, 20 rounds; five plant a backdoor, as it is or boosted three times, three of them are
found; recovery with the other two still there, by several rules, beside training again by the same rule.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptive import RESULTS, SPREADS, Cells, measures, percent
from cells import MEMORY, Cell, fill, read
from poisoned import SEEDS, attacked, recorded

from fedcrab.experiment.config import Aggregation
from fedcrab.experiment.recovery import poisoned, recovered

RULES: dict[str, Aggregation] = {
    "fedavg": Aggregation(),
    "median": Aggregation(name="median"),
    "trimmed-mean, 2": Aggregation(name="trimmed-mean", settings={"trim": 2}),
    "trimmed-mean, 4": Aggregation(name="trimmed-mean", settings={"trim": 4}),
}
METHODS = ("retrain", "crab-hardened", "crab-paper")
BOOSTS = (1.0, 3.0)


def unfound(boost: float, spread: str, seed: int) -> dict[str, Any]:
    """Three of five are named; every method by every rule."""
    setup = attacked("backdoor", 0.25, spread, seed, more=[f"attack.settings.boost={boost}"])
    named = sorted(setup.attackers.clients)[:3]
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        history = recorded(setup, Path(place) / "h")
        found = {"poisoned": measures(setup, poisoned(history))}
        for rule, aggregation in RULES.items():
            other = replace(setup, config=setup.config.model_copy(update={"aggregation": aggregation}))
            for method in METHODS:
                found[f"{rule}; {method}"] = measures(other, recovered(method, history, named, other))
    setup.close()
    return found


def cells() -> Iterator[Cell]:
    for seed in SEEDS:
        for boost in BOOSTS:
            for spread in SPREADS:
                yield f"unfound-{spread}", f"{boost}-{seed}", lambda a=(boost, spread, seed): unfound(*a)


def table() -> str:
    columns = "boost, spread|rule|poisoned ASR|retrain TA, ASR|crab-hardened TA, ASR|crab-paper TA, ASR"
    lines = [f"|{columns}|hardened over retrain, ASR of each seed|", "|---" * 7 + "|"]
    for boost in BOOSTS:
        for spread in SPREADS:
            stored = read(RESULTS, f"unfound-{spread}")
            group = [cell for key, cell in stored.items() if key.startswith(f"{boost}-")]
            lines += [_row(f"{boost:g}, {spread}", rule, group) for rule in RULES if group]
    return "\n".join(lines)


def _row(where: str, rule: str, group: Cells) -> str:
    names = [f"{rule}; {method}" for method in METHODS]
    told = [f"{percent(group, name, 'ta')}, {percent(group, name, 'asr')}" for name in names]
    more = ", ".join(f"{100 * (cell[names[1]]['asr'] - cell[names[0]]['asr']):+.1f}" for cell in group)
    return f"| {where} | {rule} | {percent(group, 'poisoned', 'asr')} | {' | '.join(told)} | {more} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table and not fill(RESULTS, cells(), minutes=arguments.minutes):
        print("there is more to do; the same command goes on")
    print(table())


if __name__ == "__main__":
    main()
