"""Assumptions: constants of the training that the operator declares; a history does not contain them.

A local step x ↦ x - η∇f(x), for a loss with curvature in [μ, L], multiplies distances by at most
q = max(|1 - ημ|, |1 - ηL|), and K steps by at most q^K. A convex loss has μ = 0, so steps with η ≤ 2/L do not
expand. A strongly convex loss has μ > 0 and contracts. A smooth loss that is not convex has μ = -L and
q = 1 + ηL.

G and L can also be estimated from a history. Estimates prove nothing, because the largest observed slope
need not be the largest.

    G ≈ max ‖u_t^c‖ / (η·K)                            over every honest client of every round
    L ≈ max ‖u_t^c - u_s^c‖ / (η·K·‖M_t - M_s‖)        over honest clients, if updates are kept
    L ≈ max ‖Ḡ_t - Ḡ_s‖ / (η·K·‖M_t - M_s‖)            otherwise; t and s are consecutive kept rounds

Ḡ is the mean of the selected clients, including malicious ones, because the ledger's Gram matrix contains no
other. K is the fewest local steps per round, which makes the estimates larger rather than smaller.
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
MOST_COUNTS = 1000  # different numbers of local steps that are examined one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Constants of the honest clients' losses and local training; None is not declared.

    Raises ConfigError if a constant is out of range, or two contradict each other.
    """

    rate: float | None = None  # η, the same in every local step
    fewest_steps: int | None = None  # local steps per round of the client with the fewest
    most_steps: int | None = None  # ... and of the client with the most
    convexity: float | None = None  # μ: f - μ/2·‖·‖² is convex; 0 is convex, below 0 is weakly convex
    smoothness: float | None = None  # L: gradients are L-Lipschitz
    expansion: float | None = None  # κ of a whole local training, if it is known in another way
    gradient: float | None = None  # G: the longest gradient of an honest loss at any model of the training
    initial_gap: float | None = None  # F(M_0) - inf F; F is the honest clients' weighted loss
    rollback_gap: float | None = None  # F(M̃_0) - inf F
    full_batch: bool = False  # no sampling: local training is the same map in every round
    residual: float | None = None  # ‖Σ p_c·u_c‖ of all honest clients at the recovered model, measured

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f.name, getattr(self, f.name))
        _check_order("fewest_steps", self.fewest_steps, "most_steps", self.most_steps)
        _check_order("convexity", self.convexity, "smoothness", self.smoothness)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Assumptions:
        """Return the assumptions that :meth:`to_table` wrote; raises ConfigError for any other table."""
        names = [f.name for f in fields(cls)]
        if other := sorted({*map(str, table)} ^ {*names}):
            known = ", ".join(names)
            raise ConfigError(f"assumptions: {other[0][:40]!r} is missing or unknown; the names are {known}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """Return the assumptions as plain values."""
        return asdict(self)

    def local_expansion(self) -> float | None:
        """Return κ, the largest factor by which local training multiplies a distance; None if unknown."""
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
        """Return λ: updates x ↦ T(x) - x at two models differ by at most λ times their distance.

        λ is at most 1 + κ. For K steps, in which the gradient changes by at most L·q^k, it is at most
        ηL·Σ q^k. None if unknown.
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
        """Return C and ρ with ‖T(x) - T(y) - C·(x-y)‖ ≤ ρ·‖x-y‖, T a local training; None if unknown.

        One step, for a loss with curvature in [μ, L], is x ↦ a·x plus a b-Lipschitz map, with
        a = 1 - η(L+μ)/2 and b = η(L-μ)/2 = q - |a|, because the gradient of f - (L+μ)/4·‖·‖² is
        (L-μ)/2-Lipschitz. The difference δ of two trainings satisfies δ_{k+1} = a·δ_k + e_k with
        ‖e_k‖ ≤ b·q^k·‖δ_0‖. So after K steps

            C = a^K,   ρ = b·Σ |a|^(K-1-k)·q^k = q^K - |a|^K

        If clients have different K, C is in the middle of their values, and ρ covers the difference. For a κ
        that is known in another way, C = 0 and ρ = κ.
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
        """Return μ, or -L for a loss that is only smooth."""
        return -(self.smoothness or 0.0) if self.convexity is None else self.convexity

    def _one_step(self) -> float | None:
        """Return the factor q of one local step."""
        if self.rate is None or self.smoothness is None:
            return None
        return max(abs(1 - self.rate * self._lowest()), abs(1 - self.rate * self.smoothness))


def power(base: float, exponent: float) -> float:
    """Return base^exponent, or infinity if it overflows."""
    try:
        return float(base**exponent)
    except OverflowError:
        return inf


def _check_order(low: str, least: float | None, high: str, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ConfigError(f"{low} must not exceed {high}, got {least:g} and {most:g}")


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
    """Return estimates of the constants that are not declared; empty without the rate of local training."""
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
    """Return the estimates as plain values."""
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
    exact = not history.contents.packed  # the rounding of packed updates would count as a difference
    return exact and all(history.rounds[t].updates is not None for t in history.kept)


def _slopes(plan: Plan) -> Iterator[float]:
    history = plan.history
    trained, kept = history.charter.layout.trained(), _keeps_updates(history)
    for s, t in pairwise(history.kept):
        distance = norm(history.model(t).astype(np.float64) - history.model(s), trained)
        if distance > 0:
            changes = _update_changes(plan, s, t) if kept else _mean_changes(history, s, t)
            yield from (change / distance for change in changes)


def _update_changes(plan: Plan, s: int, t: int) -> Iterator[float]:
    trained = plan.history.charter.layout.trained()
    before, after = (_by_client(plan.history.updates(r).without(plan.malicious)) for r in (s, t))
    for client in before.keys() & after.keys():
        yield norm(after[client].astype(np.float64) - before[client], trained)


def _by_client(updates: Updates) -> dict[str, Any]:
    return dict(zip(updates.clients, updates.vectors, strict=True))


def _mean_changes(history: History, s: int, t: int) -> Iterator[float]:
    """Yield ‖Ḡ_t - Ḡ_s‖ if the Gram matrix of round t contains Ḡ_s."""
    entry = history.rounds[t]
    members = np.flatnonzero(entry.selected)
    if s in entry.references and len(members):
        shares = entry.examples[members] / entry.examples[members].sum()
        points = [*members.tolist(), len(entry.clients) + entry.references.index(s)]
        yield float(np.linalg.norm(entry.coordinates.combine(points, [*shares.tolist(), -1.0])))
