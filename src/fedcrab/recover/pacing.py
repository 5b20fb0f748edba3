"""When a replay asks clients, how many, and how far it is from retraining, all from its measurements.

    gap to the next contact = 1 + ⌊DRIFT · ‖x - M_0‖ / missed⌋,  at least SHORTEST, at most LONGEST,
                              and at most 1 + ⌊rounds left / TAPER⌋
    clients asked           = ⌈(spread / step)²⌉,                at least five, at most ten

``missed`` is the error of the estimate that the contact has replaced: ‖mean of r - ĉ‖ without the noise of
that mean (‖c‖ if there was no estimate). M_0 is the initial model. So contacts are more frequent where
estimates are wrong, and most frequent in the last rounds. What clients with uneven data taught last decides
how the model tells their classes apart, so an error of the last rounds costs more accuracy than one of the
first, even if it moves the model less. (With gaps that grew from 1 to 5, four of 24 settings lost 1.0 to 1.3
points of accuracy; as many contacts spread in this way lose 0.5 at most.) TAPER is a seventh of the replayed
rounds, at least 2 and at most 4. SHORTEST is 3: some histories swing from round to round, and with gaps of 4
or more, most contacts were in rounds of one kind. (CIFAR-10, 50% attackers, development trainings, 4 and 3
compared: -0.37 and -0.32 points of accuracy, IID; with ``trust`` -0.59 and -0.53, Dirichlet 0.1 -0.82 and
-0.19.)

With this many clients the standard error of c is at most the length of the step. If there are fewer than ten
honest participants, half are asked, but at least three. (When three were always asked, two undetected
attackers were once among them, and their backdoor was in every client's correction.)

With ``trust`` two are asked, and all contacts have a budget: half of the answers that the usual contacts and
one more would take without it. Two are reserved for each usual contact to come, so gaps are never longer than
usual. The contacts in the last quarter of the rounds, where errors cost most, share what is left:

    clients asked ≤ ⌊FEWEST · (1 + usual contacts) / 2⌋ - answers so far - 2 · usual contacts to come

An estimate is only valid in the directions in which corrections were measured. If more than UNEXPLORED of v =
x - M_t is outside of these, and it is longer than NEGLIGIBLE of the model's movement, clients are asked at
once. This happens in the round after an attack starts, when the history's model changes direction. (Five
rounds without contact there left 2 to 4 points of a backdoor's success.)

The stored updates can be of little use: clients trained with large steps, or from models that an attack had
destroyed and that have nothing in common with x. Then every honest participant is asked, and only the answers
count, as in a retraining. This is so

- from a contact on, the first five rounds aside, whose noise (below) is more than DOUBTFUL of ‖x - M_0‖, or
  with ``trust`` would be if as many had been asked as without,
- in a round whose stored updates have a mean more than JUMP times as long as at the last contact.

(Without it, the recovered model could be as destroyed as the history's. In the trainings that the other
constants were set on, the noise is hardly ever above 0.16 and the mean at most 5.5 times as long.
These two were set on 127 trainings with drawn settings, other ones than those of benchmarks/drawn_incidents.)

The last fortieth of the rounds asks every honest participant: at least one round. With ``trust``, half of the
participants are enough, unless the clients are uneven (spread > UNEVEN · step) and at least LONG rounds are
replayed.

The predicted distance to retraining is √(Σ noise² + (Σ strayed)²), over the rounds in which x is not M_t:

    contact round:   noise² = spread² / n + standard error²
    other round:     noise² = spread² / n,    strayed = STRAYED · missed

n is the number of honest participants. spread² / n is how much their step differs between two trainings, and
no two rounds have the same noise. The errors of estimates are not noise: from one contact to the next they
point in similar directions, so they add up. Local training corrects most of them at the next contact.

The constants were set on trainings with seeds 5000 to 5200: MNIST, Fashion-MNIST and CIFAR-10, IID and
Dirichlet 0.1 to 0.5, 5 to 50% attackers. Asking few clients often is better than asking many seldom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot, inf, sqrt

from fedcrab.errors import ConfigError
from fedcrab.recover.correction import Correction
from fedcrab.recover.schedule import LONGEST, Moment, longest_gap, most_asked, settled_rounds, usual_from
from fedcrab.recover.step import ReplayState

FEWEST, FEWEST_TRUSTED = 5, 2  # asked in a contact round
MOST = 10
LATE = 4  # with trust, contacts in the last one of this many parts of the rounds share what is left
SHORTEST = 3  # rounds from contact to contact, before the last ones
DRIFT = 0.36  # error of the rounds until the next contact, as a share of the distance from the initial model
UNEXPLORED = 0.35  # share of v outside the directions of earlier contacts that causes a contact
NEGLIGIBLE = 0.1  # of ‖x - M_0‖: a shorter unexplored part of v can wait
DOUBTFUL = 0.2  # noise of a contact / ‖x - M_0‖; after a larger one, everybody is asked to the end
SETTLING_IN = 5  # rounds at the start, in which the model has hardly moved yet
JUMP = 8.0  # length of the stored mean / that at the last contact; above it, everybody is asked
UNEVEN = 0.6  # spread / step at the last contact; above it, trust asks every participant in the last round
LONG = 30  # replayed rounds; in a shorter replay less can go wrong
STRAYED = 0.15  # the share of an estimate's error that is left at the end


@dataclass(frozen=True, slots=True)
class Distances:
    """How far the recovered model is from other models, over the trained numbers."""

    moved: float  # ‖x - M_t‖ = ‖v‖
    unexplored: float  # the share of v in which no correction was measured
    travelled: float  # ‖x - M_0‖
    stored: float  # ‖ḡ_t‖: how far the stored updates would move it


@dataclass(frozen=True, slots=True)
class Pacing:
    """What the user fixed; None is decided from measurements."""

    every: int | None
    asked: int | None
    settle: int | None
    trust: bool

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("asked", 1), ("settle", 0)):
            value = getattr(self, name)
            sound = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if value is not None and not sound:
                raise ConfigError(f"{name} must be a whole number of {least} or more, got {value!r}")
        if not isinstance(self.trust, bool):
            raise ConfigError(f"trust must be true or false, got {self.trust!r}")

    @property
    def fewest(self) -> int:
        """The minimum number of clients asked."""
        return FEWEST_TRUSTED if self.trust else FEWEST

    def settled(self, now: Moment) -> int:
        """Return how many of the last rounds ask the most clients."""
        return settled_rounds(now.replayed) if self.settle is None else self.settle

    def settles(self, now: Moment) -> bool:
        """Return whether this is one of the last rounds, which ask the most clients."""
        return now.left <= self.settled(now)

    def affordable(self, state: ReplayState, now: Moment) -> float:
        """Return how many clients a contact in this round may ask; only ``trust`` has a budget."""
        if not self.trust or self.every is not None or self.asked is not None:
            return inf
        usual = sum(1 for _ in usual_from(replace(now, round=now.first + 1), self.settled(now)))
        to_come = sum(1 for _ in usual_from(now, self.settled(now))) - 1
        return FEWEST * (1 + usual) // 2 - state.answers - FEWEST_TRUSTED * to_come

    def ignores(self, state: ReplayState, far: Distances) -> bool:
        """Return whether stored updates are of little use in this round; False if whom to ask is fixed."""
        if self.every is not None or self.asked is not None or not far.moved:
            return False
        return state.doubted or 0 < JUMP * state.stored < far.stored

    def count(self, state: ReplayState, now: Moment, honest: int, far: Distances) -> int:
        """Return how many of the honest participants are asked in this round."""
        if not far.moved:
            return 0
        if self.ignores(state, far):
            return honest
        if self.settles(now):
            return self.settling_count(state, now, honest)
        return self.contact_count(state, now, honest) if self.contacts(state, now, far) else 0

    def contacts(self, state: ReplayState, now: Moment, far: Distances) -> bool:
        """Return whether this round asks clients, if it is not one of the last."""
        if self.every is not None:
            return now.round >= state.next_contact
        new = far.unexplored
        turned = new > UNEXPLORED and new * far.moved > NEGLIGIBLE * far.travelled
        due = now.round >= state.next_contact or turned
        return due and self.affordable(state, now) >= self.fewest

    def contact_count(self, state: ReplayState, now: Moment, honest: int) -> int:
        """Return how many honest participants are asked in a contact round."""
        if self.asked is None and not self.trust:
            return most_asked(state.ask, honest)
        ask, most = state.ask, self.affordable(state, now)
        if most < inf and now.left <= now.replayed // LATE:
            ask += ceil((most - ask) / sum(1 for _ in usual_from(now, self.settled(now))))
        return int(min(ask, honest, most))

    def settling_count(self, state: ReplayState, now: Moment, honest: int) -> int:
        """Return how many honest participants are asked in the last rounds."""
        even = state.uneven <= UNEVEN or now.replayed < LONG
        return ceil(honest / 2) if self.trust and self.settle is None and even else honest

    def start(self, first: int) -> ReplayState:
        """Return the state before round ``first``. Its stored updates are exact, so contact follows it."""
        return ReplayState(next_contact=first + 1, ask=self.asked or self.fewest)

    def after_contact(
        self,
        state: ReplayState,
        now: Moment,
        found: Correction,
        *,
        step: float,
        stored: float,
        travelled: tuple[float, float],
        alone: float | None = None,
    ) -> ReplayState:
        """Return the state after c was measured.

        ``step`` is the length of this step, ``stored`` that of the mean of the stored updates. ``travelled``
        is ‖x - M_0‖ before and after it. ``alone`` is the spread of the answers if only they counted.
        """
        noise = found.standard_error
        missed = sqrt(max(found.new**2 - noise**2, 0.0))
        wanted = 0 if self.trust or not step else ceil(min((found.spread / step) ** 2, MOST))
        varies = found.noise if alone is None else min(found.spread, alone) / sqrt(found.clients)
        relied = found.noise_with(max(found.answers, most_asked(FEWEST, found.clients)))
        doubtful = now.round - now.first > SETTLING_IN and relied > DOUBTFUL * travelled[1]
        return replace(
            _with_error(state, varies, 0.0),
            contacts=state.contacts + 1,
            answers=state.answers + (found.answers if alone is None else 0),
            next_contact=now.round + (self.every or _gap(now, missed, travelled[0])),
            ask=self.asked or max(self.fewest, wanted),
            spread=found.spread,
            uneven=found.spread / step if step else 0.0,
            stored=stored,
            doubted=state.doubted or doubtful,
            ignored=state.ignored + (alone is not None),
            standard_error=noise,
            missed=missed,
        )

    def after_estimate(self, state: ReplayState, *, moved: bool, honest: int) -> ReplayState:
        """Return the state after a round without contact; exact if the model is still the history's."""
        if not moved:
            return replace(state, standard_error=0.0, step_error=0.0)
        state = _with_error(state, state.spread / sqrt(honest), STRAYED * state.missed)
        return replace(state, standard_error=0.0)


def _with_error(state: ReplayState, noise: float, strayed: float) -> ReplayState:
    """Return the state with the predicted distance after one more step."""
    noises = state.error**2 - state.strayed**2 + noise**2
    total = state.strayed + strayed
    return replace(state, step_error=hypot(noise, strayed), error=sqrt(noises + total**2), strayed=total)


def _gap(now: Moment, missed: float, travelled: float) -> int:
    """Return the number of rounds until the next contact."""
    room = DRIFT * travelled / missed if missed else float(LONGEST)
    return min(max(1 + int(min(room, LONGEST - 1)), SHORTEST), longest_gap(now))
