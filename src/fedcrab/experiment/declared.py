"""What can be declared of a simulated training, whose data and settings are known: for its certificate.

Softmax regression is convex. The Hessian of its cross-entropy on a batch is at most ½·λmax(XᵀX/b), X with a
column of ones, so at most ½·max ‖x‖² whatever the batch; weight decay adds λ to all curvature. A gradient is
no longer than √2·max ‖x‖. Of other models only rate, steps and losses are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrab.certify import Assumptions, write_certificate
from fedcrab.certify.command import beside
from fedcrab.certify.document import NAME
from fedcrab.certify.folder import Folder
from fedcrab.certify.making import certificate_of
from fedcrab.experiment.setup import Setup
from fedcrab.history import History
from fedcrab.rollback import Plan
from fedcrab.simulate import Probe
from fedcrab.types import ClientId, Vector

MARGIN = 1 + 1e-6  # float32 examples, float32 products


def write_certificate_of(directory: Path, plan: Plan, setup: Setup) -> None:
    """Certify the recovery in a folder with all that is known of its simulated clients."""
    folder = Folder.open(directory)
    certificate = certificate_of(
        folder,
        plan.history,
        assumptions=declared(setup, plan),
        retrained=beside(folder),
        noise=folder.noise(),
    )
    write_certificate(directory / NAME, certificate.to_table())


def declared(setup: Setup, plan: Plan) -> Assumptions:
    """The constants of the honest clients' training."""
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
    return [client for client in history.clients if client not in plan.malicious]


def _gaps(setup: Setup, plan: Plan, honest: Sequence[ClientId]) -> dict[str, Any]:
    """F - F* is at most F: no cross-entropy and no weight decay is below 0."""
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
