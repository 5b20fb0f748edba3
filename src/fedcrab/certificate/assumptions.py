"""What the operator declares about the training; a history does not contain these constants.

A local step x ↦ x - η∇f(x) of a loss whose curvature lies in [μ, L] changes distances by a factor of at most
q = max(|1 - ημ|, |1 - ηL|); K steps by q^K. Convex losses have μ = 0, so steps of η ≤ 2/L expand nothing;
strongly convex ones have μ > 0 and contract; of a smooth loss that is not convex, μ = -L and q = 1 + ηL.

Estimates of G and L from a history. They prove nothing: the largest slope seen may not be the largest.

    G ≈ max ‖u_t^c‖ / (η·K)                            over every honest client of every round
    L ≈ max ‖u_t^c - u_s^c‖ / (η·K·‖M_t - M_s‖)        over honest clients, where updates are kept
    L ≈ max ‖Ḡ_t - Ḡ_s‖ / (η·K·‖M_t - M_s‖)            where they are not; t, s neighbouring kept rounds

Ḡ is the mean of the selected clients, malicious ones included: the ledger's Gram matrix has no other. K is
the fewest local steps per round, so that no estimate is too small for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from math import inf, isfinite
from typing import Any

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.history import History
from fedcrab.rollback.decision import Plan
from fedcrab.types import Updates
from fedcrab.vectors import norm

LARGEST = 1e100  # no constant of a training is above this
MOST_STEPS = 10**9
MOST_COUNTS = 1000  # different numbers of local steps that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Constants of the honest clients' losses and local training. None: not declared."""

    rate: float | None = None  # η, the same in every local step
    fewest_steps: int | None = None  # local steps per round of the client with the fewest
    most_steps: int | None = None  # ... and of the client with the most
    convexity: float | None = None  # μ: f - μ/2·‖·‖² is convex; 0: convex, below 0: not quite
    smoothness: float | None = None  # L: gradients are L-Lipschitz
    expansion: float | None = None  # κ of a whole local training, if it is known by other means
    gradient: float | None = None  # G: no gradient of an honest loss is longer, wherever training goes
    initial_gap: float | None = None  # F(M_0) - inf F, F the honest clients' weighted loss
    rollback_gap: float | None = None  # F(M̃_0) - inf F
    full_batch: bool = False  # local training is the same map in every round: no sampling
    residual: float | None = None  # ‖Σ p_c·u_c‖ of all honest clients at the recovered model, measured

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f.name, getattr(self, f.name))
        _check_order("fewest_steps", self.fewest_steps, "most_steps", self.most_steps)
        _check_order("convexity", self.convexity, "smoothness", self.smoothness)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Assumptions:
        """The assumptions that :meth:`to_table` wrote."""
        names = [f.name for f in fields(cls)]
        if other := sorted({*map(str, table)} ^ {*names}):
            known = ", ".join(names)
            raise ConfigError(f"assumptions: {other[0][:40]!r} is missing or unknown; known are {known}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def local_expansion(self) -> float | None:
        """κ, how much one client's local training can stretch a distance; None if unknown."""
        if self.expansion is not None:
            return self.expansion
        one = self._one_step()
        if one is None:
            return None
        steps = self.fewest_steps if one < 1 else self.most_steps
        if steps is None:
            return 1.0 if one <= 1 else None
        return power(one, steps)

    def local_drift(self) -> float | None:
        """λ, how much the update x ↦ T(x) - x can differ between two models, as a share of their distance.

        At most 1 + κ; of K steps, each of which changes its gradient by L·q^k at most, ηL·Σ q^k.
        """
        expansion, one = self.local_expansion(), self._one_step()
        if expansion is None:
            return None
        if one is None or self.most_steps is None or self.rate is None or self.smoothness is None:
            return 1 + expansion
        steepest = self.rate * max(self.smoothness, abs(self._lowest()))
        summed = self.most_steps if one == 1 else (power(one, self.most_steps) - 1) / (one - 1)
        return min(1 + expansion, steepest * summed)

    def local_affine(self) -> tuple[float, float] | None:
        """C and ρ with ‖T(x) - T(y) - C·(x-y)‖ ≤ ρ·‖x-y‖, T a whole local training; None if unknown.

        One step of a loss with curvature in [μ, L] is x ↦ a·x plus something that is b-Lipschitz, a = 1 -
        η(L+μ)/2 and b = η(L-μ)/2 = q - |a|: the gradient of f - (L+μ)/4·‖·‖² is (L-μ)/2-Lipschitz. The
        difference δ of two trainings obeys δ_{k+1} = a·δ_k + e_k with ‖e_k‖ ≤ b·q^k·‖δ_0‖, so after K steps

            C = a^K,   ρ = b·Σ |a|^(K-1-k)·q^k = q^K - |a|^K

        Where clients have different K, C lies in the middle of theirs, and ρ allows for the difference. Of a
        κ that is known by other means, C = 0 and ρ = κ.
        """
        expansion, one = self.local_expansion(), self._one_step()
        if expansion is None:
            return None
        fewest, most = self.fewest_steps, self.most_steps
        if one is None or self.expansion is not None or fewest is None or most is None:
            return 0.0, expansion
        if most - fewest > MOST_COUNTS or self.rate is None or self.smoothness is None:
            return 0.0, expansion
        middle = 1 - self.rate * (self.smoothness + self._lowest()) / 2
        powers = [(power(middle, k), power(one, k)) for k in range(fewest, most + 1)]
        centre = (min(c for c, _ in powers) + max(c for c, _ in powers)) / 2
        spread = max(abs(c - centre) + q - abs(c) for c, q in powers)
        return (centre, spread) if isfinite(spread) and spread < expansion else (0.0, expansion)

    def _lowest(self) -> float:
        """μ, or -L for a loss that is only smooth."""
        return -(self.smoothness or 0.0) if self.convexity is None else self.convexity

    def _one_step(self) -> float | None:
        """The factor q of one local step."""
        if self.rate is None or self.smoothness is None:
            return None
        return max(abs(1 - self.rate * self._lowest()), abs(1 - self.rate * self.smoothness))


def power(base: float, exponent: float) -> float:
    """base^exponent, or infinity if it overflows."""
    try:
        return float(base**exponent)
    except OverflowError:
        return inf


def _check_order(low: str, least: float | None, high: str, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ConfigError(f"{low} is {least:g}, above {high}, {most:g}")


def _check(name: str, value: Any) -> None:
    """Check the type and the range of a value."""
    if value is None:
        return
    if name == "full_batch":
        good, kind = isinstance(value, bool), "true or false"
    elif name.endswith("_steps"):
        good, kind = _is_number(value, int) and 1 <= value <= MOST_STEPS, "a whole number of 1 or more"
    elif name == "convexity":
        good, kind = _is_number(value, int | float), "a finite number"
    else:
        above = value != 0 or name not in ("rate", "smoothness")
        good, kind = _is_number(value, int | float) and value >= 0 and above, "a finite number above 0"
    if not good:
        raise ConfigError(f"{name} must be {kind}, got {str(value)[:40]!r}")


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated constant, and how it was estimated."""

    value: float
    method: str


def estimates(plan: Plan, given: Assumptions) -> dict[str, Estimate]:
    """Estimates of constants that are not declared; none without the rate of local training."""
    if given.rate is None:
        return {}
    scale, found = given.rate * (given.fewest_steps or 1), {}
    if given.gradient is None:
        found["gradient"] = Estimate(_longest(plan) / scale, "longest honest update / (rate · fewest steps)")
    if given.smoothness is None and (slopes := list(_slopes(plan))):
        kept = _keeps_updates(plan.history)
        of = "each honest client's updates" if kept else "the selected clients' mean updates"
        found["smoothness"] = Estimate(
            max(slopes) / scale, f"steepest change of {of} between neighbouring kept rounds"
        )
    if given.rollback_gap is None and np.isfinite(loss := _loss_before(plan)):
        found["rollback_gap"] = Estimate(
            max(loss, 0.0), "loss of the rollback model on the server's data; F* ≥ 0"
        )
    return found


def estimates_table(found: dict[str, Estimate], rounded: Any) -> dict[str, Any]:
    """As plain values."""
    return {name: {"value": rounded(e.value), "method": e.method} for name, e in sorted(found.items())}


def _longest(plan: Plan) -> float:
    rows = (
        (plan.is_malicious(client, entry.index), length)
        for entry in plan.history.rounds
        for client, length in zip(entry.clients, entry.norms.tolist(), strict=True)
    )
    return max((length for malicious, length in rows if not malicious), default=0.0)


def _loss_before(plan: Plan) -> float:
    t = plan.rollback_round
    return plan.history.rounds[t - 1].loss if t else plan.history.charter.initial_loss


def _keeps_updates(history: History) -> bool:
    exact = not history.contents.packed  # packed updates differ by their rounding too
    return exact and all(history.rounds[t].updates is not None for t in history.kept)


def _slopes(plan: Plan) -> Iterator[float]:
    history = plan.history
    trained, kept = history.charter.layout.trained(), _keeps_updates(history)
    for s, t in pairwise(history.kept):
        gone = norm(history.model(t).astype(np.float64) - history.model(s), trained)
        if gone > 0:
            changed = _updates_changed(plan, s, t) if kept else _means_changed(history, s, t)
            yield from (change / gone for change in changed)


def _updates_changed(plan: Plan, s: int, t: int) -> Iterator[float]:
    trained = plan.history.charter.layout.trained()
    before, after = (_by_client(plan.history.updates(r).without(plan.malicious)) for r in (s, t))
    for client in before.keys() & after.keys():
        yield norm(after[client].astype(np.float64) - before[client], trained)


def _by_client(updates: Updates) -> dict[str, Any]:
    return dict(zip(updates.clients, updates.vectors, strict=True))


def _means_changed(history: History, s: int, t: int) -> Iterator[float]:
    """‖Ḡ_t - Ḡ_s‖ from round t's geometry, which has Ḡ_s among its points."""
    entry = history.rounds[t]
    members = np.flatnonzero(entry.selected)
    if s in entry.references and len(members):
        shares = entry.examples[members] / entry.examples[members].sum()
        points = [*members.tolist(), len(entry.clients) + entry.references.index(s)]
        yield float(np.linalg.norm(entry.coordinates.combine(points, [*shares.tolist(), -1.0])))
