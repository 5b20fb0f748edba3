"""What was planted, since when and who taught it: how often the audit and the attribution are right.

usage: python benchmarks/forensics.py [mlp|clean|brought|cnn|resnet|cifar10 ...]
                                      [--seeds N] [--skip N] [--minutes M] [--results FILE] [--keep DIR]
                                      [--table] [--write]

20 clients, 20 rounds, 200 examples per client, 1,000 probe examples, recorded once with Compact(4); CNNs with
10 clients and 12 rounds, residual networks with 10 clients, 8 rounds and 150 examples. Each training draws
its trigger (2 to 6 pixels per side, anywhere, several values), its target and its start (round 0, 2 or 3) by
its seed. Seeds start at 10000; thresholds and draws were set on others, below 7600. One line of JSON per
training; an interrupted run resumes. End to end: the default recovery removes the clients that `detect`
names, while attackers that were not named continue to attack. If the attack still works on more than 5% of
the examples, the result is compared with a retraining without any attacker. --write puts the table into
docs/forensics.md. Needs the image sets (FEDCRAB_DATA).
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from cells import MEMORY
from incidents import SPREADS, Incident, incident
from numpy.typing import NDArray

from fedcrab.audit import Attribution, Inversion, attribute, taught_examples, taught_trigger
from fedcrab.audit.timeline import change
from fedcrab.detect import ledger
from fedcrab.experiment.forensics import Investigation, Server, investigate, server_for
from fedcrab.experiment.setup import aggregate_of
from fedcrab.history import History
from fedcrab.recover import replay, retrain
from fedcrab.rollback.decision import plan
from fedcrab.types import ClientId, Fleet, Updates, Vector

RESULTS, DOCUMENT = Path("benchmarks/results/forensics.jsonl"), Path("docs/forensics.md")
DATA = ("mnist", "fashion-mnist", "cifar10")
ATTACKS = (("boosted", 0.1), ("patch", 0.25), ("boosted", 0.25), ("patch", 0.4), ("dba", 0.4))
FIRST = 10000  # seed
WORKS = 0.8  # attack success of a backdoor that works
CLOSE = 0.05  # of retraining's attack success
Row = dict[str, Any]


class Remembering:
    """A fleet that keeps its exact updates, to compare them with those in 4 bits."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.answers = fleet, list[Updates]()

    def train(
        self, model: Vector, clients: Sequence[ClientId], *, round: int, epochs: int | None = None
    ) -> Updates:
        self.answers.append(self._fleet.train(model, clients, round=round, epochs=epochs))
        return self.answers[-1]


class Exact:
    """A history whose updates are the exact ones."""

    def __init__(self, history: History, answers: Sequence[Updates]) -> None:
        self._history, self._answers = history, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)

    def updates(self, round: int) -> Updates:
        return self._answers[round]


def auc(scores: NDArray[np.float64], bad: NDArray[np.bool_]) -> float | None:
    if not bad.any() or bad.all():
        return None
    above = scores[bad][:, None] - scores[~bad][None]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def examine(
    data: str, model: str, spread: str, fraction: float, kind: str, seed: int, *, keep: Path | None = None
) -> Row:
    """Run and investigate one training; the folder ``keep`` stores its history, or has it already."""
    about = incident(data, model, spread, fraction, kind, seed, kept="compact")
    place = keep / f"{model}-{kind}-{seed}" if keep else None
    old = place is not None and place.exists()
    exact = Remembering(about.setup.fleet) if model == "mlp" and seed % 3 == 0 and not old else None
    if exact:
        about = replace(about, setup=replace(about.setup, fleet=exact))
    with TemporaryDirectory(dir=MEMORY) as folder:
        if place is None or not old:
            about.record(Path(folder) / "h")
            if place is not None:
                shutil.copytree(Path(folder) / "h", place.with_suffix(".new"), dirs_exist_ok=True)
                place.with_suffix(".new").rename(place)
        history = History.open(place or Path(folder) / "h")
        row: Row = {"data": data, "model": model, "spread": spread, "fraction": fraction, "kind": kind}
        row |= {"seed": seed, "start": about.start, "target": about.target}
        row |= {"malicious": sorted(about.setup.attackers.clients)}
        row |= {"ta": about.setup.accuracy(history.final_model())}
        row |= {"success": about.success(history.final_model()) if kind != "clean" else None}
        if about.patch is not None:
            row |= _planted(about, history, exact)
        else:
            row |= (_clean if kind == "clean" else _brought)(about, history)
    about.setup.close()
    return _rounded(row)


