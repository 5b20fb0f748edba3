"""What the operator declares of the training: nothing of it can be read off a history.

A local step x ↦ x - η∇f(x) of a loss whose curvature lies in [μ, L] changes distances by a factor of at most
q = max(|1 - ημ|, |1 - ηL|); K steps by q^K. Convex losses have μ = 0, so steps of η ≤ 2/L expand nothing;
strongly convex ones have μ > 0 and contract; of a smooth loss that is not convex, μ = -L and q = 1 + ηL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any

from fedcrab.errors import ConfigError

LARGEST = 1e100  # no constant of a training is above this
MOST_STEPS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Constants of the honest clients' losses and local training. None: not declared."""

    rate: float | None = None  # η, the same in every local step
    fewest_steps: int | None = None  # local steps a round of the client with the fewest
    most_steps: int | None = None  # ... and of the client with the most
    convexity: float | None = None  # μ: f - μ/2·‖·‖² is convex; 0: convex, below 0: not quite
    smoothness: float | None = None  # L: gradients are L-Lipschitz
    expansion: float | None = None  # κ of a whole local training, where it is known by other means
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
        """What :meth:`to_table` wrote down."""
        names = [f.name for f in fields(cls)]
        if other := sorted({*map(str, table)} ^ {*names}):
            known = ", ".join(names)
            raise ConfigError(f"assumptions: {other[0][:40]!r} is missing, or is none; they are {known}")
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def local_expansion(self) -> float | None:
        """κ: how much one client's whole local training can stretch a distance; None where unknown."""
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
        """λ: how much the update x ↦ T(x) - x can differ between two models, as a share of their distance.

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

    def _lowest(self) -> float:
        """μ; of a loss that is merely smooth, -L."""
        return -(self.smoothness or 0.0) if self.convexity is None else self.convexity

    def _one_step(self) -> float | None:
        """Q."""
        if self.rate is None or self.smoothness is None:
            return None
        return max(abs(1 - self.rate * self._lowest()), abs(1 - self.rate * self.smoothness))


def power(base: float, exponent: float) -> float:
    """base^exponent, infinite where no number is large enough."""
    try:
        return float(base**exponent)
    except OverflowError:
        return inf


def _check_order(low: str, least: float | None, high: str, most: float | None) -> None:
    if least is not None and most is not None and least > most:
        raise ConfigError(f"{low} is {least:g}, above {high}, {most:g}")


def _check(name: str, value: Any) -> None:
    """Every value is of its kind and within its bounds."""
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
