"""The tables of docs/recovery.md about replay, from the cells of its suites, and where a goal is missed.

usage: python benchmarks/replay_tables.py [--results DIR] [replay replay-since replay-cnn]

Poisoned and retrained: TA / ASR in %. Every other TA is the difference to retraining in points, the mean over
the seeds and the worst in brackets. Costs are shares of retraining's client-rounds, with the share of its
rounds with contact in brackets. A goal is missed if a mean TA is more than 0.7 points below retraining, one
run more than 2, or an ASR more than 2 points above it.
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
CHECKED = ("replay", "replay trust=true")  # methods with a goal; a suite may add since
MEAN, SINGLE, SUCCESS = 0.7, 2.0, 2.0  # points
Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=SUITES.parent / "results")
    parser.add_argument("suites", nargs="*", default=["replay", "replay-since", "replay-cnn"])
    arguments = parser.parse_args()
    for name in arguments.suites:
        cells = expand(load_suite(SUITES / f"{name}.toml"))
        rows = rows_of(cells, CellCache(arguments.results, name))
        print(f"## {name}: {len(rows)} of {len(cells)} cells\n\n{table(rows)}\n")


def table(rows: Sequence[Row]) -> str:
    """Return markdown: one row per setting, then the goals that are missed."""
    settings: dict[Any, dict[str, Sequence[Row]]] = {}
    for (*setting, method), group in grouped(rows).items():
        settings.setdefault(tuple(setting), {})[method] = group
    axes = varying(rows)
    methods = [m for m in dict.fromkeys(row["method"] for row in rows) if m not in ("poisoned", "retrain")]
    head = [f"{method}: {what}" for method in methods for what in ("TA", "ASR", "cost")]
    lines = [" | ".join(["setting", "poisoned", "retrain", *head]), "|".join(["---"] * (3 + len(head)))]
    missed: list[str] = []
    for runs in settings.values():
        setting = ", ".join(str(runs["retrain"][0][axis]) for axis in axes)
        parts = [setting, *(_qualities(runs[name]) for name in ("poisoned", "retrain"))]
        for method in methods:
            if method not in runs:
                parts += ["-"] * 3
                continue
            parts += _compared(runs[method], runs["retrain"])
            if method.replace(" since=20", "") in CHECKED:
                missed += (
                    f"- {setting}: {method}: {what}" for what in _missed(runs[method], runs["retrain"])
                )
        lines.append(" | ".join(parts))
    return "\n".join([*(f"| {line} |" for line in lines), "", *(missed or ["No goal is missed."])])


def _qualities(runs: Sequence[Row]) -> str:
    return f"{100 * mean(r['ta'] for r in runs):.1f} / {100 * mean(r['asr'] for r in runs):.1f}"


def _differences(runs: Sequence[Row], reference: Sequence[Row], measure: str) -> list[float]:
    """Return the differences in points, of the seeds that both have."""
    known = {row["seed"]: row[measure] for row in reference}
    return [100 * (row[measure] - known[row["seed"]]) for row in runs if row["seed"] in known]


def _share(runs: Sequence[Row], reference: Sequence[Row], measure: str) -> float:
    return 100 * mean(row[measure] for row in runs) / mean(row[measure] for row in reference)


def _compared(runs: Sequence[Row], reference: Sequence[Row]) -> Iterator[str]:
    """Yield the cells of one method."""
    accuracy = _differences(runs, reference, "ta")
    yield f"{mean(accuracy):+.1f} ({min(accuracy):+.1f})"
    yield f"{100 * mean(row['asr'] for row in runs):.1f}"
    contact = _share(runs, reference, "contact_rounds")
    yield f"{_share(runs, reference, 'client_rounds'):.1f}% ({contact:.0f}%)"


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
