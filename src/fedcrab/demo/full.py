"""The full demo on scikit-learn's digits: some clients become malicious in the middle of a training.

It detects who they are and since when, plans the rollback, and compares every recovery method.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fedcrab.detect import ledger
from fedcrab.evaluate import accuracy
from fedcrab.experiment import names
from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import Outcome, RecoveryRun, attack_success_of, measure_outcome, poisoned
from fedcrab.experiment.setup import Setup, open_for_training, prepare, rerecord, run
from fedcrab.history import Compact, Every, Everything, History, Selective
from fedcrab.history.selection import Selection
from fedcrab.progress import SILENT, Progress
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.methods import default_method
from fedcrab.report import tables
from fedcrab.report.curves import Curve, draw_curves
from fedcrab.report.page import page_data, write_page
from fedcrab.report.tables import to_table
from fedcrab.rollback.decision import PRESETS, Plan, plan
from fedcrab.rollback.onset import Onset, onset
from fedcrab.rollback.warnings import join_ids
from fedcrab.terminal_table import FittedTable
from fedcrab.types import ClientId, Vector, natural

SELECTIONS: Mapping[str, Selection] = {
    "everything": Everything(),
    "every": Every(2),
    "selective": Selective(),
    "compact": Compact(),
}


ROUNDS, BEGIN = 40, 20  # of the training, and of the attack
TRAINING = ["history.name=everything", f"rounds={ROUNDS}", f"attack.start={BEGIN}"]
SHOWN = (4, 9, BEGIN - 1, BEGIN, BEGIN + 2, BEGIN + 9, ROUNDS - 1)  # rounds of the training


@dataclass(frozen=True)
class Trained:
    """The training: its history under each selection, and its curve of accuracy and attack success."""

    kept: dict[str, History]
    points: list[tuple[int, float, float]]  # round, accuracy, attack success


@dataclass(frozen=True)
class DemoResult:
    """The result of the full demo."""

    history: History  # in 4 bits per number, from which replay recovers
    points: list[tuple[int, float, float]]
    suspects: tuple[ClientId, ...]  # by the ledger
    began: Onset
    plans: dict[str, Plan]
    rows: list[dict[str, Any]]
    tested: int  # images that accuracies are measured on
    picture: Path
    page: Path
    seconds: float

    def to_table(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plans = {name: p.to_table() for name, p in self.plans.items()}
        shown = {"methods": self.rows, "plans": plans, "history": to_table(self.history)}
        training = [{"round": t, "ta": ta, "asr": asr} for t, ta, asr in self.points]
        found = {"training": training, "suspects": list(self.suspects), "onset": self.began.to_table()}
        files = {"picture": str(self.picture), "page": str(self.page)}
        return {**shown, **found, **files, "seconds": self.seconds}

    def tables(self) -> list[RenderableType]:
        """Return tables for the terminal."""
        costs = planned_costs(self.plans["hardened"], self.plans["paper"])
        return [
            tables.headline(self.history),
            Text(f"\nTraining goes well until some clients start to plant a backdoor in round {BEGIN}:\n"),
            self._training(),
            Text(f"\n{self._accused()}\n"),
            tables.plans_table(self.plans),
            *tables.warnings_lines(self.plans),
            tables.costs_table(costs),
            Text("\nThe result of every method, each with the history that it needs:\n"),
            tables.methods_table(self.rows),
            Text(
                f"{self._judged()}\nThe curves are in {self.picture}, the incident page in {self.page}. "
                f"All this took {self.seconds:.0f} s."
            ),
        ]

    def _training(self) -> RenderableType:
        table = FittedTable("Training", "after round", "accuracy", "attack success")
        for t, ta, asr in self.points:
            if t in SHOWN:
                table.add_row(str(t), f"{ta:.1%}", f"{asr:.1%}")
        return table

    def _accused(self) -> str:
        """Return the suspects and the onset from the ledger alone, and whether they are right."""
        bad = frozenset(self.plans["paper"].malicious)
        listed = ", ".join(sorted(self.suspects, key=natural)) or "nobody"
        right = "correct" if {*self.suspects} == bad else f"the attackers are {join_ids(bad)}"
        when = f"from round {self.began.round} on" if self.began.round is not None else self.began.why
        return (
            f"From the ledger alone, without any update, fedcrab names {listed} ({right}). They differ "
            f"visibly: {when}. If they are known to be honest until round {BEGIN}, it decides:"
        )

    def _judged(self) -> str:
        rows = {row["method"]: row for row in self.rows}
        poisoned, ours, all_of_it = rows["poisoned"], rows[default_method(self.history)[0]], rows["retrain"]
        share = ours["client_rounds"] / all_of_it["client_rounds"]
        chance = sqrt(all_of_it["ta"] * (1 - all_of_it["ta"]) / self.tested)
        return (
            f"{ours['method']}, the default: attack success {poisoned['asr']:.1%} → {ours['asr']:.1%}, "
            f"accuracy {ours['ta']:.1%} (retrained: {all_of_it['ta']:.1%}; one standard error on "
            f"{self.tested} test images is {chance:.1%}). Cost: {share:.0%} of the client-rounds of full "
            f"retraining, and {ours['contact_rounds']} rounds with contact instead of "
            f"{all_of_it['contact_rounds']}."
        )


@contextmanager
def run_full_demo(out: Path | None = None, progress: Progress = SILENT) -> Iterator[DemoResult]:
    """Train, record, plan, recover and compare."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if out is None else out
        setup = prepare(load_config("digits", TRAINING))
        try:
            trained = _train_poisoned(setup, place, progress)
            kept, bad = trained.kept, setup.attackers.clients
            progress.stage("Detecting the attackers, and since when")
            suspects, began = ledger(kept["compact"]).suspects, onset(kept["compact"], bad)
            plans = {name: plan(kept["compact"], bad, since=BEGIN, **how) for name, how in PRESETS.items()}
            rows, curves = _recover(setup, kept, progress)
        finally:
            setup.close()
        progress.stage("Drawing the curves and the incident page")
        picture = Path("fedcrab-demo.png") if out is None else out / "curves.png"
        page = picture.with_name("fedcrab-demo.html" if out is None else "incident.html")
        draw_curves(picture, curves, (rows[0]["ta"], rows[0]["asr"]))
        write_page(page, page_data(kept["compact"], bad))
        found = (trained.points, suspects, began, plans, rows, len(setup.dataset.test_y), picture, page)
        yield DemoResult(kept["compact"], *found, time.perf_counter() - started)