def _investigated(about: Incident, history: History) -> tuple[Server, Inversion, Investigation, Row]:
    """Return what `detect` does and reports."""
    server, began = server_for(about.setup), time.process_time()
    found, alone = investigate(history, server=server), ledger(history)
    answer, first = found.answer(alone), found.first
    assert first is not None
    row: Row = {"cpu": time.process_time() - began, "planted": first.planted, "class": first.label}
    row |= {"ratio": first.ratio, "beside_next": first.beside_next, "steps": first.steps}
    row |= {"suspects": list(answer.suspects), "apart": sorted(answer.apart)}
    row |= {"ledger": list(alone.suspects), "ledger_strength": alone.strength}
    row |= {"unlearners": list(found.lessons.unlearners) if found.lessons else []}
    row |= {"balance": float(np.nanmin(found.lessons.balance)) if found.lessons else None}
    return server, first, found, row


def _planted(about: Incident, history: History, exact: Remembering | None) -> Row:
    server, first, found, row = _investigated(about, history)
    if found.taught and found.taught[0].parts is not None:
        detection, parts = found.taught[0].detection, found.taught[0].parts
    else:
        detection, parts = taught_trigger(history, server.flat, first, server.x, server.y)
    row |= {"when": found.planted_in, "named": list(detection.suspects)}
    row |= {"lifts": [round(float(lift), 3) for lift in found.when.lifts] if found.when else None}
    row |= _parts(about, parts, parts.unexplained)
    row["onsets"] = [*found.teachers.values()]
    if exact:
        twin: Any = Exact(history, exact.answers)
        again = taught_trigger(twin, server.flat, first, server.x, server.y)[1]
        row["auc_exact"] = _auc(about, again, again.unexplained)
    return row | _against_truth(about, history, server, first) | _end_to_end(about, history, row["suspects"])


def _clean(about: Incident, history: History) -> Row:
    """Return the audit, and the naming rule without the audit's flag, per class and for natural mistakes."""
    server, first, found, row = _investigated(about, history)
    row["named"] = [client for one in found.taught for client in one.detection.suspects]
    alone = [_unflagged(history, server, first, about.target)]  # any class: the target is drawn
    row["unflagged"] = [len(parts.named) for parts in alone]
    row["strengths"] = [round(parts.cut.strength, 3) for parts in alone]
    test = about.setup.dataset
    said = server.flat.predict(history.final_model(), test.test_x[:2000])
    wrong = np.flatnonzero(said != test.test_y[:2000])[:10]
    brought = taught_examples(history, server.flat, test.test_x[wrong], said[wrong], server.x, server.y)
    return row | {"mistakes_named": len(brought[0].suspects), "mistakes_strength": brought[0].strength}


def _unflagged(history: History, server: Server, found: Inversion, label: int) -> Attribution:
    """Return the attribution of a class's smallest patch as if the audit had flagged it."""
    plain = server.x[server.y != label][:160]
    stamped = plain + found.masks[label] * (found.patterns[label] - plain)
    labels = np.full(len(plain), label, np.int64)
    own = server.x[server.y == label][:160]
    genuine = own, np.full(len(own), label, np.int64)
    return attribute(history, server.flat, stamped.astype(np.float32), labels, plain=plain, genuine=genuine)


