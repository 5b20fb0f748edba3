"""Both detectors on every attack, and how their mistakes affect the recovered model.

usage: python benchmarks/detection.py [digits|mnist|step|mistakes ...] [--minutes M] [--table]

20 clients, 20 rounds, 10, 25 and 50% malicious, IID and Dirichlet(0.5), seeds 0 to 2. Without attack also
Dirichlet(0.1), two classes per client, and half of the clients per round, seeds 0 to 9. `step` is one
full-batch step per round, the case that FLDetector was designed for. FLDetector runs during the training; the
ledger is examined afterwards. The thresholds of the ledger's detector were set on other trainings: digits,
seeds from 100 on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from cells import MEMORY, Cell, fill, read
from poisoned import ATTACKS, FRACTIONS, SEEDS, attacked, recorded

from fedcrab.detect import FLDetector, WatchedFleet, ledger
from fedcrab.experiment.recovery import measure_outcome, poisoned, recover_to_end
from fedcrab.rollback.decision import plan

AS_STORED = {"beta": 0.3, "batches": "history"}  # the defaults when these trials were run
RESULTS = Path("benchmarks/results/detection.jsonl")
SPREADS = ("iid", "dirichlet")
UNATTACKED = (*SPREADS, "dirichlet-0.1", "shards", "half")
DETECTORS = ("ledger", "fldetector")


def judge(data: str, attack: str, fraction: float, spread: str, seed: int) -> dict[str, Any]:
    """Run one training; return the attackers, and the suspects of each detector."""
    setup = attacked(attack, fraction, spread, seed, data=data)
    watch = FLDetector(layout=setup.honest.layout)
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        history = recorded(setup, Path(place) / "h", lambda fleet: WatchedFleet(fleet, watch))
        found = {"ledger": ledger(history), "fldetector": watch.detection()}
        accuracy = setup.accuracy(history.final_model())
    setup.close()
    return {
        "malicious": sorted(setup.attackers.clients),
        "ta": round(accuracy, 4),
        **{
            name: {"suspects": list(d.suspects), "strength": round(d.strength, 3)}
            for name, d in found.items()
        },
    }


def detection_cells(data: str) -> Iterator[Cell]:
    fractions = (0.25,) if data == "step" else FRACTIONS
    for spread in UNATTACKED if data == "digits" else SPREADS:
        for seed in range(10 if data == "digits" else 3):
            arguments = (data, "none", 0.0, spread, seed)
            yield f"{data}-none-{spread}", f"0-{seed}", lambda a=arguments: judge(*a)
    for seed in SEEDS:
        for attack in ATTACKS:
            for spread in SPREADS:
                for fraction in fractions:
                    arguments = (data, attack, fraction, spread, seed)
                    yield f"{data}-{attack}-{spread}", f"{fraction}-{seed}", lambda a=arguments: judge(*a)


def mistakes(attack: str, spread: str, seed: int) -> dict[str, Any]:
    """Run one training with a quarter of attackers; recover it with correct and with wrong names."""
    setup = attacked(attack, 0.25, spread, seed)
    bad = sorted(setup.attackers.clients)
    honest = [client for client in setup.honest.clients if client not in bad]
    named = {
        "all of them": bad,
        "one missed": bad[1:],
        "two missed": bad[2:],
        "two honest too": [*bad, *honest[:2]],
        "five honest too": [*bad, *honest[:5]],
        "one missed, two honest": [*bad[1:], *honest[:2]],
    }
    rows = {}
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        history = recorded(setup, Path(place) / "h")
        rows["nothing done"] = _measures(measure_outcome(setup, poisoned(history)))
        named["the ledger's suspects"] = list(ledger(history).suspects)
        for name, clients in named.items():
            for method in ("crab-hardened", "retrain") if clients else ():
                how = {**AS_STORED, **({"everyone": False} if method == "crab-hardened" else {})}
                outcome = recover_to_end(method, history, clients, setup, **how)
                rollback = plan(history, clients, AS_STORED["beta"]).rollback_round
                rows[f"{name}, {method}"] = {
                    **_measures(measure_outcome(setup, outcome)),
                    "rollback": rollback,
                }
    setup.close()
    return rows


def _measures(row: dict[str, Any]) -> dict[str, float]:
    return {"ta": round(row["ta"], 4), "asr": round(row["asr"], 4)}


def mistake_cells() -> Iterator[Cell]:
    for attack in ("backdoor-x3", "backdoor", "dba"):
        for spread in SPREADS:
            for seed in SEEDS:
                arguments = (attack, spread, seed)
                yield f"mistakes-{attack}-{spread}", str(seed), lambda a=arguments: mistakes(*a)


def rates(cells: list[dict[str, Any]], detector: str) -> tuple[float, float]:
    """Return precision over all accused clients (1 if there are none) and recall over all attackers."""
    hits = [set(c[detector]["suspects"]) & set(c["malicious"]) for c in cells]
    accused = sum(len(c[detector]["suspects"]) for c in cells)
    return (
        sum(map(len, hits)) / accused if accused else 1.0,
        sum(map(len, hits)) / sum(len(c["malicious"]) for c in cells),
    )


def detection_table(data: str) -> str:
    """Precision / recall in percent, over the seeds, for each fraction."""
    fractions = (0.25,) if data == "step" else FRACTIONS
    head = [f"{spread} {fraction:.0%}" for spread in SPREADS for fraction in fractions]
    lines = ["| attack | detector | " + " | ".join(head) + " |", "|---|---|" + "---|" * len(head)]
    for attack in ATTACKS:
        for detector in DETECTORS:
            row = [
                _rate(data, attack, spread, fraction, detector)
                for spread in SPREADS
                for fraction in fractions
            ]
            lines.append(f"| {attack} | {detector} | {' | '.join(row)} |")
    return "\n".join(lines)


def _rate(data: str, attack: str, spread: str, fraction: float, detector: str) -> str:
    found = read(RESULTS, f"{data}-{attack}-{spread}")
    cells = [cell for key, cell in found.items() if key.startswith(f"{fraction}-")]
    if not cells:
        return "-"
    precision, recall = rates(cells, detector)
    return (
        f"{100 * precision:.0f} / {100 * recall:.0f}"
        if any(c[detector]["suspects"] for c in cells)
        else "- / 0"
    )


def alarms_table() -> str:
    lines = ["| data | spread | trainings | ledger | fldetector |", "|---|---|---|---|---|"]
    for data in ("digits", "mnist", "step"):
        for spread in UNATTACKED:
            if cells := [*read(RESULTS, f"{data}-none-{spread}").values()]:
                told = [f"{sum(bool(c[d]['suspects']) for c in cells)}" for d in DETECTORS]
                lines.append(f"| {data} | {spread} | {len(cells)} | {' | '.join(told)} |")
    return "\n".join(lines)


def mistakes_table() -> str:
    """TA / ASR of crab-hardened, of training again in brackets; of the seeds in which anybody is named."""
    groups = [(attack, spread) for attack in ("backdoor-x3", "backdoor", "dba") for spread in SPREADS]
    found = [[*read(RESULTS, f"mistakes-{attack}-{spread}").values()] for attack, spread in groups]
    names = dict.fromkeys(
        name.removesuffix(", retrain") for cells in found for cell in cells for name in cell
    )
    lines = ["| named malicious | " + " | ".join(f"{a}, {s}" for a, s in groups) + " |", "|---" * 7 + "|"]
    for name in (name for name in names if not name.endswith(", crab-hardened")):
        row = [_mistake(cells, name) for cells in found]
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def _mistake(cells: list[dict[str, Any]], name: str) -> str:
    ours, again = ([c[n] for c in cells if n in c] for n in (f"{name}, crab-hardened", f"{name}, retrain"))
    if not ours:
        plain = [cell[name] for cell in cells if name in cell]
        return _both(plain) if plain else "nobody named"
    few = f", {len(ours)} of {len(cells)} seeds" if len(ours) < len(cells) else ""
    return f"{_both(ours)} ({_both(again)}){few}"


def _both(rows: list[dict[str, float]]) -> str:
    return " / ".join(f"{100 * mean(row[what] for row in rows):.1f}" for what in ("ta", "asr"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["digits", "mistakes", "step", "mnist"])
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    for part in () if arguments.table else arguments.parts:
        cells = mistake_cells() if part == "mistakes" else detection_cells(part)
        if not fill(RESULTS, cells, minutes=arguments.minutes):
            print("not all is computed yet; the same command resumes")
            return
    for part in arguments.parts:
        print(f"\n{part}\n", mistakes_table() if part == "mistakes" else detection_table(part), sep="\n")
    print("\nwithout attack\n", alarms_table(), sep="\n")


if __name__ == "__main__":
    main()
