"""The constants of a simulated training. Its data and settings are known, so its certificate declares them.

Softmax regression is convex. The Hessian of its cross-entropy on a batch is at most ½·λmax(XᵀX/b), where X
has a column of ones, so at most ½·max ‖x‖² for any batch. Weight decay adds λ to all curvature. A gradient is
at most √2·max ‖x‖ long. For other models, only rate, steps and losses are known.

A recovery can start from a noised rollback model with the (ε, δ) of :mod:`fedcrab.certificate.noise`. The
noise is drawn once: a killed recovery resumes from the noised model in OUT/METHOD/start.safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from pathlib import Path
from secrets import randbits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.certificate import Assumptions, certify, write_certificate
from fedcrab.certificate.certificate import certify_folder
from fedcrab.certificate.document import NAME
from fedcrab.certificate.noise import noised
from fedcrab.certificate.refutation import refutations
from fedcrab.errors import ConfigError
from fedcrab.experiment.setup import Setup
from fedcrab.history import History
from fedcrab.recover import Step
from fedcrab.recover.folder import RecoveryFolder
from fedcrab.recover.saved_steps import REQUEST
from fedcrab.rollback.decision import Plan
from fedcrab.simulate import Probe
from fedcrab.terminal import print_to_stderr
from fedcrab.types import ClientId, Vector

MARGIN = 1 + 1e-6  # for rounding: examples and products are float32


def write_certificate_of(directory: Path, plan: Plan, setup: Setup) -> None:
    """Write the certificate of a recovery, with all known constants of its simulated clients."""
    folder, known = RecoveryFolder.open(directory), known_assumptions(setup, plan)
    if refuted := next(refutations(known, plan, folder.evidence(plan.history, None)), None):
        known = Assumptions()  # an attacker was not named
        print_to_stderr(f"{directory.name}: the certificate declares nothing, because {refuted}")
    certificate = certify_folder(
        folder,
        plan.history,
        assumptions=known,
        retrained=folder.retraining(),
        noise=folder.noise(),
        decided=plan,
    )
    write_certificate(directory / NAME, certificate.to_table())


def known_assumptions(setup: Setup, plan: Plan) -> Assumptions:
    """Return the constants of the honest clients' training."""
    local, honest = setup.config.local, _honest(plan.history, plan)
    counts = [len(setup.honest.examples(client)[1]) for client in honest]
    if local.momentum or not local.learning_rate or not local.epochs:
        return Assumptions(**_gaps(setup, plan, honest))
    steps = [local.epochs * ceil(count / local.batch) for count in counts]
    return Assumptions(
        rate=local.learning_rate,
        fewest_steps=min(steps),
        most_steps=max(steps),
        full_batch=max(counts) <= local.batch,
        **_gaps(setup, plan, honest),
        **(_softmax(setup, honest) if setup.config.model == "softmax" else {}),
    )


def _honest(history: History, plan: Plan) -> list[ClientId]:
    """Return the clients whose updates count as honest in at least one round."""
    return [c for c in history.clients if any(not plan.is_malicious(c, e.index) for e in history.rounds)]


def _gaps(setup: Setup, plan: Plan, honest: Sequence[ClientId]) -> dict[str, Any]:
    """Return bounds on F - F*: at most F, because cross-entropy and weight decay are never below 0."""
    parts = [setup.honest.examples(client) for client in honest]
    probe = Probe(
        setup.predictor, np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    )
    history, decay = plan.history, setup.config.local.weight_decay

    def loss(model: Vector) -> float:
        return (probe.loss(model) + decay / 2 * float(np.sum(model.astype(np.float64) ** 2))) * MARGIN

    models = {"initial_gap": history.initial_model(), "rollback_gap": history.model(plan.rollback_round)}
    found = {name: loss(model) for name, model in models.items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _softmax(setup: Setup, honest: Sequence[ClientId]) -> dict[str, Any]:
    local = setup.config.local
    rows = [_with_ones(setup.honest.examples(client)[0]) for client in honest]
    longest = max(float(np.linalg.norm(x, axis=1).max()) for x in rows)
    full = max(len(x) for x in rows) <= local.batch
    steepest = max(float(np.linalg.norm(x, 2)) ** 2 / len(x) for x in rows) if full else longest**2
    found = {"convexity": local.weight_decay, "smoothness": steepest / 2 * MARGIN + local.weight_decay}
    return found if local.weight_decay else {**found, "gradient": sqrt(2) * longest * MARGIN}


def _with_ones(x: NDArray[np.float32]) -> NDArray[np.float64]:
    flat = x.reshape(len(x), -1).astype(np.float64)
    return np.hstack([flat, np.ones((len(flat), 1))])


def noised_start(folder: Path, plan: Plan, setup: Setup, noise: Mapping[str, float]) -> Step:
    """Return the step that recovery continues after: the noised model in the folder, or a new one.

    The seed comes from the system and is not stored, so that nobody can subtract the noise.
    """
    has_request = (folder / REQUEST).exists()  # a start without a request belongs to another recovery
    recovery, history = RecoveryFolder(folder), plan.history
    model = recovery.start(history) if has_request else None
    if model is None:
        drawn = noised(plan, _deviation(plan, setup, noise), randbits(256))
        model = recovery.write_start(history, drawn.model)
    return Step(plan.rollback_round - 1, model)


def _deviation(plan: Plan, setup: Setup, noise: Mapping[str, float]) -> float:
    found = certify(plan, assumptions=known_assumptions(setup, plan), estimate=False, noise=noise)
    deviation = found.terms["noise.deviation"].value
    if deviation is None:
        raise ConfigError(
            "noise needs a bound on the poison in the rollback model, which is not known here; leave out "
            "--epsilon and --delta, or roll back to the initial model with --set beta=0"
        )
    return deviation
