"""Subtract and distil: subtract the malicious updates, then repair the model on the server's data.

    M̃ ← M_T - Σ_t Σ_{c malicious in t} p_c · u_t^c,   p_c = n_c / Σ n over all participants of round t
    each epoch:  M̃ ← descend  τ² · KL(softmax(f(x; M_T)/τ) ‖ softmax(f(x; M̃)/τ))  over the probe inputs x

No client is asked. The subtraction removes the backdoor, but most of the accuracy too, because the honest
updates were answers to models that contained the poison. Then the last model teaches what it knows on the
server's own inputs, which have no trigger. Needs the stored updates of every round, and a probe set.

Wu, Zhu, Mitra, "Federated Unlearning with Knowledge Distillation", 2022. Where it is ambiguous: honest
weights stay as they were; rounds without malicious clients do not change; buffers (BatchNorm's) stay those of
M_T. If the rule is not the mean, the mean's share is subtracted nevertheless, which removes less or more than
the poison did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from fedcrab.aggregate.mean import Aggregate
from fedcrab.errors import ConfigError
from fedcrab.recover.step import Step, check_count, check_epochs, check_updates
from fedcrab.rollback.decision import Plan
from fedcrab.types import Fleet, Vector
from fedcrab.vectors import is_finite

PASSES = 30  # over the probe inputs


class Distiller(Protocol):
    """The server's probe set and a way to train on it."""

    def distil(
        self, student: Vector, teacher: Vector, *, temperature: float, rate: float, epoch: int
    ) -> Vector:
        """Return the student after one epoch towards the teacher's outputs; buffers stay the same."""
        ...


def subtract_and_distil(
    plan: Plan,
    fleet: Fleet,  # noqa: ARG001 - all methods have the same parameters; nobody is asked
    *,
    aggregate: Aggregate | None = None,  # noqa: ARG001 - the mean is subtracted, whatever the rule is
    epochs: int | None = None,
    after: Step | None = None,
    probe: Distiller | None = None,
    passes: int = PASSES,
    temperature: float = 2.0,
    rate: float = 0.05,
) -> Iterator[Step]:
    """Recover on the server alone; the plan only says who is malicious, and since when.

    Its first step is the subtraction, as round T. Then follow ``passes`` epochs over the probe inputs, at the
    learning rate ``rate`` and the softmax ``temperature``. ``fleet``, ``aggregate`` and ``epochs`` are not
    used. ``after`` is the last step of an interrupted recovery, which continues from there.
    """
    check_epochs(epochs)
    check_count("passes", passes)
    for name, value in (("temperature", temperature), ("rate", rate)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise ConfigError(f"{name} must be a number above 0, got {value!r}")
    check_updates(plan.history, "subtract-and-distil")
    if probe is None:
        raise ConfigError(
            "subtract-and-distil trains on examples of the server, and there are none; recover "
            "with another method, or pass probe="
        )
    return _steps(plan, probe, after, passes, float(temperature), float(rate))


def subtracted(plan: Plan) -> Vector:
    """Return M_T - Σ_t Σ_c p_c·u_t^c over the malicious clients c of each round; buffers stay the same."""
    history = plan.history
    model = history.final_model()
    taken = np.zeros(len(model), np.float64)
    for entry in history.rounds:
        bad = [client for client in entry.clients if plan.is_malicious(client, entry.index)]
        if bad:
            updates, whole = history.updates(entry.index), float(entry.examples.sum())
            rows = updates.only(bad)
            taken += (rows.weights / whole) @ rows.vectors.astype(np.float64)
    result = np.array(model)
    for part in history.charter.layout.trained():
        result[part] = model[part] - taken[part]
    return result


def _steps(
    plan: Plan, probe: Distiller, after: Step | None, passes: int, temperature: float, rate: float
) -> Iterator[Step]:
    teacher, first = plan.history.final_model(), len(plan.history.rounds)
    step = after
    for t in range(after.round + 1 if after else first, first + 1 + passes):
        if step is None:
            step = Step(t, subtracted(plan))
        else:
            epoch = t - first - 1
            model = probe.distil(step.model, teacher, temperature=temperature, rate=rate, epoch=epoch)
            usable = is_finite(model)
            step = Step(t, model if usable else step.model, skipped="" if usable else "it diverged")
        yield step
