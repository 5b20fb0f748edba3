"""Plans that allow for undetected attackers (--undetected): what they prevent, and what they cost.

usage: python benchmarks/undetected_plans.py [--minutes M] [--table]

Digits, 20 clients, 20 rounds. Five clients plant a backdoor, unboosted or boosted three times; three are
named, two stay in the fleet and poison the recovery. Crab recovers with several rules, beside retraining with
the same rule. `unfound` is crab-hardened with a plan that allows for 10% undetected attackers. The cost of
such a plan if all attackers are named: 10% of the clients, boosted three times, from round 12 on. Replay with
undetected attackers: benchmarks/undetected.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from adaptive import AS_STORED, SPREADS, Cells, measures, percent
from cells import MEMORY, Cell, read, run
from poisoned import SEEDS, attacked, recorded

from fedcrab.experiment.config import Aggregation
from fedcrab.experiment.recovery import poisoned, recover_to_end
from fedcrab.history import History
from fedcrab.rollback.decision import plan

RULES: dict[str, Aggregation] = {
    "fedavg": Aggregation(),
    "median": Aggregation(name="median"),
    "trimmed-mean, 2": Aggregation(name="trimmed-mean", settings={"trim": 2}),
    "trimmed-mean, 4": Aggregation(name="trimmed-mean", settings={"trim": 4}),
}
RESULTS = Path("benchmarks/results/undetected-plans.jsonl")
CRAB = {**AS_STORED, "everyone": False}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "retrain": ("retrain", {"batches": "history"}),
    "unfound": ("crab-hardened", {**CRAB, "unfound": 0.1}),
    "crab-hardened": ("crab-hardened", CRAB),
    "crab-paper": ("crab-paper", CRAB),
}
BOOSTS, SUPPOSED = (1.0, 3.0), (0.0, 0.05, 0.1, 0.2)
FLEETS, LATE = (20, 100), 12  # numbers of clients, and the first attacked round


def unfound(boost: float, spread: str, seed: int) -> dict[str, Any]:
    """Run one training with three of five attackers named; recover with every method and rule."""
    setup = attacked("backdoor", 0.25, spread, seed, more=[f"attack.settings.boost={boost}"])
    named = sorted(setup.attackers.clients)[:3]
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        history = recorded(setup, Path(place) / "h")
        found = {"poisoned": measures(setup, poisoned(history))}
        for rule, aggregation in RULES.items():
            other = replace(setup, config=setup.config.model_copy(update={"aggregation": aggregation}))
            for name, (method, how) in METHODS.items():
                outcome = recover_to_end(method, history, named, other, **how)
                found[f"{rule}; {name}"] = measures(other, outcome)
        found |= supposed(history, named)
    setup.close()
    return found


def late(clients: int, spread: str, seed: int) -> dict[str, Any]:
    """Run one training with a late attack and all attackers named: what does allowing for more cost?"""
    more = ["attack.settings.boost=3.0", f"attack.start={LATE}", f"clients.count={clients}"]
    setup = attacked("backdoor", 0.1, spread, seed, more=more)
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        found = supposed(recorded(setup, Path(place) / "h"), sorted(setup.attackers.clients))
    setup.close()
    return found


def supposed(history: History, named: list[str]) -> dict[str, Any]:
    """Return the plans that allow for these shares of undetected attackers."""
    plans = [plan(history, named, AS_STORED["beta"], unfound=share) for share in SUPPOSED]
    return {
        "back to": {str(p.unfound): p.rollback_round for p in plans},
        "cost": {str(p.unfound): round(p.cost["share_of_retrain"], 3) for p in plans},
    }


def cells() -> Iterator[Cell]:
    for seed in SEEDS:
        for boost in BOOSTS:
            for spread in SPREADS:
                yield f"unfound-{spread}", f"{boost}-{seed}", lambda a=(boost, spread, seed): unfound(*a)
        for clients in FLEETS:
            for spread in SPREADS:
                yield f"late-{spread}", f"{clients}-{seed}", lambda a=(clients, spread, seed): late(*a)


def groups() -> Iterator[tuple[str, Cells]]:
    """Yield the runs that differ only in the seed."""
    for boost in BOOSTS:
        for spread in SPREADS:
            stored = read(RESULTS, f"unfound-{spread}")
            if group := [cell for key, cell in stored.items() if key.startswith(f"{boost}-")]:
                yield f"{boost:g}, {spread}", group


def table() -> str:
    told = "|".join(f"{name} TA, ASR" for name in METHODS)
    over = "unfound over retrain, ASR of each seed|hardened over retrain"
    lines = [f"|boost, spread|rule|poisoned ASR|{told}|{over}|", "|---" * 9 + "|"]
    return "\n".join([*lines, *(_row(where, rule, group) for where, group in groups() for rule in RULES)])


def _row(where: str, rule: str, group: Cells) -> str:
    told = [
        f"{percent(group, f'{rule}; {name}', 'ta')}, {percent(group, f'{rule}; {name}', 'asr')}"
        for name in METHODS
    ]
    over = [_over(rule, name, group) for name in ("unfound", "crab-hardened")]
    return f"| {where} | {rule} | {percent(group, 'poisoned', 'asr')} | {' | '.join([*told, *over])} |"


def _over(rule: str, name: str, group: Cells) -> str:
    """Return, per seed, the points of ASR above that of retraining."""
    pairs = [(cell[f"{rule}; {name}"]["asr"], cell[f"{rule}; retrain"]["asr"]) for cell in group]
    return ", ".join(f"{100 * (ours - again):+.1f}" for ours, again in pairs)


def supposed_table() -> str:
    """Return the rounds that the plans go back to, and their share of retraining's client-rounds."""
    head = "|".join(f"{share:.0%} supposed: back to|cost" for share in SUPPOSED)
    lines = [f"|training|{head}|", "|---" * (1 + 2 * len(SUPPOSED)) + "|"]
    lines += [_plans(f"20 clients, boost {where}", group) for where, group in groups()]
    for clients in FLEETS:
        for spread in SPREADS:
            stored = read(RESULTS, f"late-{spread}")
            group = [cell for key, cell in stored.items() if key.startswith(f"{clients}-")]
            lines.append(_plans(f"{clients} clients, from round {LATE}, all named, {spread}", group))
    return "\n".join(lines)


def _plans(where: str, group: Cells) -> str:
    row = []
    for at in range(len(SUPPOSED)):
        row.append(", ".join(str([*cell["back to"].values()][at]) for cell in group))
        row.append(f"{mean([*cell['cost'].values()][at] for cell in group):.0%}")
    return f"| {where} | {' | '.join(row)} |"


if __name__ == "__main__":
    run(__doc__, RESULTS, cells, table, supposed_table)
