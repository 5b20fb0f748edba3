"""A suite's results as a table: mean ± spread over the seeds, and what differs from the reference method.

Several seeds: mean and spread, and whether a difference is more than noise.

Two methods are compared by a paired t-test: they recovered from the same trainings, seed by seed, so that
what a seed makes easy or hard for both cancels. With d the differences over n common seeds,

    t = mean(d) / (sd(d) / √n)   against Student's t with n − 1 degrees of freedom, two-sided.

It assumes that differences are roughly normal, which few seeds cannot show, and with n = 3 it finds only what
is large beside its spread (|t| > 4.3). Many comparisons find something by chance: the p-values of one table
are corrected by Holm's method (Holm, Scandinavian Journal of Statistics 1979).

The results of a suite as one tidy table: one row per cell, one column per axis or measure.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.matrix import Cell
from fedcrab.experiment.suite import MEASURES, SHARES
from fedcrab.files import file_errors, make_directory, write_named
from fedcrab.recover.methods import rolls_back

LEVEL = 0.05
FEWEST = 3  # seeds for a test
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds; the deviation is None where there is one seed."""

    mean: float
    deviation: float | None
    count: int


def mean_and_deviation(values: Sequence[float]) -> Spread | None:
    """Mean and sample standard deviation; None where there is no value."""
    if not values:
        return None
    return Spread(mean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, slots=True)
class Difference:
    """How two methods differ over the seeds they share."""

    mean: float
    count: int
    p: float | None  # None where it cannot be told


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Ours less theirs, seed by seed; None where no seed is shared."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not differences:
        return None
    return Difference(mean(differences), len(differences), p_value(differences))


def p_value(differences: Sequence[float]) -> float | None:
    """The two-sided p of a mean of zero; None where it cannot be told.

    Fewer than three seeds tell nothing, nor do differences that are all alike: that is rounding or chance.
    """
    largest = max((abs(d) for d in differences), default=0.0)
    if len(differences) < FEWEST or stdev(differences) <= 1e-9 * largest:
        return None
    from scipy.stats import t as student

    t = mean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    return float(2 * student.sf(abs(t), len(differences) - 1))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Each p corrected for how many there are: the smallest times n, the next times n − 1, never falling."""
    corrected, least = dict[Name, float](), 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = least
    return corrected


NUMBERS = re.compile(r"[-+]?[0-9][-+0-9.,e ±%()]*")  # such as -0.5 ± 0.1
Row = dict[str, Any]
AFTER = (*MEASURES, "capped", "key")  # columns behind the axes


def rows_of(cells: Sequence[Cell], store: CellCache) -> list[Row]:
    """A row for each cell that is finished; one that is damaged is refused."""
    rows = []
    for cell in cells:
        finished = store.find(cell.key)
        if finished is not None:
            measures = {name: finished.measures.get(name) for name in AFTER[:-1]}
            if rolls_back(cell.method.name) and not cell.method.begins_at_rollback:
                measures["rollback_round"] = None
            rows.append({**dict(cell.labels), **measures, "key": cell.key})
    return rows


def axes_of(rows: Sequence[Row]) -> list[str]:
    """The columns that say which cell a row is, method and seed last."""
    return [name for name in rows[0] if name not in AFTER] if rows else []


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Every column: axes first, then measures."""
    axes = dict.fromkeys(name for row in rows for name in row if name not in AFTER)
    return [*axes, *AFTER]


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """As CSV; what is not known is an empty field."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([no_formula(name) for name in columns])
    for row in rows:
        values = (row.get(name) for name in columns)
        writer.writerow(["" if value is None else no_formula(value) for value in values])
    return text.getvalue()


def no_formula(value: Any) -> Any:
    """The value as a field of CSV that no spreadsheet takes for a formula: a text gets an apostrophe."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # which ends a row for most readers, and which Python does not quote
    risky = text.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{text}" if risky and not NUMBERS.fullmatch(text) else text


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with file_errors(f"{path}: not written"):
        make_directory(path.absolute().parent)
        write_named(path, [text.encode()])


Setting = tuple[Any, ...]
UNKNOWN = "-"
NOTE = (
    "Mean ± standard deviation over seeds. Δ is the difference of {measure} to {reference}, mean over the "
    "seeds that both have; p by a paired t-test, corrected for the {count} comparisons of the table (Holm), "
    "none where there are fewer than three seeds or no spread; * marks p < {level:g}. "
    "With few seeds only large differences can be told from noise."
)


@dataclass(frozen=True)
class ResultTable:
    """Words in rows and columns, with what has to be said about them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def summary(
    rows: Sequence[Row], measures: Sequence[str], *, reference: str, compared: str | None = "ta"
) -> ResultTable:
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
    return ResultTable((*heads, "seeds"), counted, note)


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
    return {row["seed"]: row[measure] for row in rows if row.get(measure) is not None}


def varying(rows: Sequence[Row]) -> list[str]:
    """The axes that have more than one value; all the others are the same everywhere."""
    axes = [name for name in axes_of(rows) if name not in ("method", "seed")]
    return [name for name in axes if len({str(row[name]) for row in rows}) > 1]


def cell(rows: Sequence[Row], measure: str) -> str:
    """Mean ± deviation of one measure, shares in per cent."""
    if measure == "rollback_round":
        return _rounds(rows)
    factor = 100 if measure in SHARES else 1
    told = mean_and_deviation([factor * row[measure] for row in rows if row.get(measure) is not None])
    if told is None or (measure not in SHARES and not told.mean and measure != "distance"):
        return UNKNOWN
    digits = _digits(measure, told.mean)
    deviation = "" if told.deviation is None else f" ± {told.deviation:.{digits}f}"
    return f"{told.mean:.{digits}f}{deviation}"


def _rounds(rows: Sequence[Row]) -> str:
    """One per seed, of methods that roll back; a label begins with the method's name."""
    found = [row["rollback_round"] for row in rows if rolls_back(row["method"].partition(" ")[0])]
    return ", ".join(str(t) for t in found if t is not None) or UNKNOWN


def _digits(measure: str, mean: float) -> int:
    if measure in SHARES:
        return 1
    if measure in ("rounds", "contact_rounds", "client_rounds", "sample_gradients", "bytes"):
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
