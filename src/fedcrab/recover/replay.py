"""Corrected replay: the honest clients' stored updates, corrected with a few fresh answers.

    contact round:   A ⊂ B_t answer from x;  rows  û of A,  q + c + e of the others
    other round:     rows  q + ĉ + e;  without a pair  q

The step is the mean of the rows, or the result of a robust rule. B_t are the honest participants of round t,
q their stored updates, x the recovered model, and ĉ the correction estimated from the last three contacts:
from their pairs of v = x - M_t and c (:mod:`fedcrab.recover.estimate`), and from the path that they show
(:mod:`fedcrab.recover.blend`). The stored updates are almost right, but they were made from M_t and not from
x. The difference û - q is far smaller than û, and so is its noise. A part c of it is common to all clients; a
part e is the client's own and changes slowly (:mod:`fedcrab.recover.correction`). So a few clients are enough
to measure it: those that were not asked for the longest time, in an order drawn with the history's secret
seed.

An asked client may be an undetected attacker. So c is a robust mean of at least five answers, and otherwise
an attacker only changes its own row, as it does in retraining. ``trust=True`` is for an operator who is sure
that no attacker is left: c is the mean of two answers, near the end of some more, within a budget, and e
fades. The last rounds ask every honest participant and aggregate the answers unchanged; with ``trust`` and
even clients, they ask half of them.

How many clients are asked, and how often, follows from measurements unless ``asked`` and ``every`` are given.
The spread of the differences gives the standard error of c. Comparing c with the estimate ĉ gives the
error of a round without contact (:mod:`fedcrab.recover.pacing`). Where the stored updates are of little use,
all clients are asked, and only their answers count. The buffers of a round without contact
change as stored, within what was measured (:mod:`fedcrab.recover.buffers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedcrab.admission import no_updates
from fedcrab.aggregate.mean import Aggregate, fedavg, shares, with_buffers
from fedcrab.aggregate.server_rule import ServerRule
from fedcrab.recover.blend import Blend
from fedcrab.recover.buffers import within_measured
from fedcrab.recover.certified_replay import Proof, certified_replay
from fedcrab.recover.correction import Correction, Rows, correction_of, own_parts, spread_of
from fedcrab.recover.estimate import estimated_correction, unexplored
from fedcrab.recover.fedrecover import trained_only
from fedcrab.recover.pacing import Distances, Pacing
from fedcrab.recover.replay_record import recorded
from fedcrab.recover.schedule import Moment
from fedcrab.recover.step import (
    Pair,
    Pairs,
    ReplayState,
    RoundUpdates,
    Step,
    check_answers,
    check_epochs,
    check_updates,
    renew,
)
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for
from fedcrab.types import ClientId, Fleet, Layout, Updates, Vector
from fedcrab.vectors import combination, norm

EVERYONE = ""  # the key of the pairs that all honest clients share
RECENT = " "  # of those whose second vector is s = ḡ + c; no client has such an id
MEMORY = 3  # pairs
Answers = dict[ClientId, tuple[Vector, float]]  # rows and examples


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
    proof: float | None = None,
    centre: float | None = None,
    spread: float | None = None,
    full_batch: bool = False,
) -> Iterator[Step]:
    """Recover from the plan's rollback model, round by round; needs a history by Compact or Everything.

    Every ``every``-th round asks ``asked`` clients; None decides both while it runs. ``settle`` is how many
    of the last rounds ask every honest participant (None: a fortieth, at least one). ``trust`` uses the mean
    of two answers, near the end of some more, instead of a robust mean of five: for an operator who is sure
    that no attacker is left.
    ``proof`` runs a certified replay instead (:mod:`fedcrab.recover.certified_replay`): a client is asked if
    more than this share of a step would be unknown. It needs C and ρ of the clients' training as ``centre``
    and ``spread``, and whether batches are full. ``epochs`` is the number of local epochs (None: the fleet's
    own). ``after`` is the last step of an interrupted recovery, which continues from there.
    """
    check_epochs(epochs)
    if proof is not None:
        Proof.of(proof, centre, spread, full_batch)
    pacing = Pacing(every, asked, settle, trust)
    check_updates(plan.history, "replay")
    rule, replayed = aggregate or fedavg(), range(plan.rollback_round, len(plan.history.rounds))
    check_answers(rule, {t: plan.honest(t) for t in replayed})  # every stored row goes through the rule

    def steps(asked: Fleet) -> Iterator[Step]:
        if proof is None:
            return _replay(_Scene(plan, asked, epochs, pacing, rule), after)
        return certified_replay(plan, asked, rule, epochs, after, Proof.of(proof, centre, spread, full_batch))

    return recorded(plan, fleet, steps, after)


def predicted_error(last: ReplayState, start: Vector, model: Vector, layout: Layout) -> str:
    """Return the predicted distance of a replay to retraining, in one sentence.

    It is an estimate, not a bound: in 372 replays the distance was 0.65 to 1.61 times as long.
    """
    moved = norm(model - start, layout.trained())
    share = f", {last.error / moved:.0%} of the distance that recovery moved the model" if moved else ""
    sentence = f"predicted distance to retraining: {last.error:.3g}{share} (an estimate, not a bound)"
    if last.ignored:
        sentence += f"; in {last.ignored} rounds the history was of little use, so every client was asked"
    return sentence


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything that stays the same in all rounds."""

    plan: Plan
    fleet: Fleet
    epochs: int | None
    pacing: Pacing
    aggregate: Aggregate

    @property
    def layout(self) -> Layout:
        return self.plan.history.charter.layout

    def moment(self, round: int) -> Moment:
        """Return the position of a round within the replay."""
        return Moment(round, self.plan.rollback_round, len(self.plan.history.rounds))

    def distances(self, model: Vector, moved: Vector, pairs: Sequence[Pair], mean: Vector) -> Distances:
        """Return how far ``model`` is from other models; ``moved`` is v, ``mean`` is ḡ."""
        trained, initial = self.layout.trained(), self.plan.history.initial_model()
        return Distances(
            moved=norm(moved),
            unexplored=unexplored(pairs, moved),
            travelled=norm(model - initial, trained),
            stored=norm(mean),
        )


