"""A replay in plain loops: stored updates, a few fresh answers, their mean difference for the others."""

from __future__ import annotations

import numpy as np

from fedcrab.history import History
from fedcrab.recover.replay_record import ReplayRecord
from fedcrab.rollback.decision import Plan
from trials.convex import Problem


def naive_replay(
    plan: Plan, problem: Problem, *, every: int, asked: int, seed: int
) -> tuple[list[np.ndarray], list[ReplayRecord]]:
    """The models x_s … x_T of a corrected replay, and what it records; the last two rounds ask everybody."""
    history: History = plan.history
    rng, first, last = np.random.default_rng(seed), plan.rollback_round, len(history.rounds)
    models, records = [history.model(first)], []
    for t in range(first, last):
        x, there, sent = models[-1], history.model(t), history.updates(t).without(plan.malicious)
        if not sent.clients:
            models.append(x)
            continue
        stored = dict(zip(sent.clients, sent.vectors, strict=True))
        errors = dict(zip(history.updates(t).clients, history.update_errors(t).tolist(), strict=True))
        some = list(sent.clients) if t >= last - 2 else rng.permutation(list(sent.clients))[:asked].tolist()
        some = some if t >= last - 2 or (t - first) % every == 0 else []
        fresh = problem.train(x, some, round=t) if some else None
        answers = dict(zip(fresh.clients, fresh.vectors, strict=True)) if fresh else {}
        shift = np.mean([answers[c] - stored[c] for c in answers], axis=0) if answers else 0.0
        rows = np.array([answers.get(c, stored[c] + shift) for c in sent.clients])
        shares = sent.weights / sent.weights.sum()
        models.append(x + (shares @ rows.astype(np.float64)).astype(np.float32))
        records.append(
            ReplayRecord.of(
                t,
                before=x,
                after=models[-1],
                history=there,
                examples=dict(zip(sent.clients, sent.weights.tolist(), strict=True)),
                asked=answers,
                stored=stored,
                errors=errors,
                model_error=history.model_error(t),
                trained=history.charter.layout.trained(),
            )
        )
    return models, records
