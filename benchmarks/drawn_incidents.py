"""Recovery with its defaults after incidents whose settings are all drawn, beside three retrainings.

usage: python benchmarks/drawn_incidents.py [--results FILE] [--first-seed N] [--most N] [--table]

Number of clients, rounds and examples, model, data set, partition, participation, local training, aggregation
rule, attack, its share and its timing are drawn by the seed, good and bad ones alike: large steps with
momentum 0.9, clients with a single class, attacks that destroy the model. The other benchmarks have settings
that somebody chose. Trainings whose retraining ends below 30% accuracy have learnt too little to compare and
are counted apart. One line of JSON per incident; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import cells
from recovery_incidents import quality, read

from fedcrab.errors import ConfigError
from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import recover_to_end
from fedcrab.experiment.setup import aggregate_of, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.recover import retrain
from fedcrab.rollback.decision import plan
from fedcrab.vectors import norm

RESULTS = Path("benchmarks/results/drawn-incidents.jsonl")
FIRST_SEED = 530_000
LEARNT = 0.3  # accuracy of the retrainings; below it they have learnt too little to compare
WORKED = 0.1  # ASR above retraining's
PARTITIONS = {
    "iid": "{name='iid'}",
    "shards": "{name='shards', settings={classes_each=2}}",
    "power-law": "{name='power-law', settings={exponent=1.2}}",
    **{
        f"dirichlet {c}": f"{{name='dirichlet', settings={{concentration={c}}}}}"
        for c in (0.5, 0.2, 0.1, 0.05)
    },
}
RULES = {
    "fedavg": (),
    "median": (),
    "geometric-median": (),
    "trimmed-mean": ("aggregation.settings.trim=1",),
    "clipped-mean": ("aggregation.settings.limit=2.0",),
}
TRIGGERED = ("backdoor", "pgd", "neurotoxin", "dba")
ATTACKS = (*TRIGGERED, "backdoor", "label-flip", "sign-flip", "noise-trim", "evade")


def settings(seed: int) -> list[str]:
    """Return the settings of one incident."""
    draw = random.Random(seed).choice
    model = draw(["mlp", "mlp", "mlp", "cnn", "softmax"])
    data = draw(["mnist", "fashion-mnist"] + ([] if model == "cnn" else ["cifar10", "digits"]))
    clients, rounds = draw([6, 10, 14, 20, 20, 30, 50]), draw([8, 12, 20, 30, 40, 60])
    examples, epochs = draw([60, 150, 300, 500]), draw([1, 2, 5, 5, 10])
    if model == "cnn":  # slower
        clients, rounds, examples, epochs = (
            min(clients, 14),
            min(rounds, 20),
            min(examples, 200),
            min(epochs, 3),
        )
    if clients >= 30:
        examples = min(examples, 150)
    if data == "digits":  # has 1,400
        examples = min(examples, 1300 // clients)
    rule, attack = draw(["fedavg", "fedavg", "fedavg", *RULES]), draw(ATTACKS)
    fraction = max(draw([0.05, 0.1, 0.2, 0.3, 0.4, 0.5]), 1 / clients + 0.001)
    half = rounds // 2
    burst = f"attack.rounds=['{half}-{half + 2}']"
    return [
        *(f"seed={seed}", f"model={model}", f"rounds={rounds}", f"data.name={data}"),
        f"data.probe={100 if data == 'digits' else 500}",
        f"data.examples_per_client={examples}",
        f"clients.count={clients}",
        f"clients.partition={PARTITIONS[draw([*PARTITIONS])]}",
        f"clients.share={draw([1.0, 1.0, 0.6, 0.3])}",
        f"clients.drop_out={draw([0, 0, 0.2])}",
        f"local.learning_rate={draw([0.01, 0.03, 0.05, 0.1]) * (3 if data == 'digits' else 1):g}",
        f"local.batch={draw([16, 32, 64, 128])}",
        f"local.epochs={epochs}",
        f"local.momentum={draw([0, 0, 0, 0.5, 0.9])}",
        f"local.weight_decay={draw([0, 0, 0.001])}",
        *(f"aggregation.name={rule}", *RULES[rule]),
        *(f"attack.name={attack}", f"attack.fraction={fraction:g}"),
        *draw([[], [], [f"attack.start={half}"], ["attack.share=0.3"], [burst]]),
        *([f"attack.settings.boost={draw([1.0, 2.0, 5.0])}"] if attack in TRIGGERED else []),
        *("history.name=compact", "history.settings={}"),
    ]


def run_incident(seed: int) -> dict[str, Any]:
    """Train, recover with the defaults, retrain three times; return the results of each, or what refused."""
    row: dict[str, Any] = {"seed": seed, "settings": settings(seed)}
    try:
        setup = prepare(load_config("paper-mnist", row["settings"]), workers=0)
        with tempfile.TemporaryDirectory(dir=cells.MEMORY) as place:
            with open_for_training(setup, Path(place) / "h", resume=False) as history:
                for _ in run(setup, history):
                    pass
            history, bad = History.open(Path(place) / "h"), setup.attackers.clients
            row["poisoned"] = quality(setup, history.final_model())
            outcome = recover_to_end("replay", history, bad, setup)
            row["recovered"] = quality(setup, outcome.model)
            row["retrained"], row["far"] = [], []
            for time in (2, 3, 4):
                model = history.initial_model()
                for step in retrain(
                    plan(history, bad), setup.fleet_again(time), aggregate=aggregate_of(setup.config)
                ):
                    model = step.model
                row["retrained"].append(quality(setup, model))
                row["far"].append(norm(outcome.model - model, history.charter.layout.trained()))
            row["predicted"] = outcome.steps[-1]["replay"]["error"]
            row["ignored"] = outcome.steps[-1]["replay"].get("ignored", 0)
            row["client_rounds"] = outcome.cost.client_rounds
            row["of"] = sum(len(plan(history, bad).askable(entry.index)) for entry in history.rounds)
    except ConfigError as error:
        row["refused"] = str(error).rpartition("/h: ")[2]  # without the history's temporary path
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return markdown: accuracy and attack success beside retraining, and the worst incidents."""
    done = [row for row in rows if "refused" not in row]
    learnt = [row for row in done if _retrained(row, "ta") >= LEARNT]
    groups = {
        "all that learnt": learnt,
        "every client was asked in some rounds": [row for row in learnt if row["ignored"]],
        "the others": [row for row in learnt if not row["ignored"]],
        "learnt too little": [row for row in done if row not in learnt],
    }
    lines = [
        f"{len(rows)} incidents, {len(rows) - len(done)} of them refused.",
        "",
        "| incidents | n | TA: mean difference | lower than three retrainings by more than 2 / 5 points | "
        "worst | attack worked | ASR higher than three retrainings' by more than 2 points | worst | "
        "client-rounds % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [f"| {name} | {_line(group)} |" for name, group in groups.items() if group]
    refused = sorted({row["refused"].partition(",")[0] for row in rows if "refused" in row})
    return "\n".join([*lines, "", *(f"- refused: {words}" for words in refused)])


def _retrained(row: dict[str, Any], measure: str) -> float:
    return float(mean(each[measure] for each in row["retrained"]))


def _line(rows: Sequence[dict[str, Any]]) -> str:
    short = [100 * (min(each["ta"] for each in r["retrained"]) - r["recovered"]["ta"]) for r in rows]
    marked = [r for r in rows if r["poisoned"]["asr"] is not None]
    worked = [r for r in marked if r["poisoned"]["asr"] > _retrained(r, "asr") + WORKED]
    over = [100 * (r["recovered"]["asr"] - max(each["asr"] for each in r["retrained"])) for r in worked]
    parts = [
        str(len(rows)),
        f"{100 * mean(r['recovered']['ta'] - _retrained(r, 'ta') for r in rows):+.1f}",
        f"{sum(s > 2 for s in short)} / {sum(s > 5 for s in short)}",
        f"{max(short):.1f}",
        str(len(worked)),
        str(sum(o > 2 for o in over)),
        f"{max(over):+.1f}" if over else "-",
        f"{100 * mean(r['client_rounds'] / r['of'] for r in rows):.0f}",
    ]
    return " | ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--most", type=int, default=120)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows = read(arguments.results)
    done = {row["seed"] for row in rows}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.most):
        if seed not in done and not arguments.table:
            rows.append(run_incident(seed))
            with arguments.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