def _replay(scene: _Scene, after: Step | None) -> Iterator[Step]:
    history, first = scene.plan.history, scene.plan.rollback_round
    step = after or Step(first - 1, history.model(first))
    for t in range(step.round + 1, len(history.rounds)):
        step = _replayed(scene, step, t)
        yield step


def _replayed(scene: _Scene, before: Step, t: int) -> Step:
    """Return the step of round t."""
    history, layout, model = scene.plan.history, scene.layout, before.model
    state = before.replay or scene.pacing.start(scene.plan.rollback_round)
    pairs = before.pairs.get(EVERYONE, ())
    history.verify_ahead(t)
    stored = history.updates(t, scene.plan.honest(t))
    if not stored.clients:
        skipped = RoundUpdates(no_updates(layout.size)).applied(model, scene.aggregate, layout, t)
        return replace(skipped, pairs=before.pairs, replay=replace(state, step_error=0.0))
    there = history.model(t)
    moved = trained_only(model - there, layout)
    mean = trained_only(combination(shares(stored.weights), stored.vectors), layout)
    far = scene.distances(model, moved, pairs, mean)
    first = estimated_correction(pairs, moved, far.stored)
    blend = Blend.of(first, mean, before.pairs.get(RECENT, ()), state)
    predicted = blend.correction()
    ignored = scene.pacing.ignores(state, far)
    count = scene.pacing.count(state, scene.moment(t), len(scene.plan.askable(t)), far)
    renewed = _ask(scene, state, model, t, count)
    state = replace(state, last_asked={**state.last_asked, **dict.fromkeys(renewed.asked, t)})
    kept = {client: pairs[-1] for client, pairs in before.pairs.items() if client not in (EVERYONE, RECENT)}
    own = own_parts(kept, t, fading=scene.pacing.trust)
    found = correction_of(renewed.updates, stored, own, predicted, trust=scene.pacing.trust, layout=layout)
    rows = _rows(stored, found.vector if found else predicted, own, found.changes if found else {})
    rows = {} if ignored else rows
    if not found or len(renewed.asked) == len(scene.plan.askable(t)):
        rows |= _rows(renewed.updates, None, {}, {})
    used = replace(renewed, updates=Updates.of(rows) if rows else no_updates(layout.size))
    step = used.applied(model, with_buffers(scene.aggregate, layout), layout, t)
    if not isinstance(scene.aggregate, ServerRule):  # a server's rule treats buffers itself, as in training
        seen = (there, stored), (model, renewed.updates)
        step = replace(step, model=within_measured(step.model, model, layout, seen))
    if not found:
        state = scene.pacing.after_estimate(state, moved=bool(moved.any()), honest=len(stored.clients))
        return replace(step, pairs=before.pairs, replay=state)
    now, length = scene.moment(t), norm(step.model - model, layout.trained())
    travelled = far.travelled, norm(step.model - history.initial_model(), layout.trained())
    alone = spread_of(renewed.updates.vectors, layout) if ignored else None
    state = scene.pacing.after_contact(
        state, now, found, step=length, stored=far.stored, travelled=travelled, alone=alone
    )
    state = blend.compared(trained_only(found.measured, layout), t, state)
    return replace(step, pairs=_with_new_pairs(before.pairs, found, moved, mean, t, layout), replay=state)


