"""Theorem 1 of the paper, as printed and mended.

    printed     √(η·[(F0-F*)·(r+τ) + L/2·η²G²·(r·Σσ̌² + τ)])
    mended      √(ηr·[F0-F* + L/2·η²G²·Σσ̌²]) + √(ητ·[F0-F* + L/2·η²G²·τ])

F0 = F(M̃_0), both trainings begun at M̃_0, r rounds of recovery, τ of retraining, σ̌ = Σ p_c·‖u‖/‖û‖ of a
round.

The printed form is false: it takes √a + √b for √(a+b), which is less, and τ for the τ² that its own proof
gives. The second term of the mended form is a theorem for full-batch descent on F with one step a round:
L/2·η²‖∇F‖² ≤ L/2·η²G², and Cauchy-Schwarz. With sampled gradients it is not even true in expectation: on F
= 0 with gradients ±G the term is 0 and the model walks by about ηG√τ; a martingale's ηG√τ must be added.
The first term takes calibrated updates for unbiased gradients of F, which they are not. And neither is
about training from scratch, which begins at M_0 and not at the rollback model with the poison that is left
in it.
"""

from __future__ import annotations

from math import sqrt


def printed(*, rate: float, L: float, G: float, gap: float, r: int, tau: int, ratios: float) -> float:
    """As in print; ``gap`` is F0 - F*, ``ratios`` Σσ̌²."""
    return sqrt(rate * (gap * (r + tau) + L / 2 * rate**2 * G**2 * (r * ratios + tau)))


def mended_recovery(*, rate: float, L: float, G: float, gap: float, r: int, ratios: float) -> float:
    """The first term: assumes that calibrated updates are unbiased gradients."""
    return sqrt(rate * r * (gap + L / 2 * rate**2 * G**2 * ratios))


def mended_retraining(
    *, rate: float, L: float, G: float, gap: float, tau: int, sampled: bool = False
) -> float:
    """The second term; of sampled gradients a bound in expectation, with the martingale's part."""
    drift = sqrt(rate * tau * (gap + L / 2 * rate**2 * G**2 * tau))
    return drift + (rate * G * sqrt(tau) if sampled else 0.0)
