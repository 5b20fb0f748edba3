"""Corrected replay: the honest clients' stored updates, corrected by what a few fresh answers show.

    contact round:   A ⊂ B_t answer from x;  c = clipped median over A of (û - q);  step = ḡ_t + c
    other round:     step = ḡ_t + H̃v,  v = x - M_t,  at most ‖ḡ_t‖ long;  without a pair  step = ḡ_t

B_t the honest participants of round t, q their stored updates, ḡ_t their mean, x the recovered model; H̃ the
compact L-BFGS (:mod:`fedcrab.lbfgs`) of the last two pairs (v, c). The stored updates are almost the right
ones; what is wrong with them is that they were made from M_t and not from x. The difference û - q is far
smaller than û, and so is its noise: few clients are enough to measure it.

Who is asked may be an attacker whom nobody found, and among five asked it would weigh a fifth. So c is the
coordinate-wise median of five differences or more, each clipped to twice the median of their lengths, of
clients drawn by the history's secret seed. ``trust=True`` is for an operator who is sure of the others: the
mean of two. The last rounds ask every honest participant and aggregate their answers as they are.

How many are asked and how often follows from what is measured, unless ``asked`` and ``every`` fix it: the
spread of the differences gives the standard error of c; c against the H̃v predicted before it gives the error
of a round without contact (:mod:`fedcrab.recover.pacing`). Robust rules get the rows q + c. The buffers of a
round without contact are as stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedcrab.admission import no_updates
from fedcrab.aggregate.mean import Aggregate, fedavg, with_buffers
from fedcrab.errors import HistoryError
from fedcrab.history import History
from fedcrab.recover.correction import correction_of, estimated_correction
from fedcrab.recover.fedrecover import trained_only
from fedcrab.recover.pacing import Pacing
from fedcrab.recover.step import Pair, ReplayState, RoundUpdates, Step, check_answers, check_epochs, renew
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Layout, Updates, Vector
from fedcrab.vectors import norm

EVERYONE = ""  # whose pairs they are: the honest clients', together
MEMORY = 2  # pairs


def replay(
    plan: Plan,
    fleet: Fleet,
    *,
    aggregate: Aggregate | None = None,
    epochs: int | None = None,
    after: Step | None = None,
    every: int | None = None,
    asked: int | None = None,
    settle: int | None = None,
    trust: bool = False,
) -> Iterator[Step]:
    """Recover from the plan's rollback model, round by round; needs a history by Compact or Everything.

    ``every`` n-th round has contact, ``asked`` clients are asked in it; None decides both while it runs.
    ``settle`` is how many of the last rounds ask every honest participant (None: a twentieth, or one more).
    ``trust`` takes the mean of two asked in place of the median of five: for an operator who is sure that no
    attacker is left.
    ``epochs`` are the clients' local ones (None: as the fleet has them). ``after`` is the last step of a
    recovery that was interrupted; the recovery resumes from there.
    """
    check_epochs(epochs)
    pacing = Pacing(every, asked, settle, trust)
    check_history(plan.history)
    rule, replayed = aggregate or fedavg(), range(plan.rollback_round, len(plan.history.rounds))
    check_answers(rule, {t: plan.honest(t) for t in replayed})  # every stored row goes through the rule
    return _replay(_Scene(plan, fleet, epochs, pacing, rule), after)


def check_history(history: History) -> None:
    """Every round is replayed from its stored updates."""
    for entry in history.rounds:
        if not history.contents.has_updates(entry.index):
            raise HistoryError(
                f"{history.path}: round {entry.index} keeps no update vectors, which replay needs; "
                "recover with crab, federaser or retrain, or record with Compact() or Everything()"
            )


def predicted_error(last: ReplayState, start: Vector, model: Vector, layout: Layout) -> str:
    """How far a replay can be trusted, in one sentence: its predicted distance to retraining.

    A prediction from standard errors, no bound: in 52 trials the true distance was 0.4 to 1.4 times as long.
    """
    moved = norm(model - start, layout.trained())
    share = f", {last.error / moved:.0%} of the way that recovery moved the model" if moved else ""
    return f"predicted distance to retraining: {last.error:.3g}{share} (an estimate, no bound)"


@dataclass(frozen=True, slots=True)
class _Scene:
    """What stays the same from round to round."""

    plan: Plan
    fleet: Fleet
    epochs: int | None
    pacing: Pacing
    aggregate: Aggregate

    @property
    def layout(self) -> Layout:
        return self.plan.history.charter.layout

    def honest(self, round: int) -> tuple[ClientId, ...]:
        """Whose stored updates of a round are replayed."""
        return self.plan.honest(round)

    def askable(self, round: int) -> tuple[ClientId, ...]:
        """Who of them may be asked again."""
        return self.plan.askable(round)


def _replay(scene: _Scene, after: Step | None) -> Iterator[Step]:
    history, first = scene.plan.history, scene.plan.rollback_round
    step = after or Step(first - 1, history.model(first))
    for t in range(step.round + 1, len(history.rounds)):
        step = _replayed(scene, step, t)
        yield step


def _replayed(scene: _Scene, before: Step, t: int) -> Step:
    """The step of round t."""
    history, layout, model = scene.plan.history, scene.layout, before.model
    state = before.replay or scene.pacing.start(scene.plan.rollback_round)
    pairs = before.pairs.get(EVERYONE, ())
    stored = history.updates(t).only(scene.honest(t))
    if not stored.clients:
        skipped = RoundUpdates(no_updates(layout.size)).applied(model, scene.aggregate, layout, t)
        return replace(skipped, pairs=before.pairs, replay=replace(state, step_error=0.0))
    moved = trained_only(model - history.model(t), layout)
    predicted = estimated_correction(pairs, moved, stored, layout)
    renewed = _ask(scene, state, model, t) if moved.any() else RoundUpdates(no_updates(layout.size))
    found = correction_of(renewed.updates, stored, trust=scene.pacing.trust, layout=layout)
    correction = found.vector if found else predicted
    everyone = len(renewed.asked) == len(scene.askable(t))
    used = replace(renewed, updates=_rows(stored, correction, renewed.updates if everyone else None))
    step = used.applied(model, with_buffers(scene.aggregate, layout), layout, t)
    if found:
        pairs = (*pairs, Pair(t, moved, trained_only(found.vector, layout)))[-MEMORY:]
        surprise = found.vector if predicted is None else found.vector - predicted
        state = scene.pacing.after_contact(
            state,
            t,
            found,
            surprise=norm(surprise, layout.trained()),
            step=norm(step.model - model, layout.trained()),
            travelled=norm(model - history.initial_model(), layout.trained()),
        )
    else:
        state = scene.pacing.after_estimate(state, moved=bool(moved.any()))
    return replace(step, pairs={EVERYONE: pairs} if pairs else {}, replay=state)


def _ask(scene: _Scene, state: ReplayState, model: Vector, t: int) -> RoundUpdates:
    """The fresh answers of this round: of everybody at the end, of a few in a contact round, else of nobody.

    Where some do not answer, as many others are asked.
    """
    history, able = scene.plan.history, scene.askable(t)
    rounds, first = len(history.rounds), scene.plan.rollback_round
    if scene.pacing.settles(state, replayed=rounds - first, left=rounds - t):
        count = len(able)
    else:
        count = min(state.ask, len(able)) if t >= state.next_contact else 0
    order = rng_for(history.charter.seed, "replay", t).permutation(len(able)).tolist()
    waiting, got = [able[i] for i in order], RoundUpdates(no_updates(len(model)))
    while waiting and len(got.updates.clients) < count:
        some = sorted(waiting[: count - len(got.updates.clients)])
        waiting = waiting[len(some) :]
        got = _joined(got, renew(scene.fleet, model, some, round=t, epochs=scene.epochs))
    return got


def _joined(one: RoundUpdates, other: RoundUpdates) -> RoundUpdates:
    """Two parts of a round's answers as one."""
    rows = {
        client: (row, float(weight))
        for part in (one.updates, other.updates)
        for client, row, weight in zip(part.clients, part.vectors, part.weights, strict=True)
    }
    dropped = tuple(sorted((*one.dropped, *other.dropped), key=lambda r: r.client))
    updates = Updates.of(rows) if rows else other.updates
    return RoundUpdates(updates, tuple(sorted((*one.asked, *other.asked))), dropped)


def _rows(stored: Updates, correction: Vector | None, fresh: Updates | None) -> Updates:
    """What is aggregated: q + c for each client; where everybody was asked, the answers themselves."""
    rows = stored.vectors if correction is None else stored.vectors + correction
    answers = {
        client: (row, float(weight))
        for client, row, weight in zip(stored.clients, rows, stored.weights, strict=True)
    }
    if fresh is not None:
        exact = zip(fresh.clients, fresh.vectors, fresh.weights, strict=True)
        answers |= {client: (row, float(weight)) for client, row, weight in exact}
    return Updates.of(answers)
