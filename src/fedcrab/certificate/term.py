"""One statement of a certificate: a number, what it assumes, and how far it can be trusted."""

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
    """A bound, its formula, its assumptions, and how far it can be trusted."""

    value: float | None  # None: unknown or infinite
    flag: str
    formula: str
    assumes: tuple[str, ...] = ()

    @property
    def proved(self) -> float | None:
        """The number if it is proven, otherwise None."""
        return self.value if self.flag == SOUND else None

    def to_table(self, nudge: float = 0.0) -> dict[str, Any]:
        """As plain values; ``nudge`` shifts the number before rounding, by a share of it."""
        assumes = list(self.assumes)
        return {
            "value": rounded_up(self.value, nudge),
            "flag": self.flag,
            "formula": self.formula,
            "assumes": assumes,
        }


def unknown(formula: str, *assumes: str) -> Term:
    """A term without a value, and what it would need."""
    return Term(None, UNPROVABLE, formula, assumes)


def total(formula: str, *parts: Term) -> Term:
    """The sum of terms; as trustworthy as the weakest of them."""
    assumes = tuple(dict.fromkeys(a for part in parts for a in part.assumes))
    flag = max((part.flag for part in parts), key=FLAGS.index)
    values = [part.value for part in parts if part.value is not None]
    return finite(Term(sum(values) if len(values) == len(parts) else None, flag, formula, assumes))


def finite(term: Term) -> Term:
    """The term; nothing is claimed if its value is infinite."""
    if term.value is not None and isfinite(term.value):
        return term
    return replace(term, value=None, flag=UNPROVABLE)


def least(terms: dict[str, Term]) -> tuple[str, Term] | None:
    """The name of the smallest proven term, and the term; None if there is none."""
    proved = [
        (term.value, name) for name, term in terms.items() if term.flag == SOUND and term.value is not None
    ]
    return (min(proved)[1], terms[min(proved)[1]]) if proved else None


def rounded_up(value: float | None, nudge: float = 0.0) -> float | None:
    """The value rounded up to nine digits, so that a bound stays a bound."""
    if value is None or not isfinite(value):
        return None
    shifted = value * (1 + nudge)
    rounding = ROUND_CEILING if shifted >= 0 else ROUND_FLOOR
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(shifted)))
