"""The tables of docs/recovery.md about replay, from the cells of its suites, and where a goal is missed.

usage: python benchmarks/replay_tables.py [--results DIR] [SUITE ...]

Poisoned and retrained: TA / ASR in %. Every other TA is the difference to retraining in points: the mean over
the seeds, and the worst in brackets. Costs are shares of retraining's client-rounds; the share of its rounds
with contact is in brackets. A goal is missed if a mean TA is more than 0.7 points below
retraining's, the TA of one run more than 2, or its ASR more than 2 points above.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.matrix import expand
from fedcrab.experiment.suite import load_suite
from fedcrab.experiment.suite_tables import grouped, rows_of, varying

SUITES = Path(__file__).parents[1] / "experiments"
DEFAULT = ["replay", "replay-since", "replay-cnn", "replay-cifar10"]
SHOWN = {  # the columns of each method; a suite may add since
    "replay": ("TA", "ASR", "cost (contact)"),
    "replay trust=true": ("TA", "ASR", "cost"),
    "fedrecover": ("TA", "cost"),
    "retrain-few per_round=2": ("TA", "cost"),
}
GOALS = ("replay", "replay trust=true")
TITLES = {"replay trust=true": "`trust=true`", "retrain-few per_round=2": "2 per round"}
MEAN, SINGLE, SUCCESS = 0.7, 2.0, 2.0  # points
Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=SUITES.parent / "results")
    parser.add_argument("suites", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    for name in arguments.suites:
        cells = expand(load_suite(SUITES / f"{name}.toml"))
        rows = rows_of(cells, CellCache(arguments.results, name))
        print(f"## {name}: {len(rows)} of {len(cells)} cells\n\n{table(rows)}\n")


def table(rows: Sequence[Row]) -> str:
    """Return markdown: one row per setting, then the goals that are missed."""
    settings: dict[Any, dict[str, Sequence[Row]]] = {}
    for (*setting, method), group in grouped(rows).items():
        settings.setdefault(tuple(setting), {})[method.replace(" since=20", "")] = group
    methods = [method for method in SHOWN if any(method in runs for runs in settings.values())]
    head = [f"{TITLES.get(method, method)}: {what}" for method in methods for what in SHOWN[method]]
    lines = [" | ".join(["setting", "poisoned", "retrain", *head]), " | ".join(["---"] * (3 + len(head)))]
    missed: list[str] = []
    for runs in settings.values():
        again = runs["retrain"]
        setting = ", ".join(_words(again[0][axis]) for axis in varying(rows))
        parts = [setting, *(_qualities(runs[name]) for name in ("poisoned", "retrain"))]
        for method in methods:
            found = _compared(runs[method], again) if method in runs else {}
            parts += [found.get(what, "-") for what in SHOWN[method]]
            if method in GOALS and found:
                missed += (f"- {setting}: {method}: {what}" for what in _missed(runs[method], again))
        lines.append(" | ".join(parts))
    verdict = missed or ["No goal is missed."] if any(method in methods for method in GOALS) else []
    return "\n".join([*(f"| {line} |" for line in lines), "", *verdict])


def _words(label: str | float) -> str:
    if isinstance(label, float):
        return f"{label:.0%}"
    return label.replace("iid", "IID").replace("dirichlet", "Dirichlet").replace("concentration=", "")


def _qualities(runs: Sequence[Row]) -> str:
    return f"{100 * mean(r['ta'] for r in runs):.1f} / {100 * mean(r['asr'] for r in runs):.1f}"


def _differences(runs: Sequence[Row], reference: Sequence[Row], measure: str) -> list[float]:
    """Return the differences in points, of the seeds that both have."""
    known = {row["seed"]: row[measure] for row in reference}
    return [100 * (row[measure] - known[row["seed"]]) for row in runs if row["seed"] in known]


def _share(runs: Sequence[Row], reference: Sequence[Row], measure: str) -> float:
    return 100 * mean(row[measure] for row in runs) / mean(row[measure] for row in reference)


def _points(value: float) -> str:
    return f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"


def _compared(runs: Sequence[Row], reference: Sequence[Row]) -> dict[str, str]:
    """Return the cells of one method by column."""
    accuracy = _differences(runs, reference, "ta")
    cost = f"{_share(runs, reference, 'client_rounds'):.1f}%"
    return {
        "TA": f"{_points(mean(accuracy))} ({_points(min(accuracy))})",
        "ASR": f"{100 * mean(row['asr'] for row in runs):.1f}",
        "cost": cost,
        "cost (contact)": f"{cost} ({_share(runs, reference, 'contact_rounds'):.0f}%)",
    }


def _missed(runs: Sequence[Row], reference: Sequence[Row]) -> Iterator[str]:
    accuracy, success = (_differences(runs, reference, measure) for measure in ("ta", "asr"))
    if accuracy and mean(accuracy) < -MEAN:
        yield f"{mean(accuracy):+.2f} points of TA in the mean"
    if accuracy and min(accuracy) < -SINGLE:
        yield f"{min(accuracy):+.2f} points of TA in one run"
    if success and max(success) > SUCCESS:
        yield f"{max(success):+.2f} points of ASR in one run"


if __name__ == "__main__":
    main()
