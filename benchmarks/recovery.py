"""Every recovery method on the same trainings: accuracy, attack success, work, time, bytes.

usage: python benchmarks/recovery.py [--results DIR] [--only WORD] [--table]

MNIST, 20 clients of 600 examples, 40 rounds of 5 local epochs, MLP, three seeds, 10/25/50% malicious,
a boosted backdoor and noise-trim; and softmax regression, the convex case. Each cell is a small file, so that
an interrupted run goes on where it stopped. --table prints the tables from the files alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, median, stdev

from fedcrab.experiment import names
from fedcrab.experiment.config import load_config, settings
from fedcrab.experiment.recovery import measure_outcome, poisoned, recover_to_end
from fedcrab.experiment.setup import open_for_training, prepare, rerecord, run
from fedcrab.history import Every, History, Selective
from fedcrab.report.tables import size

SEEDS, FRACTIONS = (0, 1, 2), (0.1, 0.25, 0.5)
COMMON = [
    "data.examples_per_client=600",
    "local.learning_rate=0.05",
    "history.name=everything",
    "history.settings={}",
]
ATTACKS = {
    "backdoor": ["attack.name=backdoor", "attack.settings.boost=3.0"],
    "noise-trim": ["attack.name=noise-trim", "attack.settings.scale=5.0"],
}
CAREFUL = "crab-hardened beta=0.1"
METHODS = ["retrain", "federaser", "fedrecover", "crab-paper", "crab-hardened beta=0.3", CAREFUL]
ERASERS = ["federaser every=1", "federaser every=1 ratio=1.0"]  # from a history that keeps every round
TRIED = [  # with the first seed, to find out what each option does
    "federaser ratio=1.0",
    "crab-paper beta=0.1",
    "crab-hardened beta=0.05",
    "crab-hardened beta=1.0",
    "crab-hardened beta=0.1 gap=false",
    "crab-hardened beta=0.1 cap=2.0",
    "crab-hardened beta=0.1 cap=100.0",
    "crab-hardened beta=0.1 settle=0",
    "crab-hardened beta=0.1 settle=5",
]


def cells() -> dict[str, list[str]]:
    """Every cell's name and settings."""
    found = {}
    for seed in SEEDS:
        for fraction in FRACTIONS:
            for attack, chosen in ATTACKS.items():
                changes = ["model=mlp", f"attack.fraction={fraction}", f"seed={seed}", *chosen]
                found[f"mlp-{attack}-{fraction:.0%}-{seed}"] = [*COMMON, *changes]
            changes = ["model=mlp", f"attack.fraction={fraction}", f"seed={seed}", *ATTACKS["backdoor"]]
            found[f"eraser-backdoor-{fraction:.0%}-{seed}"] = [*COMMON, *changes]
        convex = ["model=softmax", "attack.fraction=0.25", f"seed={seed}", *ATTACKS["backdoor"]]
        found[f"softmax-backdoor-25%-{seed}"] = [*COMMON, *convex]
    return found


def methods_of(name: str) -> list[str]:
    """What a cell recovers by."""
    if name.startswith("eraser"):
        return ["retrain", *ERASERS]
    return [*METHODS, *(TRIED if name.endswith(f"-{SEEDS[0]}") else [])]


def run_cell(name: str, changes: list[str]) -> list[dict[str, object]]:
    """One training, recorded in several ways, recovered by every method."""
    setup = prepare(load_config("paper-mnist", changes))
    with tempfile.TemporaryDirectory(dir=".") as place:
        with open_for_training(setup, Path(place) / "everything", resume=False) as history:
            for _ in run(setup, history):
                pass
        kept = {"Everything": History.open(Path(place) / "everything")}
        often = Every(1 if name.startswith("eraser") else 2)
        for selection in (Selective(), often):
            way = type(selection).__name__
            kept[way] = rerecord(kept["Everything"], Path(place) / way, selection)
        outcomes = {"poisoned": poisoned(kept["Everything"])}
        for asked in methods_of(name):
            method, *options = asked.split()
            source = kept[type(names.METHODS[method].selection).__name__]
            malicious = setup.attackers.clients
            outcomes[asked] = recover_to_end(method, source, malicious, setup, **settings(options))
        retrained = outcomes["retrain"].model
        rows = [
            {**measure_outcome(setup, each, retrained), "method": asked} for asked, each in outcomes.items()
        ]
    setup.close()
    return rows


def table(results: dict[str, list[dict[str, float]]], methods: list[str]) -> str:
    """The cells as markdown, mean ± spread over the seeds."""
    lines = [
        "| setting | method | TA % | ASR % | rollback | rounds | client-rounds | s | history | distance |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for setting in dict.fromkeys(name.rsplit("-", 1)[0] for name in results):
        group = [rows for name, rows in results.items() if name.rsplit("-", 1)[0] == setting]
        for method in methods:
            rows = [row for rows in group for row in rows if row["method"] == method]
            if rows:
                lines.append(f"| {setting} | {method} | {' | '.join(_cells(rows))} |")
    return "\n".join(lines)


def _cells(rows: list[dict[str, float]]) -> list[str]:
    quality = [
        spread([100 * r["ta"] for r in rows]),
        spread([100 * r["asr"] for r in rows]) if rows[0]["asr"] is not None else "-",
    ]
    cost = ["-"] * 5
    if rows[0]["rounds"]:
        cost = [
            ", ".join(str(r["rollback_round"]) for r in rows) if "crab" in rows[0]["method"] else "0",
            f"{mean(r['rounds'] for r in rows):.0f}",
            f"{mean(r['client_rounds'] for r in rows):.0f}",
            f"{median(r['seconds'] for r in rows):.1f}",
            size(round(mean(r["bytes"] for r in rows))) if rows[0]["bytes"] else "-",
        ]
    return [*quality, *cost, spread([r["distance"] for r in rows], 2)]


def spread(values: list[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/recovery"))
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name, changes in cells().items():
        path = arguments.results / f"{name}.json"
        if arguments.only in name and not path.exists() and not arguments.table:
            path.write_text(
                json.dumps({"settings": changes, "methods": run_cell(name, changes)}, indent=1) + "\n"
            )
            print(name, flush=True)
    done = [arguments.results / f"{name}.json" for name in cells()]
    found = {path.stem: json.loads(path.read_text())["methods"] for path in done if path.exists()}
    print(table({k: v for k, v in found.items() if "eraser" not in k}, ["poisoned", *METHODS]))
    print("\nFedEraser, every round kept:\n")
    print(table({k: v for k, v in found.items() if "eraser" in k}, ["retrain", *ERASERS]))
    first = {k: v for k, v in found.items() if k.endswith(f"-{SEEDS[0]}") and "eraser" not in k}
    print("\nWith the first seed:\n")
    print(table(first, ["retrain", CAREFUL, *TRIED]))


if __name__ == "__main__":
    main()
