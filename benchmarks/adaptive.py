"""Attackers who know Crab: what both presets decide, and how much of the backdoor is left after recovery.

usage: python benchmarks/adaptive.py [--minutes M] [--table]

25 and 50% of 20 clients plant a backdoor, boosted twice, on digits: 20 rounds, IID and Dirichlet(0.5), seeds
0 to 2. It is hidden in each of the ways of evaders.py, or by a false loss (one that never falls, or is not a
number). Besides TA and ASR, the table shows whether S was ever smaller than the attackers' real movement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from cells import MEMORY, Cell, read, run
from evaders import cut, inflate, sybils
from poisoned import SEEDS, attacked, recorded

from fedcrab.attack import evade
from fedcrab.detect import ledger
from fedcrab.experiment.recovery import Outcome, measure_outcome, poisoned, recover_to_end
from fedcrab.experiment.setup import Setup, rerecord
from fedcrab.history import History, Selective
from fedcrab.rollback.decision import PRESETS as DEFAULTS
from fedcrab.rollback.decision import Plan, plan
from fedcrab.train import ServerProbe
from fedcrab.types import Updates, Vector

AS_STORED = {"beta": 0.3, "batches": "history"}  # the defaults when these trials were run
PRESETS = {name: {**settings, "beta": AS_STORED["beta"]} for name, settings in DEFAULTS.items()}
RESULTS = Path("benchmarks/results/adaptive.jsonl")
SPREADS, FRACTIONS = ("iid", "dirichlet"), (0.25, 0.5)
TRAINING = ["attack.settings.boost=2.0", "history.name=everything"]
Cells = list[dict[str, Any]]


@dataclass(frozen=True)
class LyingProbe:
    """A probe that reports the loss that attackers want."""

    probe: ServerProbe
    lie: float

    def loss(self, model: Vector) -> float:  # noqa: ARG002
        return self.lie

    def divergence(self, before: Vector, after: Vector) -> float:
        return self.probe.divergence(before, after)


WAYS: dict[str, Callable[[Setup], Setup]] = {
    "plain": lambda s: s,
    "evade": lambda s: replace(s, fleet=evade(s.fleet, s.attackers)),
    "sybils": lambda s: replace(s, fleet=sybils(s.fleet, s.attackers)),
    "cut": lambda s: replace(s, fleet=cut(s.fleet, s.attackers)),
    "stalled-loss": lambda s: replace(s, probe=LyingProbe(s.probe, 2.3)),
    "no-loss": lambda s: replace(s, probe=LyingProbe(s.probe, float("nan"))),
    "inflate": lambda s: replace(s, fleet=inflate(s.fleet, s.attackers)),
}


def known(way: str, fraction: float, spread: str, seed: int) -> dict[str, Any]:
    """Run one training; plan and recover it with both presets."""
    setup = WAYS[way](attacked("backdoor", fraction, spread, seed, more=TRAINING))
    bad = setup.attackers.clients
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        everything = recorded(setup, Path(place) / "everything")
        history = rerecord(everything, Path(place) / "h", Selective())
        truth, found = moved(everything, bad), {"poisoned": measures(setup, poisoned(history))}
        for preset in PRESETS:
            how = {**AS_STORED, "everyone": False}
            row = measures(setup, recover_to_end(f"crab-{preset}", history, bad, setup, **how))
            found[preset] = {**row, **decided(plan(history, bad, **PRESETS[preset]), truth)}
        again = recover_to_end("retrain", history, bad, setup, batches="history")
        found["retrain"] = measures(setup, again)
        suspects = set(ledger(history).suspects)
    setup.close()
    found["ledger"] = {"hits": len(suspects & bad), "accused": len(suspects), "attackers": len(bad)}
    return found


def decided(decision: Plan, truth: list[float]) -> dict[str, Any]:
    """Return a plan beside the truth: at how many records S is smaller, and S / truth at the last one."""
    true = [truth[t] for t in decision.candidates]
    pairs = zip(decision.sensitivity, true, strict=True)
    return {
        "rollback": decision.rollback_round,
        "cost": round(decision.cost["share_of_retrain"], 3),
        "records": len(true),
        "less": sum(s < net * (1 - 1e-6) - 1e-9 for s, net in pairs),
        "reported": round(decision.sensitivity[-1] / true[-1], 3) if true[-1] else 1.0,
    }


def moved(history: History, bad: frozenset[str]) -> list[float]:
    """Return, per round, how far the attackers had moved the model before it, from the vectors themselves.

    This is ‖Σ (mean of all - mean of the honest)‖: the distance between the model and where the same honest
    updates alone would have put it.
    """
    away, found = np.zeros(history.charter.layout.size), []
    for entry in history.rounds:
        found.append(float(np.linalg.norm(away)))
        updates = history.updates(entry.index)
        away += _mean(updates) - _mean(updates.without(bad))
    return found


def _mean(updates: Updates) -> np.ndarray:
    return np.average(updates.vectors.astype(np.float64), axis=0, weights=updates.weights)


def measures(setup: Setup, outcome: Outcome) -> dict[str, float]:
    row = measure_outcome(setup, outcome)
    return {"ta": round(row["ta"], 4), "asr": round(row["asr"], 4)}


def percent(cells: Cells, who: str, what: str) -> str:
    return f"{100 * mean(cell[who][what] for cell in cells):.1f}"


def cells() -> Iterator[Cell]:
    for seed in SEEDS:
        for way in WAYS:
            for fraction in FRACTIONS:
                for spread in SPREADS:
                    arguments = (way, fraction, spread, seed)
                    yield f"{way}-{spread}", f"{fraction}-{seed}", lambda a=arguments: known(*a)


def groups() -> Iterator[tuple[str, str, Cells]]:
    """Yield the runs that differ only in the seed."""
    for way in WAYS:
        for spread in SPREADS:
            for fraction in FRACTIONS:
                stored = read(RESULTS, f"{way}-{spread}")
                if found := [cell for key, cell in stored.items() if key.startswith(f"{fraction}-")]:
                    yield way, f"{fraction:.0%}, {spread}", found


def recovery_table() -> str:
    columns = "hidden by|attackers|poisoned TA / ASR|retrained"
    each = "|".join(f"{p}: back to|{p}: TA / ASR|{p}: cost|{p}: S / truth|{p}: S < truth" for p in PRESETS)
    lines = [f"|{columns}|{each}|", "|---" * 14 + "|"]
    for way, who, group in groups():
        row = [_both(group, "poisoned"), _both(group, "retrain")]
        for preset in PRESETS:
            rows = [cell[preset] for cell in group]
            row += [
                ", ".join(str(r["rollback"]) for r in rows),
                _both(group, preset),
                f"{mean(r['cost'] for r in rows):.0%}",
                f"{min(r['reported'] for r in rows):.2f}",
                f"{sum(r['less'] for r in rows)} of {sum(r['records'] for r in rows)}",
            ]
        lines.append(f"| {way} | {who} | {' | '.join(row)} |")
    return "\n".join(lines)


def _both(group: Cells, who: str) -> str:
    return f"{percent(group, who, 'ta')} / {percent(group, who, 'asr')}"


def found_table() -> str:
    lines = ["| hidden by | attackers | ledger: precision / recall |", "|---|---|---|"]
    for way, who, group in groups():
        rows = [cell["ledger"] for cell in group]
        hits, accused = sum(r["hits"] for r in rows), sum(r["accused"] for r in rows)
        precision = f"{hits / accused:.0%}" if accused else "-"
        lines.append(f"| {way} | {who} | {precision} / {hits / sum(r['attackers'] for r in rows):.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(__doc__, RESULTS, cells, recovery_table, found_table)
