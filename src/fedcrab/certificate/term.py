"""One statement of a certificate: a number, its assumptions, and whether it is proven."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite
from typing import Any

SOUND = "sound"  # a theorem, if its assumptions are true
HEURISTIC = "heuristic"  # an estimate without proof
UNPROVABLE = "not provable"  # for comparison only: known to be false, or not computable
FLAGS = (SOUND, HEURISTIC, UNPROVABLE)
DIGITS = 9  # of a number in a certificate


@dataclass(frozen=True, slots=True)
class Term:
    """A bound, its formula, its assumptions, and its flag: SOUND, HEURISTIC or UNPROVABLE."""

    value: float | None  # None: unknown or infinite
    flag: str
    formula: str
    assumes: tuple[str, ...] = ()

    @property
    def proved(self) -> float | None:
        """The number if it is proven, otherwise None."""
        return self.value if self.flag == SOUND else None

    def to_table(self, nudge: float = 0.0) -> dict[str, Any]:
        """Return the term as plain values; the number is multiplied by 1 + ``nudge`` before rounding."""
        assumes = list(self.assumes)
        return {
            "value": rounded_up(self.value, nudge),
            "flag": self.flag,
            "formula": self.formula,
            "assumes": assumes,
        }


def unknown(formula: str, *assumes: str) -> Term:
    """Return a term without a value; ``assumes`` is what it would need."""
    return Term(None, UNPROVABLE, formula, assumes)


def total(formula: str, *parts: Term) -> Term:
    """Return the sum of terms, with the weakest of their flags and all of their assumptions."""
    assumes = tuple(dict.fromkeys(a for part in parts for a in part.assumes))
    flag = max((part.flag for part in parts), key=FLAGS.index)
    values = [part.value for part in parts if part.value is not None]
    return finite(Term(sum(values) if len(values) == len(parts) else None, flag, formula, assumes))


def finite(term: Term) -> Term:
    """Return the term; without its value if that is infinite."""
    if term.value is not None and isfinite(term.value):
        return term
    return replace(term, value=None, flag=UNPROVABLE)


def least(terms: dict[str, Term]) -> tuple[str, Term] | None:
    """Return the smallest proven term, with its name; None if there is none."""
    proved = [(term.proved, name) for name, term in terms.items() if term.proved is not None]
    return (min(proved)[1], terms[min(proved)[1]]) if proved else None


def rounded_up(value: float | None, nudge: float = 0.0) -> float | None:
    """Return the value times 1 + ``nudge``, rounded up to nine digits, so that a bound stays a bound."""
    if value is None or not isfinite(value):
        return None
    shifted = value * (1 + nudge)
    rounding = ROUND_CEILING if shifted >= 0 else ROUND_FLOOR
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(shifted)))