def _with_new_pairs(
    pairs: Pairs, found: Correction, moved: Vector, mean: Vector, t: int, layout: Layout
) -> Pairs:
    """Return the pairs with (v, c) and (v, ḡ + c) of this contact, and e of each client that answered."""
    common = Pair(t, moved, trained_only(found.vector, layout))
    return {
        **pairs,
        EVERYONE: (*pairs.get(EVERYONE, ()), common)[-MEMORY:],
        RECENT: (*pairs.get(RECENT, ()), Pair(t, moved, mean + common.changed))[-MEMORY:],
        **{client: (Pair(t, moved, found.own(client, layout)),) for client in found.changes},
    }


def _ask(scene: _Scene, state: ReplayState, model: Vector, t: int, count: int) -> RoundUpdates:
    """Return the fresh answers of ``count`` clients, those that were not asked for the longest time first.

    If some do not answer, as many others are asked.
    """
    history, able = scene.plan.history, scene.plan.askable(t)
    order = rng_for(history.charter.seed, "replay", t).permutation(len(able)).tolist()
    waiting = sorted((able[i] for i in order), key=lambda client: state.last_asked.get(client, -1))
    got = RoundUpdates(no_updates(len(model)))
    while waiting and len(got.updates.clients) < count:
        some = sorted(waiting[: count - len(got.updates.clients)])
        waiting = waiting[len(some) :]
        got = _joined(got, renew(scene.fleet, model, some, round=t, epochs=scene.epochs))
    return got


def _joined(one: RoundUpdates, other: RoundUpdates) -> RoundUpdates:
    """Return two parts of a round's answers joined."""
    rows = {
        client: (row, float(weight))
        for part in (one.updates, other.updates)
        for client, row, weight in zip(part.clients, part.vectors, part.weights, strict=True)
    }
    dropped = tuple(sorted((*one.dropped, *other.dropped), key=lambda r: r.client))
    updates = Updates.of(rows) if rows else other.updates
    return RoundUpdates(updates, tuple(sorted((*one.asked, *other.asked))), dropped)


def _rows(stored: Updates, correction: Vector | None, own: Rows, changes: Rows) -> Answers:
    """Return the rows to aggregate: q + its change for clients that answered, q + c + e for the others."""
    rows: dict[ClientId, tuple[Vector, float]] = {}
    for client, row, weight in zip(stored.clients, stored.vectors, stored.weights, strict=True):
        if client in changes:
            row = row + changes[client]
        elif correction is not None:
            row = row + correction + own[client] if client in own else row + correction
        rows[client] = (row, float(weight))
    return rows
