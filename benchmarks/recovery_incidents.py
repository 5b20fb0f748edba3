"""Recovery with its defaults after incidents of many kinds, beside retraining with all honest clients.

usage: python benchmarks/recovery_incidents.py [--results FILE] [--first-seed N] [--most N] [--table]

Each incident: 20 clients × 300 examples, 30 rounds of 5 local epochs, an MLP, recorded with Compact(4).
Exactly the attackers are named, but not the round in which they started. All combinations of timing, attack,
data set and partition are run; the number of attackers and the seed are drawn. Incidents come in a drawn
order, so that the first N of them are a sample of all. One line of JSON per incident; an interrupted run
resumes after the last complete one.

Fresh answers draw other batches than the history's, and the retraining draws others again, so the distance of
replay and retraining includes the usual difference between two retrainings. If recovery ends more than two
points of ASR above the retraining, or of accuracy below it, two more retrainings show how much these differ
from each other. An attack that leaves an ASR of 10% or less did not work, so nothing is recovered.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import attack_success_of, recover_to_end
from fedcrab.experiment.setup import Setup, aggregate_of, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.recover import retrain
from fedcrab.recover.cost import MeteredFleet
from fedcrab.recover.methods import default_method
from fedcrab.rollback.decision import plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Vector
from fedcrab.vectors import norm

ROUNDS = 30
COMMON = [
    *("model=mlp", f"rounds={ROUNDS}", "data.examples_per_client=300", "local.learning_rate=0.05"),
    *("history.name=compact", "history.settings={}"),
]
TIMES = {
    "from round 0": ["attack.start=0"],
    "late": ["attack.start=18"],
    "intermittent": ["attack.share=0.25"],
    "single round": ["attack.rounds=[22]"],
    "burst": ["attack.rounds=['18-21']"],
    "half participation": ["clients.share=0.5"],
}
BOOSTS = {0.05: 10.0, 0.1: 5.0, 0.25: 3.0, 0.5: 2.0}  # few attackers need a larger boost
ATTACKS = {
    "boosted": ["attack.name=backdoor", "attack.settings.boost={boost}"],
    "unboosted": ["attack.name=backdoor"],
    "pgd": ["attack.name=pgd", "attack.settings.boost={boost}"],
    "neurotoxin": ["attack.name=neurotoxin", "attack.settings.boost={boost}"],
}
SPREADS = ("iid", "dirichlet 0.5", "dirichlet 0.1")
DATA = ("mnist", "fashion-mnist")
WORKED = 0.1  # above retraining's ASR; otherwise there was nothing to remove
CLOSE = 0.02  # points of ASR above retraining's, of accuracy below it
FIRST_SEED = 2000


@dataclass(frozen=True, slots=True)
class Incident:
    """A training that is attacked."""

    time: str
    attack: str
    data: str
    spread: str
    fraction: float
    seed: int

    @property
    def name(self) -> str:
        parts = (self.time, self.attack, self.data, self.spread, f"{self.fraction:.0%}", f"seed {self.seed}")
        return ", ".join(parts)

    def settings(self) -> list[str]:
        boost = BOOSTS[self.fraction]
        changes = [f"seed={self.seed}", f"data.name={self.data}", f"attack.fraction={self.fraction}"]
        changes += [*COMMON, *TIMES[self.time], *(part.format(boost=boost) for part in ATTACKS[self.attack])]
        if self.spread != "iid":
            amount = self.spread.removeprefix("dirichlet ")
            changes += [f"clients.partition={{name='dirichlet', settings={{concentration={amount}}}}}"]
        return changes


def incidents(first_seed: int = FIRST_SEED) -> list[Incident]:
    """Return all incidents in a drawn order."""
    crossed = list(product(TIMES, ATTACKS, DATA, SPREADS))
    rng = rng_for(0, "incidents")
    fractions = rng.choice(list(BOOSTS), size=len(crossed)).tolist()
    pairs = zip(crossed, fractions, strict=True)
    made = [Incident(*four, fraction, seed) for seed, (four, fraction) in enumerate(pairs, first_seed)]
    return [made[place] for place in rng.permutation(len(made)).tolist()]


def run_incident(incident: Incident) -> dict[str, Any]:
    """Train, recover with the defaults, retrain; return the results of each."""
    setup = prepare(load_config("paper-mnist", incident.settings()), workers=0)
    with tempfile.TemporaryDirectory() as place:
        with open_for_training(setup, Path(place) / "h", resume=False) as history:
            for _ in run(setup, history):
                pass
        history = History.open(Path(place) / "h")
        bad = setup.attackers.clients
        row: dict[str, Any] = {"incident": incident.name, "settings": incident.settings()}
        row["poisoned"] = quality(setup, history.final_model())
        if row["poisoned"]["asr"] <= WORKED:
            return row
        method, _ = default_method(history)
        recovered = recover_to_end(method, history, bad, setup)
        again, cost = _retrained(setup, history, bad)
        state = recovered.steps[-1].get("replay")
        row |= {
            "method": method,
            "recovered": quality(setup, recovered.model),
            "retrained": quality(setup, again),
            "client_rounds": sum(len(step["asked"]) for step in recovered.steps),
            "contact_rounds": sum(bool(step["asked"]) for step in recovered.steps),
            "retrain_client_rounds": cost.cost.client_rounds,
            "retrain_contact_rounds": cost.cost.calls,
            "rollback_round": recovered.plan.rollback_round if recovered.plan else None,
            "predicted": state and state["error"],
            "distance": norm(recovered.model - again, history.charter.layout.trained()),
            "bytes": history.bytes()["total"],
        }
        if _over(row) > CLOSE or _short(row) > CLOSE:
            more = (_retrained(setup, history, bad, time)[0] for time in (3, 4))
            row["retrained_more"] = [quality(setup, model) for model in more]
        return row


def _retrained(
    setup: Setup, history: History, bad: frozenset[ClientId], time: int = 2
) -> tuple[Vector, MeteredFleet]:
    fleet = MeteredFleet(setup.fleet_again(time), epochs=setup.config.local.epochs)
    model = history.initial_model()
    for step in retrain(plan(history, bad), fleet, aggregate=aggregate_of(setup.config)):
        model = step.model
    return model, fleet


def quality(setup: Setup, model: Vector) -> dict[str, float | None]:
    success = attack_success_of(setup, model)
    return {"ta": setup.accuracy(model), "asr": success.without_target if success else None}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return markdown: the incidents with a successful attack, all and by each axis, then the exceptions."""
    worked = [row for row in rows if "retrained" in row and _above(row) > WORKED]
    lines = [
        f"{len(rows)} incidents; the attack worked in {len(worked)} of them (ASR more than "
        f"{WORKED:.0%} above the retrained model's).",
        "",
        "| incidents | n | ASR % poisoned | recovered | retrained | worst above | within 2 points | "
        "TA % poisoned | recovered | retrained | worst below | client-rounds % | contact rounds % |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    if not worked:
        return "\n".join(lines[:1])
    groups = {"all": worked}
    for place, axis in enumerate((TIMES, ATTACKS, DATA, SPREADS, [f"{f:.0%}" for f in BOOSTS])):
        for value in axis:
            groups[value] = [row for row in worked if row["incident"].split(", ")[place] == value]
    lines += [f"| {name} | {_line(group)} |" for name, group in groups.items() if group]
    lines += [
        "",
        *(f"- not within 2 points of ASR: {_far(row, 'asr')}" for row in worked if _over(row) > CLOSE),
    ]
    lines += [f"- more than 2 points of TA below: {_far(r, 'ta')}" for r in worked if _short(r) > CLOSE]
    told = [row for row in rows if row.get("predicted") is not None]
    if len(told) > 2:
        pairs = [row["predicted"] for row in told], [row["distance"] for row in told]
        ratios = sorted(d / p for p, d in zip(*pairs, strict=True))
        lines += [
            f"- predicted error and distance to retraining: rank correlation {spearmanr(*pairs)[0]:.2f} over "
            f"{len(told)}; the distance is {ratios[0]:.2f} to {ratios[-1]:.2f} times the prediction"
        ]
    return "\n".join(lines)


def _far(row: dict[str, Any], measure: str) -> str:
    again = ", ".join(f"{100 * each[measure]:.1f}" for each in (row["retrained"], *row["retrained_more"]))
    ours = 100 * row["recovered"][measure]
    return f"{row['incident']}: {measure.upper()} {ours:.1f}; of three retrainings {again}"


def _above(row: dict[str, Any]) -> float:
    return float(row["poisoned"]["asr"] - row["retrained"]["asr"])


def _over(row: dict[str, Any]) -> float:
    return float(row["recovered"]["asr"] - row["retrained"]["asr"])


def _line(rows: Sequence[dict[str, Any]]) -> str:
    parts: list[str] = [str(len(rows))]
    for measure, worst in (("asr", max(map(_over, rows))), ("ta", max(map(_short, rows)))):
        parts += [
            f"{100 * mean(r[name][measure] for r in rows):.1f}"
            for name in ("poisoned", "recovered", "retrained")
        ]
        parts.append(f"{100 * worst:.1f}")
        if measure == "asr":
            parts.append(f"{sum(_over(r) <= CLOSE for r in rows)} of {len(rows)}")
    for cost in ("client_rounds", "contact_rounds"):
        shares = [r[cost] / r[f"retrain_{cost}"] for r in rows]
        parts.append(f"{100 * mean(shares):.0f} (at most {100 * max(shares):.0f})")
    return " | ".join(parts)


def _short(row: dict[str, Any]) -> float:
    return float(row["retrained"]["ta"] - row["recovered"]["ta"])


def read(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines; an incomplete last line of a killed run is cut off."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/incidents.jsonl"))
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--most", type=int, default=None, help="number of incidents, in the drawn order")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    rows = read(arguments.results)
    done = {row["incident"] for row in rows}
    for incident in [] if arguments.table else incidents(arguments.first_seed)[: arguments.most]:
        if incident.name in done:
            continue
        rows.append(run_incident(incident))
        with arguments.results.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        over = f"{100 * _over(rows[-1]):+.1f} points of ASR" if "retrained" in rows[-1] else "did not work"
        print(incident.name, over, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