def _train_poisoned(setup: Setup, place: Path, progress: Progress) -> Trained:
    """Run one training, and record it with each selection."""
    points = []
    count = len(setup.honest.clients)
    progress.stage(f"Training with {count} clients, some of them malicious", total=setup.config.rounds)
    with open_for_training(setup, place / "everything", resume=False) as history:
        for step in run(setup, history):
            height, success = setup.accuracy(step.model), attack_success_of(setup, step.model)
            points.append((step.round, height, success.without_target if success else 0.0))
            progress.step(f"accuracy {height:.1%}")
    progress.stage("Recording the same training as each method needs it")
    kept = {"everything": History.open(place / "everything")}
    for name in ("every", "selective", "compact"):
        kept[name] = rerecord(kept["everything"], place / name, SELECTIONS[name])
    return Trained(kept, points)


def _recover(
    setup: Setup, kept: dict[str, History], progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Curve]]:
    outcomes, curves = [poisoned(kept["compact"])], dict[str, Curve]()
    since = dict.fromkeys(setup.attackers.clients, BEGIN)
    for method, row in names.METHODS.items():
        source = next(h for h in kept.values() if h.charter.selection == row.selection)
        recovery = RecoveryRun(method, source, setup.attackers.clients, setup, since=since)
        progress.stage(f"Recovering with {method}", total=recovery.length)
        curves[method] = _follow(setup, recovery, progress)
        outcomes.append(recovery.outcome())
    progress.stage("Comparing the models")
    retrained = _model_of(outcomes, "retrain")
    return [measure_outcome(setup, outcome, retrained) for outcome in outcomes], curves


def _follow(setup: Setup, recovery: RecoveryRun, progress: Progress) -> Curve:
    """Accuracy and attack success after each step, against the client-rounds spent."""
    points, work = [], 0
    x, y = setup.dataset.test_x, setup.dataset.test_y
    for step in recovery:
        work += len(step.asked)
        success = attack_success_of(setup, step.model)
        height = accuracy(setup.predictor.predict, step.model, x, y)
        points.append((work, height, success.without_target if success else 0.0))
        progress.step(f"accuracy {height:.1%}")
    return points


def _model_of(outcomes: list[Outcome], method: str) -> Vector:
    return next(outcome.model for outcome in outcomes if outcome.method == method)
