"""The whole story on scikit-learn's digits: training under attack, recorded; then every way to recover."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fedcrab.evaluate import accuracy
from fedcrab.experiment import names
from fedcrab.experiment.config import load_config
from fedcrab.experiment.recovery import Outcome, RecoveryRun, attack_success_of, measure_outcome, poisoned
from fedcrab.experiment.setup import Setup, open_for_training, prepare, rerecord, run
from fedcrab.history import Compact, Every, Everything, History, Selective
from fedcrab.history.selection import Selection
from fedcrab.progress import SILENT, Progress
from fedcrab.report import tables
from fedcrab.report.curves import Curve, draw_curves
from fedcrab.report.page import page_data, write_page
from fedcrab.report.tables import to_table
from fedcrab.rollback.decision import PRESETS, Plan, plan
from fedcrab.types import Vector, natural

SELECTIONS: Mapping[str, Selection] = {
    "everything": Everything(),
    "every": Every(2),
    "selective": Selective(),
    "compact": Compact(),
}


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found."""

    history: History  # by Crab's selection
    plans: dict[str, Plan]
    rows: list[dict[str, Any]]
    picture: Path
    page: Path
    seconds: float

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        plans = {name: p.to_table() for name, p in self.plans.items()}
        shown = {"methods": self.rows, "plans": plans, "history": to_table(self.history)}
        files = {"picture": str(self.picture), "page": str(self.page)}
        return {**shown, **files, "seconds": self.seconds}

    def tables(self) -> list[RenderableType]:
        """For people."""
        bad = ", ".join(sorted(self.plans["paper"].malicious, key=natural))
        return [
            tables.headline(self.history),
            Text(f"\nClients {bad} planted a backdoor. Told so, fedcrab decides:\n"),
            tables.plans_table(self.plans),
            *tables.warnings_lines(self.plans),
            Text("\nand every method recovers, each from the history that it needs:\n"),
            tables.methods_table(self.rows),
            Text(
                f"The curves are in {self.picture}, the incident page in {self.page}. "
                f"All this took {self.seconds:.0f} s."
            ),
        ]


@contextmanager
def run_full_demo(out: Path | None = None, progress: Progress = SILENT) -> Iterator[DemoResult]:
    """Train, record, decide, recover, compare."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if out is None else out
        setup = prepare(load_config("digits", ["history.name=everything"]))
        try:
            kept = _train_poisoned(setup, place, progress)
            bad = setup.attackers.clients
            plans = {name: plan(kept["selective"], bad, **how) for name, how in PRESETS.items()}
            rows, curves = _recover(setup, kept, progress)
        finally:
            setup.close()
        progress.stage("Drawing the curves and the incident page")
        picture = Path("fedcrab-demo.png") if out is None else out / "curves.png"
        page = picture.with_name("fedcrab-demo.html" if out is None else "incident.html")
        draw_curves(picture, curves, (rows[0]["ta"], rows[0]["asr"]))
        write_page(page, page_data(kept["selective"], bad))
        yield DemoResult(kept["selective"], plans, rows, picture, page, time.perf_counter() - started)


def _train_poisoned(setup: Setup, place: Path, progress: Progress) -> dict[str, History]:
    """One training, and what each selection keeps of it."""
    count = len(setup.honest.clients)
    progress.stage(f"Training with {count} clients, some of them malicious", total=setup.config.rounds)
    with open_for_training(setup, place / "everything", resume=False) as history:
        for step in run(setup, history):
            progress.step(f"loss {step.loss:.3f}")
    progress.stage("Recording the same training as each method needs it")
    kept = {"everything": History.open(place / "everything")}
    for name in ("every", "selective", "compact"):
        kept[name] = rerecord(kept["everything"], place / name, SELECTIONS[name])
    return kept


def _recover(
    setup: Setup, kept: dict[str, History], progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Curve]]:
    outcomes, curves = [poisoned(kept["selective"])], dict[str, Curve]()
    for method, row in names.METHODS.items():
        source = next(h for h in kept.values() if h.charter.selection == row.selection)
        recovery = RecoveryRun(method, source, setup.attackers.clients, setup)
        progress.stage(f"Recovering by {method}", total=recovery.length)
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
