"""(ε, δ) noise: Gaussian noise on the rollback model, which hides the effect of the malicious clients.

Take two models at a distance of at most Ψ, and add N(0, σ²) to every number of each. Then they are
(ε, δ)-indistinguishable if and only if

    Φ(Ψ/2σ - εσ/Ψ) - e^ε·Φ(-Ψ/2σ - εσ/Ψ) ≤ δ

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018. The smallest such σ is
used. The classical σ = Ψ·√(2(ln 1.25 - ln δ))/ε (Dwork and Roth; SIFU) is larger, and proven for ε < 1 only.

The statement is limited. The history is fixed, and only the noise is random. It is about the noised rollback
model, not about the model recovered from it, because the lengths, rounds and clients of the replay come from
the poisoned history too. The noise must stay secret: anyone with the seed or the history's model can
subtract it.
"""

from __future__ import annotations

from math import erfc, exp, inf, log, pi, sqrt

import numpy as np

from fedcrab.errors import ConfigError
from fedcrab.recover import Step
from fedcrab.rollback.decision import Plan
from fedcrab.seeds import rng_for

LARGEST_EPSILON = 1e6


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ``ConfigError`` unless ε is above 0 and δ is between 0 and 1."""
    for name, value, most in (("epsilon", epsilon, LARGEST_EPSILON), ("delta", delta, 1.0)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < most:
            raise ConfigError(f"{name} must be above 0 and below {most:g}, got {str(value)[:40]!r}")


def classical_sigma(sensitivity: float, epsilon: float, delta: float) -> float | None:
    """Return Ψ·√(2(ln 1.25 - ln δ))/ε; None for ε ≥ 1, where it is not proven."""
    check_budget(epsilon, delta)
    return sensitivity * sqrt(2 * (log(1.25) - log(delta))) / epsilon if epsilon < 1 else None


def analytic_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the smallest σ that gives (ε, δ), to one part in 10⁹, never below it."""
    check_budget(epsilon, delta)
    low, high = 0.0, 1.0
    while leaked(1 / high, epsilon) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if leaked(1 / middle, epsilon) > delta else (low, middle)
    return sensitivity * high


def leaked(distance: float, epsilon: float) -> float:
    """Return δ of two unit Gaussians: Φ(a-b) - e^ε·Φ(-a-b), a = distance/2, b = ε/distance."""
    a, b = distance / 2, epsilon / distance
    second = _scaled_erfc((a + b) / sqrt(2)) * exp(-((b - a) ** 2) / 2) / 2  # e^ε·Φ(-a-b), no overflow
    first = erfc((b - a) / sqrt(2)) / 2
    return max(0.0, first - second) + 1e-15 * first  # the last term covers the rounding error


def _scaled_erfc(x: float) -> float:
    """Return e^(x²)·erfc(x) for x ≥ 0, or a lower bound of it."""
    return exp(x * x) * erfc(x) if x < 20 else (1 - 1 / (2 * x * x)) / (x * sqrt(pi))


def noised(plan: Plan, sigma: float, seed: int) -> Step:
    """Return the rollback model with noise on its trained numbers, as the step before a recovery.

    Use it as ``crab(plan, fleet, after=noised(plan, sigma, seed))``. Draw the seed with
    ``secrets.randbits(256)`` and keep it secret. Raises ConfigError if ``sigma`` is negative or not finite.
    """
    if not 0 <= sigma < inf:
        raise ConfigError(f"sigma must be 0 or more and finite, got {sigma}")
    model = plan.history.model(plan.rollback_round).astype(np.float64)
    rng = rng_for(seed, "certificate noise", plan.rollback_round)
    for part in plan.history.charter.layout.trained():
        model[part] += sigma * rng.standard_normal(part.stop - part.start)
    return Step(plan.rollback_round - 1, model.astype(np.float32))


def budget(epsilon: float | None, delta: float | None) -> dict[str, float] | None:
    """Return epsilon and delta as a table; None if neither is given. Raises ConfigError if one is missing."""
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        raise ConfigError("noise needs both --epsilon and --delta")
    check_budget(epsilon, delta)
    return {"epsilon": epsilon, "delta": delta}
