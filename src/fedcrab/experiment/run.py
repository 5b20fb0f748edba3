"""What the commands ``recover`` and ``evaluate`` do.

A recovery writes its curve beside its steps: accuracy and attack success, one line of JSON per step.
Membership inference needs a shadow run: the same training on other data, where membership is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcrab.aggregate import fedavg
from fedcrab.errors import ConfigError, HistoryError
from fedcrab.evaluate import AttackModel, Membership, accuracy, fit_attack_model, membership
from fedcrab.experiment import names
from fedcrab.experiment.config import settings
from fedcrab.experiment.forensics import FINAL, investigate, keep, server_for
from fedcrab.experiment.known_constants import write_certificate_of
from fedcrab.experiment.recovery import (
    Outcome,
    Plans,
    RecoveryRun,
    attack_success_of,
    measure_outcome,
    poisoned,
)
from fedcrab.experiment.setup import Setup, setup_of
from fedcrab.history import History
from fedcrab.progress import SILENT, Progress
from fedcrab.recover.folder import RecoveryFolder, read_results, write_result
from fedcrab.seeds import rng_for
from fedcrab.simulate import Dataset, LocalTraining, SimulatedFleet, iid, initial_model
from fedcrab.simulate.data import Images
from fedcrab.terminal import print_to_stderr
from fedcrab.types import ClientId, Vector

MOST_EXAMPLES = 2000  # of the test data, so that a curve costs less than the steps that it shows


class Curve:
    """The curve of one recovery; the points of an interrupted run are kept."""

    def __init__(self, directory: Path, setup: Setup) -> None:
        self._folder, self._setup = RecoveryFolder(directory), setup

    def add(self, round: int | None, model: Vector) -> dict[str, Any]:
        """Measure the model after a round (None: before the first), and append the point to the curve."""
        point = {"round": round, **measured(self._setup, model)}
        self._folder.add_point(point)
        return point


def measured(setup: Setup, model: Vector) -> dict[str, float | None]:
    """Return accuracy, and attack success if the attack has a trigger, on part of the test data."""
    x, y = setup.dataset.test_x[:MOST_EXAMPLES], setup.dataset.test_y[:MOST_EXAMPLES]
    success = attack_success_of(setup, model, MOST_EXAMPLES)
    return {
        "ta": accuracy(setup.predictor.predict, model, x, y),
        "asr": success.without_target if success else None,
    }


@dataclass(frozen=True)
class MembershipTest:
    """A membership attack fitted to a shadow run, and the examples to apply it to."""

    setup: Setup
    attack: AttackModel
    members: Images  # the malicious clients' clean examples
    others: Images  # test examples that neither training nor the shadow run has seen

    def of(self, model: Vector) -> Membership:
        """Return how well this model reveals membership in the malicious clients' data."""
        predict = self.setup.predictor.predict
        return membership(self.attack, predict, model, self.members, self.others)

    def row(self, model: Vector) -> dict[str, float | bool]:
        """Return the same as measures of a table row."""
        result = self.of(model)
        return {
            "misr": result.recall,
            "misr_balanced_accuracy": result.balanced_accuracy,
            "misr_auc": result.auc,
            "misr_beyond_chance": result.beyond_chance,
        }


def membership_test(setup: Setup, malicious: Collection[ClientId]) -> MembershipTest:
    """Train a shadow model like the real one, on examples that no client has, and fit the attack."""
    shadow, others = _shadow_data(setup)
    model = _shadow_model(setup, shadow)
    predict = setup.predictor.predict
    attack = fit_attack_model(predict(model, shadow.train_x), predict(model, shadow.test_x))
    members = np.concatenate([setup.honest.examples(client)[0] for client in sorted(malicious)])
    return MembershipTest(setup, attack, members, others)


def _shadow_data(setup: Setup) -> tuple[Dataset, Images]:
    """Members and non-members of the shadow run, and the test examples left for the real one.

    Members are training examples that no client has, if there are as many as the clients have; otherwise
    half of the test set.
    """
    data, seed = setup.dataset, setup.config.seed
    used = np.concatenate(setup.parts)
    spare = np.setdiff1d(np.arange(len(data.train_y)), used)
    if len(spare) >= 2 * len(used):
        order = rng_for(seed, "shadow").permutation(spare)[: 2 * len(used)]
        x, y, others = data.train_x[order], data.train_y[order], data.test_x
    else:
        order = rng_for(seed, "shadow").permutation(len(data.test_y))
        half, rest = np.array_split(order, 2)
        x, y, others = data.test_x[half], data.test_y[half], data.test_x[rest]
    cut = len(y) // 2
    shadow = replace(data, train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])
    return shadow, others


def _shadow_model(setup: Setup, shadow: Dataset) -> Vector:
    config = setup.config
    count = min(config.clients.count, len(shadow.train_y))
    parts = iid(shadow.train_y, clients=count, seed=config.seed)
    local = LocalTraining(**config.local.model_dump())
    model, rule = initial_model(setup.architecture, seed=config.seed), fedavg()
    with SimulatedFleet(shadow, parts, setup.architecture, seed=config.seed, local=local) as fleet:
        for t in range(config.rounds):
            updates = fleet.train(model, fleet.clients, round=t)
            model = model + rule(updates.vectors, updates.weights)
    return model