def _brought(about: Incident, history: History) -> Row:
    """Return the result for ten examples that the model gets wrong, and for ten that the attack changed."""
    server, (x, y) = server_for(about.setup), about.misbehaviour()
    taken = server.flat.predict(history.final_model(), x) == y
    anyway = server.flat.predict(_without_attackers(about, history), x) == y
    row: Row = {"natural_rate": float(np.mean(anyway)) if len(x) else None}
    return (
        row
        | _ten(about, history, server, taken)
        | {f"changed_{name}": value for name, value in _ten(about, history, server, taken & ~anyway).items()}
    )


def _ten(about: Incident, history: History, server: Server, which: NDArray[np.bool_]) -> Row:
    """Return who taught the first ten of these examples of the attack."""
    (x, y), some = about.misbehaviour(), np.flatnonzero(which)[:10]
    if not len(some):
        return {"examples": 0, "auc": None, "named": []}
    found, parts = taught_examples(history, server.flat, x[some], y[some], server.x, server.y)
    return {"examples": len(some), "named": list(found.suspects), **_parts(about, parts, parts.scores)}


def _parts(about: Incident, parts: Attribution, ranked: NDArray[np.float64]) -> Row:
    cut = parts.cut
    told = {"gap": cut.gap, "own_gap": cut.own_gap, "natural": cut.natural, "own": cut.own}
    each = {client: round(float(v), 3) for client, v in zip(parts.clients, ranked, strict=True)}
    return {"auc": _auc(about, parts, ranked), **told, "strength": cut.strength, "ranked": each}


def _auc(about: Incident, parts: Attribution, ranked: NDArray[np.float64]) -> float | None:
    bad = np.array([client in about.setup.attackers.clients for client in parts.clients])
    return auc(ranked, bad)


def _against_truth(about: Incident, history: History, server: Server, found: Inversion) -> Row:
    """Return the mask's weight inside the true patch, and the first kept model in which that patch works."""
    assert about.patch is not None
    others = server.x[server.y != about.target]
    stamped, rounds = about.patch.stamp(others), (*history.kept, len(history.rounds))
    models = [history.model(t) for t in history.kept] + [history.final_model()]
    rates = np.array([np.mean(server.flat.predict(model, stamped) == about.target) for model in models])
    since = change(rates >= max(0.5 * rates[-1], 0.25))
    row: Row = {"kept": list(rounds), "true_when": rounds[since] if since < len(rounds) else None}
    row |= {"rates": [round(float(rate), 3) for rate in rates]}
    mask = found.masks[found.label]
    inside = float(mask[about.patch.mask(about.setup.dataset.shape)].sum() / max(float(mask.sum()), 1e-9))
    return row | {"inside": inside}


def _end_to_end(about: Incident, history: History, suspects: Sequence[ClientId]) -> Row:
    """Return how much of the attack is left after the default recovery without the named clients."""
    if not suspects:
        return {"recovered": about.success(history.final_model()), "retrained": None}
    steps = replay(plan(history, frozenset(suspects)), about.fleet_again(), **_as_trained(about))
    row: Row = {"recovered": about.success(_last(steps, history)), "retrained": None}
    if row["recovered"] > CLOSE:
        row["retrained"] = about.success(_without_attackers(about, history))
    return row


def _without_attackers(about: Incident, history: History) -> Vector:
    """Return the model of the same training with the honest clients alone."""
    honest = about.setup.honest.training_again()
    again = retrain(plan(history, about.setup.attackers.clients), honest, **_as_trained(about))
    return _last(again, history)


def _as_trained(about: Incident) -> dict[str, Any]:
    config = about.setup.config
    return {"aggregate": aggregate_of(config), "epochs": config.local.epochs}


def _last(steps: Iterator[Any], history: History) -> Vector:
    model = history.initial_model()
    for step in steps:
        model = step.model
    return model


