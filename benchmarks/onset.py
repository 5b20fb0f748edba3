"""Whether the estimated onset is correct, in the incidents of recovery_incidents.py that start late.

usage: python benchmarks/onset.py [--results FILE] [--first-seed N] [--most N] [--histories DIR] [--table]

Each incident is trained. Then ``onset`` is asked about the attackers, and about as many honest clients, drawn
by the seed. An attack is *visible* if its updates are longer than honest ones: in the attackers' first
attacked round, the median of their lengths is at least 1.5 times that of the honest ones. One line of JSON
per incident; an interrupted run resumes after the last complete one. ``--histories`` stores the histories in
a directory, and uses those that it has already.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recovery_incidents import ATTACKS, FIRST_SEED, Incident, incidents, quality, read

from fedcrab.experiment.config import load_config
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.rollback.onset import onset
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId

FIRST_ACT = {"late": 18, "single round": 22, "burst": 18}  # the first attacked round
LONGER = 1.5
CLOSE = 2  # rounds from the truth


def run_incident(incident: Incident, place: Path) -> dict[str, Any]:
    """Train, unless the history exists, and ask when the attack started."""
    setup = prepare(load_config("paper-mnist", incident.settings()), workers=0)
    history = _trained(setup, place)
    bad = setup.attackers.clients
    honest = sorted(set(history.clients) - bad)
    drawn = rng_for(incident.seed, "named by mistake").permutation(honest)[
        : max(1, min(len(bad), len(honest) // 2))
    ]
    return {
        "incident": incident.name,
        "poisoned": quality(setup, history.final_model()),
        "length": _length(history, bad, FIRST_ACT[incident.time]),
        "onset": onset(history, bad).to_table(),
        "onset_of_honest": onset(history, drawn.tolist()).to_table(),
    }


def _trained(setup: Setup, place: Path) -> History:
    if place.exists():
        if (found := History.open(place)).closed:
            return found
        shutil.rmtree(place)
    with open_for_training(setup, place, resume=False) as history:
        for _ in run(setup, history):
            pass
    return History.open(place)


def _length(history: History, bad: frozenset[ClientId], round: int) -> float:
    """Return the median length of the attackers' updates divided by that of the honest ones, in a round."""
    entry = history.rounds[round]
    named = np.array([client in bad for client in entry.clients])
    return float(np.median(entry.norms[named]) / np.median(entry.norms[~named]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return markdown: per attack, in how many incidents the estimated onset is correct."""
    lines = [
        "| started late | n | within 2 rounds | more than 2 rounds off | no estimate | certain too early |",
        "|---|---|---|---|---|---|",
    ]
    visible = [row for row in rows if row["length"] >= LONGER]
    groups = {"visible": visible, "of honest length": [row for row in rows if row["length"] < LONGER]}
    groups |= {f"visible, in {time}": [row for row in visible if _time(row) == time] for time in FIRST_ACT}
    groups |= {
        attack: [row for row in rows if row["incident"].split(", ")[1] == attack] for attack in ATTACKS
    }
    lines += [f"| {name} | {_line(group)} |" for name, group in groups.items() if group]
    wrong = sum(row["onset_of_honest"]["round"] is not None for row in rows)
    return "\n".join(
        [*lines, "", f"Honest clients named by mistake get an estimate in {wrong} of {len(rows)} incidents."]
    )


def _time(row: dict[str, Any]) -> str:
    return str(row["incident"].split(", ")[0])


def _line(rows: Sequence[dict[str, Any]]) -> str:
    found = [(FIRST_ACT[_time(row)], row["onset"]) for row in rows]
    told = [(first, each) for first, each in found if each["round"] is not None]
    close = sum(abs(each["round"] - first) <= CLOSE for first, each in told)
    early = sum(each["certain"] < first for first, each in told)
    return f"{len(found)} | {close} | {len(told) - close} | {len(found) - len(told)} | {early}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/onset.jsonl"))
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--most", type=int, default=None, help="incidents, the first of the drawn order")
    parser.add_argument("--histories", type=Path, default=None)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows = read(arguments.results)
    done = {row["incident"] for row in rows}
    late = [incident for incident in incidents(arguments.first_seed) if incident.time in FIRST_ACT]
    for incident in [] if arguments.table else late[: arguments.most]:
        if incident.name in done:
            continue
        with tempfile.TemporaryDirectory() as spare:
            rows.append(run_incident(incident, (arguments.histories or Path(spare)) / str(incident.seed)))
        with arguments.results.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(incident.name, rows[-1]["onset"], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