def recover_command(
    directory: Path | History,
    malicious: Collection[ClientId],
    method: str,
    out: Path,
    *,
    changes: Sequence[str] = (),
    unfound: str | None = None,
    since: Mapping[ClientId, int] | None = None,
    noise: Mapping[str, float] | None = None,
    anchor: bool = False,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Recover with one method, or with all that the history allows.

    Returns one row per method, and why each other method is not allowed. ``changes`` are settings of the one
    method, such as ``beta=0.1``, and ``batches`` (``fresh`` or ``history``), which applies to any number of
    methods. ``unfound`` and ``since`` apply to every method's plan. ``noise`` gives epsilon and delta of the
    noise on the rollback model. ``anchor`` stores every answer, and asks every honest client once more at the
    recovered model, so that the certificate can prove more.
    """
    if method != "all":
        names.look_up("method", method, names.METHODS)
    elif noise or {*settings(changes)} - {"batches"}:
        raise ConfigError(f"{'noise' if noise else '--set'} applies to one method: choose it with --method")
    planned = {"unfound": unfound, "since": {c: t for c, t in (since or {}).items() if t} or None}
    own = {**settings(changes), **{name: value for name, value in planned.items() if value is not None}}
    history = directory if isinstance(directory, History) else History.open(directory)
    setup, plans = setup_of(history, workers), Plans(history, malicious)
    outcomes, refused, printed_warnings = [poisoned(history)], dict[str, str](), set[str]()
    try:
        for name in names.METHODS if method == "all" else (method,):
            try:
                kept: dict[str, Any] = {"saved": out / name, "noise": noise, "anchor": anchor}
                recovery = RecoveryRun(name, history, malicious, setup, plans=plans, **kept, **own)
            except HistoryError as error:
                refused[name] = str(error)
                continue
            printed_warnings |= _tell_warnings(name, recovery, printed_warnings)
            outcomes.append(_follow(recovery, Curve(out / name, setup), progress))
        if method != "all" and refused:
            raise HistoryError(refused[method])
        progress.stage("Measuring, and writing models and certificates")
        return _write(out, setup, outcomes), refused
    finally:
        setup.close()


def _tell_warnings(method: str, recovery: RecoveryRun, printed_warnings: Collection[str]) -> set[str]:
    """Print each warning of a method's plan once; methods that ignore the plan have none."""
    if not names.METHODS[method].rolls_back:
        return set()
    new = {warning for warning in recovery.plan.warnings if warning not in printed_warnings}
    for warning in recovery.plan.warnings:
        if warning in new:
            print_to_stderr(f"{method}: {warning}")
    return new


def _write(out: Path, setup: Setup, outcomes: Collection[Outcome]) -> list[dict[str, Any]]:
    retrained = next((o.model for o in outcomes if o.method == names.REFERENCE), None)
    rows = [measure_outcome(setup, outcome, retrained) for outcome in outcomes]
    for outcome, row in zip(outcomes, rows, strict=True):
        if outcome.plan is not None:
            measures = {**row, "poisoned": rows[0]}
            write_result(out / outcome.method, outcome.plan, outcome.method, outcome.model, measures)
    for outcome in outcomes:
        if outcome.plan is not None:
            write_certificate_of(out / outcome.method, outcome.plan, setup)
    return rows


def _follow(recovery: RecoveryRun, curve: Curve, progress: Progress) -> Outcome:
    progress.stage(f"Recovering with {recovery.method}", total=recovery.length, done=recovery.done)
    for step in recovery:
        if recovery.done == 1:
            curve.add(None, recovery.start)
        point = curve.add(step.round, step.model)
        progress.step(f"round {step.round}, accuracy {point['ta']:.1%}")
    return recovery.outcome()


def evaluate_command(
    out: Path,
    *,
    with_membership: bool = True,
    with_audit: bool = True,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """Measure the recovered models in a directory beside the poisoned one.

    An audit reports for each model whether it contains a trigger, and how well the trigger of the poisoned
    model still works on it. The audit is saved in the directory.
    """
    history, results = read_results(out)
    setup = setup_of(history, workers)
    try:
        retrained = next((r.model for r in results if r.method == names.REFERENCE), None)
        outcomes = [poisoned(history), *(Outcome(r.method, r.model) for r in results)]
        progress.stage(f"Measuring {len(outcomes)} models")
        rows = [measure_outcome(setup, outcome, retrained) for outcome in outcomes]
        for row, result in zip(rows[1:], results, strict=True):
            row.update(_costs(result.summary))
        if with_membership:
            progress.stage("Training a shadow model for membership inference")
            test = membership_test(setup, results[0].summary["malicious"])
            for row, outcome in zip(rows, outcomes, strict=True):
                row.update(test.row(outcome.model))
        if with_audit:
            progress.stage("Searching the models for triggers")
            found = investigate(history, {r.method: r.model for r in results}, server=server_for(setup))
            keep(out, found)
            for row, name in zip(rows, (FINAL, *(r.method for r in results)), strict=True):
                row["trigger"] = found.trigger_row(name)
        return rows
    finally:
        setup.close()


COSTS = (
    "rollback_round",
    "rounds",
    "contact_rounds",
    "client_rounds",
    "sample_gradients",
    "seconds",
    "bytes",
)


def _costs(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: summary.get(name) for name in COSTS}
