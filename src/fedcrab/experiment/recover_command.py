"""What the commands ``recover`` and ``evaluate`` do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcrab.errors import ConfigError, HistoryError
from fedcrab.experiment import names
from fedcrab.experiment.config import Config, settings
from fedcrab.experiment.curve import Curve
from fedcrab.experiment.declared import write_certificate_of
from fedcrab.experiment.recovery import Outcome, Recovery, judged, poisoned
from fedcrab.experiment.results import read_results, write_result
from fedcrab.experiment.setup import Setup, prepare
from fedcrab.experiment.shadow import membership_test
from fedcrab.history import History
from fedcrab.types import ClientId


def setup_of(history: History, workers: int | None) -> Setup:
    """The simulated clients of a history, from the configuration that it carries."""
    if not history.charter.notes:
        raise ConfigError(
            f"{history.path}: carries no configuration of simulated clients; recover it with "
            "fedcrab.recover over a fleet of your own"
        )
    if history.charter.notes.startswith('{"flower":'):
        raise ConfigError(
            f"{history.path}: recorded on Flower, where its clients are; recover it there: flwr run APP "
            "--run-config \"mode='recover' malicious='...'\" (docs/flower.md)"
        )
    return prepare(Config.from_json(history.charter.notes), workers=workers)


def recover_command(
    directory: Path,
    malicious: Collection[ClientId],
    method: str,
    out: Path,
    *,
    changes: Sequence[str] = (),
    unfound: str | None = None,
    noise: Mapping[str, float] | None = None,
    workers: int | None = None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Recover by one method or by all that the history allows; the rows, and why others are not allowed.

    ``changes`` are settings of the one method, such as ``beta=0.1``; ``unfound`` is for every method's plan.
    ``noise`` gives epsilon and delta of noise on the rollback model.
    """
    if method != "all":
        names.look_up("method", method, names.METHODS)
    elif changes or noise:
        raise ConfigError(f"{'--set' if changes else 'noise'} is for one method: name it by --method")
    own = settings(changes) if unfound is None else {**settings(changes), "unfound": unfound}
    history = History.open(directory)
    setup = setup_of(history, workers)
    outcomes, refused = [poisoned(history)], dict[str, str]()
    try:
        for name in names.METHODS if method == "all" else (method,):
            try:
                recovery = Recovery(name, history, malicious, setup, saved=out / name, noise=noise, **own)
            except HistoryError as error:
                refused[name] = str(error)
                continue
            outcomes.append(_follow(recovery, Curve(out / name, setup)))
        if method != "all" and refused:
            raise HistoryError(refused[method])
        return _write(out, history, setup, outcomes), refused
    finally:
        setup.close()


def _write(out: Path, history: History, setup: Setup, outcomes: Collection[Outcome]) -> list[dict[str, Any]]:
    retrained = next((o.model for o in outcomes if o.method == "retrain"), None)
    rows = [judged(setup, outcome, retrained) for outcome in outcomes]
    for outcome, row in zip(outcomes, rows, strict=True):
        if outcome.plan is not None:
            write_result(out / outcome.method, history, outcome, {**row, "poisoned": rows[0]})
    for outcome in outcomes:
        if outcome.plan is not None:
            write_certificate_of(out / outcome.method, outcome.plan, setup)
    return rows


def _follow(recovery: Recovery, curve: Curve) -> Outcome:
    columns = (
        TextColumn(recovery.method),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=recovery.length, completed=recovery.done)
        for step in recovery:
            if recovery.done == 1:
                curve.add(None, recovery.start)
            point = curve.add(step.round, step.model)
            told = f"round {step.round}  accuracy {point['ta']:.1%}"
            progress.update(task, advance=1, description=told)
    return recovery.outcome()


def evaluate_command(
    out: Path, *, with_membership: bool = True, workers: int | None = None
) -> list[dict[str, Any]]:
    """Judge the recovered models of a directory beside the poisoned one."""
    history, results = read_results(out)
    setup = setup_of(history, workers)
    try:
        retrained = next((r.model for r in results if r.method == "retrain"), None)
        outcomes = [poisoned(history), *(Outcome(r.method, r.model) for r in results)]
        rows = [judged(setup, outcome, retrained) for outcome in outcomes]
        for row, result in zip(rows[1:], results, strict=True):
            row.update(_costs(result.summary))
        if with_membership:
            test = membership_test(setup, results[0].summary["malicious"])
            for row, outcome in zip(rows, outcomes, strict=True):
                told = test.of(outcome.model)
                row["misr"] = told.recall
                row["misr_balanced_accuracy"] = told.balanced_accuracy
                row["misr_auc"] = told.auc
        return rows
    finally:
        setup.close()


COSTS = ("rollback_round", "rounds", "client_rounds", "sample_gradients", "seconds", "bytes")


def _costs(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: summary.get(name) for name in COSTS}
