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


def summary(
    rows: Sequence[Row], measures: Sequence[str], *, reference: str, compared: str | None = "ta"
) -> Table:
    """One line a setting and method; ``compared`` is the measure that is tested against the reference."""
    groups, axes = grouped(rows), varying(rows)
    lines = {
        place: (*(_word(group[0][axis]) for axis in axes), place[-1], *(cell(group, m) for m in measures))
        for place, group in groups.items()
    }
    heads = (*axes, "method", *(MEASURES[name] for name in measures))
    note = "Mean ± standard deviation over seeds."
    if compared is not None:
        heads, lines, note = (*heads, f"Δ {MEASURES[compared]}"), *_tested(groups, lines, reference, compared)
    counted = tuple((*line, str(len(groups[place]))) for place, line in lines.items())
    return Table((*heads, "seeds"), counted, note)


def _tested(
    groups: dict[Setting, list[Row]], lines: dict[Setting, tuple[str, ...]], reference: str, measure: str
) -> tuple[dict[Setting, tuple[str, ...]], str]:
    """The lines with the difference to the reference, and how it was tested."""
    apart = differences(groups, reference, measure)
    p_values = holm({place: d.p for place, d in apart.items() if d.p is not None})
    told = {place: _difference(apart.get(place), p_values.get(place), measure) for place in lines}
    note = NOTE.format(measure=MEASURES[measure], reference=reference, count=len(p_values), level=LEVEL)
    return {place: (*line, told[place]) for place, line in lines.items()}, note


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
    """One a seed; only Crab rolls back."""
    found = [row["rollback_round"] for row in rows if row["method"].startswith("crab")]
    return ", ".join(str(t) for t in found if t is not None) or UNKNOWN


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
