"""A suite's results as a table: mean ± spread over the seeds, and what differs from the reference method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedcrab.suite.description import MEASURES, SHARES
from fedcrab.suite.statistics import LEVEL, Difference, holm, paired, spread
from fedcrab.suite.tidy import Row, axes_of

Setting = tuple[Any, ...]
UNKNOWN = "-"
NOTE = (
    "Mean ± standard deviation over seeds. Δ is the difference of {measure} to {reference}, mean over the "
    "seeds that both have; p by a paired t-test, corrected for the {count} comparisons of the table (Holm), "
    "none where there are fewer than three seeds or no spread; * marks p < {level:g}. "
    "With few seeds only large differences can be told from noise."
)


@dataclass(frozen=True)
class Table:
    """Words in rows and columns, with what has to be said about them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def summary(rows: Sequence[Row], measures: Sequence[str], *, reference: str, compared: str = "ta") -> Table:
    """One line a setting and method."""
    groups = grouped(rows)
    apart = differences(groups, reference, compared)
    p_values = holm({place: d.p for place, d in apart.items() if d.p is not None})
    axes = varying(rows)
    lines = []
    for place, group in groups.items():
        named = tuple(_word(group[0][axis]) for axis in axes)
        cells = (cell(group, name) for name in measures)
        told = _difference(apart.get(place), p_values.get(place), compared)
        lines.append((*named, place[-1], *cells, told, str(len(group))))
    heads = (*axes, "method", *(MEASURES[name] for name in measures), f"Δ {MEASURES[compared]}", "seeds")
    note = NOTE.format(measure=MEASURES[compared], reference=reference, count=len(p_values), level=LEVEL)
    return Table(heads, tuple(lines), note)


def grouped(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    """The rows of the seeds of each setting and method, method last."""
    groups: dict[Setting, list[Row]] = {}
    for row in rows:
        axes = [name for name in axes_of([row]) if name not in ("method", "seed")]
        groups.setdefault((*(row[name] for name in axes), row["method"]), []).append(row)
    return groups


def differences(groups: dict[Setting, list[Row]], reference: str, measure: str) -> dict[Setting, Difference]:
    """Each method less the reference in the same setting."""
    found = {}
    for place, group in groups.items():
        theirs = groups.get((*place[:-1], reference))
        if place[-1] != reference and theirs is not None:
            difference = paired(_by_seed(group, measure), _by_seed(theirs, measure))
            if difference is not None:
                found[place] = difference
    return found


def _by_seed(rows: Sequence[Row], measure: str) -> dict[int, float]:
    return {row["seed"]: row[measure] for row in rows if row[measure] is not None}


def varying(rows: Sequence[Row]) -> list[str]:
    """The axes that have more than one value; all the others are the same everywhere."""
    axes = [name for name in axes_of(rows) if name not in ("method", "seed")]
    return [name for name in axes if len({str(row[name]) for row in rows}) > 1]


def cell(rows: Sequence[Row], measure: str) -> str:
    """Mean ± deviation of one measure, shares in per cent."""
    if measure == "rollback_round":
        return _rounds(rows)
    factor = 100 if measure in SHARES else 1
    told = spread([factor * row[measure] for row in rows if row[measure] is not None])
    if told is None or (measure not in SHARES and not told.mean and measure != "distance"):
        return UNKNOWN
    digits = _digits(measure, told.mean)
    deviation = "" if told.deviation is None else f" ± {told.deviation:.{digits}f}"
    return f"{told.mean:.{digits}f}{deviation}"


def _rounds(rows: Sequence[Row]) -> str:
    found = [row["rollback_round"] for row in rows]
    return ", ".join(UNKNOWN if t is None else str(t) for t in found) or UNKNOWN


def _digits(measure: str, mean: float) -> int:
    if measure in SHARES:
        return 1
    if measure in ("rounds", "client_rounds", "sample_gradients", "bytes"):
        return 0
    return 3 if abs(mean) < 1 else 2


def _difference(difference: Difference | None, p: float | None, measure: str) -> str:
    if difference is None:
        return UNKNOWN
    factor = 100 if measure in SHARES else 1
    told = "" if p is None else f" (p={p:.2g}){'*' if p < LEVEL else ''}"
    return f"{factor * difference.mean:+.1f}{told}"


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
