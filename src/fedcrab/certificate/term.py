"""One statement of a certificate: a number, what it assumes, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite
from typing import Any

SOUND = "sound"  # a theorem, wherever what it assumes is true
HEURISTIC = "heuristic"  # a sensible figure that nothing proves
UNPROVABLE = "not provable"  # stated for comparison; known to fail, or nothing to compute it from
FLAGS = (SOUND, HEURISTIC, UNPROVABLE)
DIGITS = 9  # of a number in a certificate


@dataclass(frozen=True, slots=True)
class Term:
    """A number that bounds something, and what it rests on."""

    value: float | None  # None: unknown, or above every number
    flag: str
    formula: str
    assumes: tuple[str, ...] = ()

    @property
    def proved(self) -> float | None:
        """The number, where it is a bound."""
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
    """A term that nothing is known of, and what would be needed."""
    return Term(None, UNPROVABLE, formula, assumes)


def total(formula: str, *parts: Term) -> Term:
    """The sum of terms: as trustworthy as the least of them."""
    assumes = tuple(dict.fromkeys(a for part in parts for a in part.assumes))
    flag = max((part.flag for part in parts), key=FLAGS.index)
    values = [part.value for part in parts if part.value is not None]
    return finite(Term(sum(values) if len(values) == len(parts) else None, flag, formula, assumes))


def finite(term: Term) -> Term:
    """The term, with nothing claimed where its number is above every number."""
    if term.value is not None and isfinite(term.value):
        return term
    return replace(term, value=None, flag=UNPROVABLE)


def least(terms: dict[str, Term]) -> tuple[str, Term] | None:
    """The smallest of the proved terms."""
    proved = [
        (term.value, name) for name, term in terms.items() if term.flag == SOUND and term.value is not None
    ]
    return (min(proved)[1], terms[min(proved)[1]]) if proved else None


def rounded_up(value: float | None, nudge: float = 0.0) -> float | None:
    """The value with nine digits, never below it: what bounds stays a bound."""
    if value is None or not isfinite(value):
        return None
    shifted = value * (1 + nudge)
    rounding = ROUND_CEILING if shifted >= 0 else ROUND_FLOOR
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(shifted)))
