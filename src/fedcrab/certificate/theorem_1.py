"""Theorem 1 of the paper as terms of a certificate: as printed, and corrected (called ``mended``).

    printed     √(η·[(F0-F*)·(r+τ) + L/2·η²G²·(r·Σσ̌² + τ)])
    mended      √(ηr·[F0-F* + L/2·η²G²·Σσ̌²]) + √(ητ·[F0-F* + L/2·η²G²·τ])

F0 = F(M̃_0), and both trainings start at M̃_0. Recovery has r rounds, and retraining τ. σ̌ = Σ p_c·‖u‖/‖û‖
per round.

The printed form is wrong. It replaces √a + √b by √(a+b), which is smaller, and the τ² of its own proof by τ.
The second term of the corrected form is a theorem for full-batch descent on F with one step per round, by
L/2·η²‖∇F‖² ≤ L/2·η²G² and Cauchy-Schwarz. With sampled gradients it does not hold even in expectation: if
F = 0 and gradients are ±G, the term is 0, but the model moves by about ηG√τ. So ηG√τ must be added, as for a
martingale. The first term treats calibrated updates as unbiased gradients of F, which they are not. Neither
term is about training from scratch, which starts at M_0, not at the rollback model with its remaining poison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from fedcrab.certificate.assumptions import Assumptions
from fedcrab.certificate.poison import EXACT, Premises
from fedcrab.certificate.term import HEURISTIC, SOUND, UNPROVABLE, Term, finite, total, unknown


def printed(*, rate: float, L: float, G: float, gap: float, r: int, tau: int, ratios: float) -> float:
    """Return the bound as printed; ``gap`` is F0 - F* and ``ratios`` is Σσ̌²."""
    return sqrt(rate * (gap * (r + tau) + L / 2 * rate**2 * G**2 * (r * ratios + tau)))


def mended_recovery(*, rate: float, L: float, G: float, gap: float, r: int, ratios: float) -> float:
    """Return the corrected first term; it assumes that calibrated updates are unbiased gradients."""
    return sqrt(rate * r * (gap + L / 2 * rate**2 * G**2 * ratios))


def mended_retraining(
    *, rate: float, L: float, G: float, gap: float, tau: int, sampled: bool = False
) -> float:
    """Return the corrected second term; for ``sampled`` gradients in expectation, with ηG√τ added."""
    drift = sqrt(rate * tau * (gap + L / 2 * rate**2 * G**2 * tau))
    return drift + (rate * G * sqrt(tau) if sampled else 0.0)


PRINTED = "√(η[(F0-F*)(r+τ) + L/2·η²G²(rΣσ̌²+τ)]), as printed; false"
FIRST = "√(ηr[F0-F* + L/2·η²G²Σσ̌²])"
SECOND = "√(ητ[F0-F* + L/2·η²G²τ])"
UNBIASED = "calibrated updates are unbiased gradients (they are not)"
START = "retraining begins at the rollback model (it does not)"


def theorem_terms(
    premises: Premises, guessed: Mapping[str, float], steps: Sequence[Mapping[str, Any]] | None
) -> dict[str, Term]:
    """Return the terms of the theorem, without values if a constant is neither declared nor estimated.

    G is the gradient of a whole round, K·G.
    """
    constants = _constants(premises.given, guessed)
    needs = ("rate, smoothness, gradient, rollback_gap", "the steps of a recovery")
    if constants is None or steps is None:
        names = {"printed": PRINTED, "recovery": FIRST, "retraining": SECOND, "mended": f"{FIRST} + {SECOND}"}
        return {f"theorem1.{name}": unknown(formula, *needs) for name, formula in names.items()}
    r, tau, ratios = len(steps), len(premises.facts.busy), sum(_ratio(step) ** 2 for step in steps)
    in_print = Term(printed(**constants, r=r, tau=tau, ratios=ratios), UNPROVABLE, PRINTED, (UNBIASED, START))
    first = Term(mended_recovery(**constants, r=r, ratios=ratios), UNPROVABLE, FIRST, (UNBIASED,))
    second = _second(premises, guessed, constants, tau)
    both = total(f"{FIRST} + {second.formula}", first, second)
    terms = {"printed": in_print, "recovery": first, "retraining": second, "mended": both}
    return {f"theorem1.{name}": finite(term) for name, term in terms.items()}


def _second(
    premises: Premises, guessed: Mapping[str, float], constants: Mapping[str, float], tau: int
) -> Term:
    given = premises.given
    full = given.full_batch and premises.facts.steady
    value = mended_retraining(**constants, tau=tau, sampled=not full)
    formula = SECOND if full else f"{SECOND} + ηG√τ, in expectation"
    proved = full and given.most_steps == 1 and not guessed
    assumes = ("full-batch descent on F, one step a round", "constants declared, not guessed", START, EXACT)
    return Term(value, SOUND if proved else HEURISTIC, formula, assumes)


def _constants(given: Assumptions, guessed: Mapping[str, float]) -> dict[str, float] | None:
    declared = {"L": given.smoothness, "G": given.gradient, "gap": given.rollback_gap, "rate": given.rate}
    names = {"L": "smoothness", "G": "gradient", "gap": "rollback_gap", "rate": "rate"}
    found = {n: guessed.get(names[n]) if value is None else value for n, value in declared.items()}
    known = {n: float(value) for n, value in found.items() if value is not None}
    if len(known) < len(names):
        return None
    return {**known, "G": known["G"] * (given.most_steps or 1)}


def _ratio(step: Mapping[str, Any]) -> float:
    """Return σ̌ = Σ p_c·‖ũ‖/‖û‖; 1 for a step that was not calibrated."""
    renewed, examples = step.get("renewed") or (), step["examples"]
    if not examples:
        return 0.0
    if not renewed:
        return 1.0
    rows = zip(examples, step["lengths"], renewed, strict=True)
    return float(sum(n * long / fresh for n, long, fresh in rows) / sum(examples))