def _rounded(row: Row) -> Row:
    return {name: round(v, 4) if isinstance(v, float | np.floating) else v for name, v in row.items()}


def trainings(
    parts: Sequence[str], seeds: int, skip: int = 0
) -> Iterator[tuple[str, str, str, float, str, int]]:
    """Yield each training as data, model, spread, fraction, kind and seed; the slowest ones come last."""
    for slow in (False, True):
        for turn, part, (d, data) in product(range(skip, seeds), parts, enumerate(DATA)):
            if slow != (data == "cifar10"):
                continue
            for s, spread in enumerate(SPREADS):
                seed = FIRST + 100 * turn + 10 * list(PARTS).index(part) + 3 * d + s
                yield from ((data, *rest) for rest in PARTS[part](data, spread, seed, turn))


def _mlp(data: str, spread: str, seed: int, turn: int) -> list[tuple[str, str, float, str, int]]:
    if data == "cifar10":  # a part of its own
        return []
    kind, fraction = ATTACKS[(turn + seed) % len(ATTACKS)]
    return [("mlp", spread, fraction, kind, seed)]


def _clean_ones(data: str, spread: str, seed: int, _turn: int) -> list[tuple[str, str, float, str, int]]:
    return [] if data == "cifar10" else [("mlp", spread, 0.0, "clean", seed)]


def _brought_ones(data: str, spread: str, seed: int, turn: int) -> list[tuple[str, str, float, str, int]]:
    if data == "cifar10":
        return []
    return [("mlp", spread, 0.4, ("class-flip", "subgroup")[(turn + seed) % 2], seed)]


def _slow(model: str, only: Sequence[str]) -> Callable[..., list[tuple[str, str, float, str, int]]]:
    """Return trainings of one spread of one data set per turn, one attacked and one clean."""

    def make(data: str, spread: str, seed: int, turn: int) -> list[tuple[str, str, float, str, int]]:
        if data != only[turn % len(only)] or spread != SPREADS[turn % 3]:
            return []
        attacked = (("boosted", 0.25), ("dba", 0.4), ("patch", 0.4), ("boosted", 0.4))[turn % 4]
        return [(model, spread, fraction, kind, seed) for kind, fraction in (attacked, ("clean", 0.0))]

    return make


PARTS: dict[str, Callable[..., list[tuple[str, str, float, str, int]]]] = {
    "mlp": _mlp,
    "clean": _clean_ones,
    "brought": _brought_ones,
    "cnn": _slow("cnn", ("fashion-mnist", "mnist")),
    "resnet": _slow("resnet", ("cifar10",)),
    "cifar10": _slow("mlp", ("cifar10",)),
}


def read(path: Path) -> list[Row]:
    """Return the complete lines; an incomplete last line of a killed run is cut off."""
    if not path.exists():
        return []
    held = path.read_bytes()
    whole = held[: held.rfind(b"\n") + 1]
    if len(whole) < len(held):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def main() -> None:
    from forensics_table import table, write

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["mlp", "clean", "brought"])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--skip", type=int, default=0, help="first turns to skip (another process runs them)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--keep", type=Path, help="a folder that keeps the histories")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, until = read(arguments.results), time.monotonic() + 60 * arguments.minutes
    wanted = trainings(arguments.parts, arguments.seeds, arguments.skip)
    for training in [] if arguments.table or arguments.write else wanted:
        rows = read(arguments.results)  # another process may do other parts of it
        if (training[1], training[4], training[5]) in {(r["model"], r["kind"], r["seed"]) for r in rows}:
            continue
        if time.monotonic() > until:
            print("some trainings are missing; the same command resumes")
            break
        rows.append(examine(*training, keep=arguments.keep))
        with arguments.results.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(*training, rows[-1]["success"], rows[-1].get("auc"), rows[-1].get("named"), flush=True)
    print(table(rows))
    if arguments.write:
        write(DOCUMENT, rows)


if __name__ == "__main__":
    main()
