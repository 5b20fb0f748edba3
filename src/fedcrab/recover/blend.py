"""Two estimates of the correction of a round in which no client is asked, and how much each of them counts.

    ĉ = w·ĉ₁ + (1 - w)·ĉ₂,    ĉ₂ = s - ḡ
    w = Σ ½ᵏ·⟨c - ĉ₂, ĉ₁ - ĉ₂⟩ / Σ ½ᵏ·‖ĉ₁ - ĉ₂‖²,    from 0 to 1

ĉ₁ is estimated from the history (:mod:`fedcrab.recover.estimate`): how much the stored updates change with
the distance to the history's model. ĉ₂ assumes that clients continue as at the last three contacts: s is the
mean of their ḡ + c, the corrected mean updates. The sums are over the contacts so far, k = 0 for the newest.
Each of them measured a c, and w is the share of ĉ₁ with which the estimates would have been nearest to it. It
is 1 until a contact can be compared. A contact in the round after another one is not compared: s is a round
old there, but it is used for several rounds.

How good ĉ₁ is depends on the history. If strong attackers pull the model to and fro, the honest updates swing
from round to round, and many of them are longer than the correct ones. (In a training on CIFAR-10 with 50%
boosted attackers, an estimated step of 0.2 was often at a right angle to the correct one of 0.1, so no step
at all would have been better.) The path of the recovered model itself is smooth there. If a history is calm,
ĉ₁ follows changes that s does not know yet. An undetected attacker moves s no further than the stored mean
and the robust c.

Accuracy relative to the mean of three retrainings, 50% attackers, with ĉ₁ alone and with both, in points
(with gaps of at least four rounds; :mod:`fedcrab.recover.pacing` has what three change):

    CIFAR-10, eight development trainings each: IID, Dirichlet 0.5, 0.3, 0.1
        ĉ₁ alone   -0.54  -0.38  -0.77  -1.51      distance 8.4 times that of two retrainings
        both       -0.32  +0.34  -0.08  -0.40      3.8 times
    MNIST IID and Dirichlet 0.1, Fashion-MNIST Dirichlet 0.3 and 0.1, four each
        ĉ₁ alone    0.00  +0.20  +0.30  +0.05
        both       -0.10  +0.30  +0.21  -0.09
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from fedcrab.recover.step import Pair, ReplayState
from fedcrab.types import Vector
from fedcrab.vectors import dot, is_finite, norm

FADING = 0.5  # the weight of a contact, relative to that of the next one


@dataclass(frozen=True, slots=True)
class Blend:
    """Both estimates of a round's correction, and the share of the first; either can be missing."""

    first: Vector | None
    second: Vector | None = None
    share: float = 1.0
    contact: int = 0  # the last round that ``second`` is from

    @classmethod
    def of(cls, first: Vector | None, mean: Vector, recent: Sequence[Pair], state: ReplayState) -> Blend:
        """Return the estimates, where ``mean`` is ḡ and the second vector of each pair is ḡ + c."""
        if first is None or not recent:
            return cls(first)
        second = recent[0].changed.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            for pair in recent[1:]:
                second += pair.changed
            second /= len(recent)
            second -= mean
        if not is_finite(second):
            return cls(first)
        share = state.nearer / state.apart if state.apart else 1.0
        return cls(first, second, min(max(share, 0.0), 1.0), recent[-1].round)

    def correction(self) -> Vector | None:
        """Return ĉ; None without a first estimate."""
        if self.first is None or self.second is None:
            return self.first
        mixed: Vector = np.float32(self.share) * self.first + np.float32(1 - self.share) * self.second
        return mixed

    def compared(self, measured: Vector, t: int, state: ReplayState) -> ReplayState:
        """Return the state with the sums of w after the contact in round t, which measured this c."""
        if self.first is None or self.second is None or t <= self.contact + 1:
            return state
        with np.errstate(over="ignore", invalid="ignore"):
            apart = self.first - self.second
            nearer = FADING * state.nearer + dot(measured - self.second, apart)
            square = FADING * state.apart + norm(apart) ** 2
        return replace(state, nearer=nearer, apart=square) if isfinite(nearer) and isfinite(square) else state
