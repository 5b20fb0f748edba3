"""A suite's results as tables: mean ± spread over the seeds, and differences to the reference method.

Two methods are compared by a paired t-test: they recovered from the same trainings, so what is easy or hard
about a seed cancels. With d the differences over n common seeds,

    t = mean(d) / (sd(d) / √n)   against Student's t with n − 1 degrees of freedom, two-sided.

The test assumes that differences are roughly normal, which few seeds cannot show. With n = 3 it detects only
differences that are large compared with their spread (|t| > 4.3). Many comparisons find something by chance,
so the p-values of one table are corrected by Holm's method (Holm, Scandinavian Journal of Statistics 1979).
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
    """A mean over seeds and its standard deviation, None for one seed."""

    mean: float
    deviation: float | None
    count: int


def mean_and_deviation(values: Sequence[float]) -> Spread | None:
    """Return mean and sample standard deviation; None if there is no value."""
    if not values:
        return None
    return Spread(mean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two methods over the seeds they share."""

    mean: float
    count: int
    p: float | None  # None if it is undefined


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Return ours minus theirs over the shared seeds; None if there is none."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not differences:
        return None
    return Difference(mean(differences), len(differences), p_value(differences))


def p_value(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value for a mean of zero; None if it is undefined.

    It is undefined for fewer than three seeds and for differences without spread.
    """
    largest = max((abs(d) for d in differences), default=0.0)
    if len(differences) < FEWEST or stdev(differences) <= 1e-9 * largest:
        return None
    from scipy.stats import t as student

    t = mean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    return float(2 * student.sf(abs(t), len(differences) - 1))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Return corrected p-values: the smallest times n, the next times n − 1, never decreasing."""
    corrected, least = dict[Name, float](), 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = least
    return corrected


NUMBERS = re.compile(r"[-+]?[0-9][-+0-9.,e ±%()]*")  # such as -0.5 ± 0.1
Row = dict[str, Any]
AFTER = (*MEASURES, "capped", "key")  # columns behind the axes


def rows_of(cells: Sequence[Cell], store: CellCache) -> list[Row]:
    """Return one row per finished cell; raises ``DamagedError`` for a damaged one."""
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
    """Return the columns that identify a cell, method and seed last."""
    return [name for name in rows[0] if name not in AFTER] if rows else []


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return every column: axes first, then measures."""
    axes = dict.fromkeys(name for row in rows for name in row if name not in AFTER)
    return [*axes, *AFTER]


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as CSV; unknown values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([no_formula(name) for name in columns])
    for row in rows:
        values = (row.get(name) for name in columns)
        writer.writerow(["" if value is None else no_formula(value) for value in values])
    return text.getvalue()


def no_formula(value: Any) -> Any:
    """Return the value as a CSV field that no spreadsheet reads as a formula; an apostrophe marks text."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # it ends a row for most readers, and Python does not quote it
    risky = text.lstrip().startswith(tuple("=+-@＝＋－＠"))  # some spreadsheets read wide ones too
    return f"'{text}" if risky and not NUMBERS.fullmatch(text) else text


def write_text(path: Path, text: str) -> None:
    """Write a file, completely or not at all."""
    with file_errors(f"{path}: not written"):
        make_directory(path.absolute().parent)
        write_named(path, [text.encode()])


Setting = tuple[Any, ...]
UNKNOWN = "-"
NOTE = (
    "Mean ± standard deviation over seeds. Δ is the difference of {measure} to {reference}, mean over the "
    "seeds that both have. p is from a paired t-test, corrected for the {count} comparisons of the table "
    "(Holm); there is none for fewer than three seeds or no spread; * marks p < {level:g}. "
    "With few seeds, only large differences can be distinguished from noise."
)


@dataclass(frozen=True)
class ResultTable:
    """A table of text, with a note."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def summary(
    rows: Sequence[Row], measures: Sequence[str], *, reference: str, compared: str | None = "ta"
) -> ResultTable:
    """Return one line per setting and method; ``compared`` is the measure tested against the reference."""
    groups, axes = grouped(rows), varying(rows)
    lines = {
        place: (*(axis_word(group[0][axis]) for axis in axes), place[-1], *(cell(group, m) for m in measures))
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
    """Return the lines with their difference to the reference, and a note on the test."""
    apart = differences(groups, reference, measure)
    p_values = holm({place: d.p for place, d in apart.items() if d.p is not None})
    texts = {place: _difference(apart.get(place), p_values.get(place), measure) for place in lines}
    note = NOTE.format(measure=MEASURES[measure], reference=reference, count=len(p_values), level=LEVEL)
    return {place: (*line, texts[place]) for place, line in lines.items()}, note


OVER_SETTINGS = (
    "Over all settings: the mean difference to {reference} over all trainings (setting and seed) that both "
    "have, its 95% interval by a paired t-test, and the largest shortfall of one training. An interval that "
    "contains 0 is no proof of equality; it says how large the difference may be."
)


def over_settings(rows: Sequence[Row], *, reference: str, measure: str = "ta") -> ResultTable | None:
    """Return each method's difference to the reference over all trainings.

    None if there is only one setting, or if there are too few trainings.
    """
    groups = grouped(rows)
    found: dict[str, list[float]] = {}
    for place, group in groups.items():
        theirs = _by_seed(groups.get((*place[:-1], reference), []), measure)
        ours = _by_seed(group, measure)
        if place[-1] != reference:
            found.setdefault(place[-1], []).extend(
                ours[s] - theirs[s] for s in sorted(ours.keys() & theirs.keys())
            )
    lines = tuple(_over(method, each, measure) for method, each in found.items() if len(each) >= FEWEST)
    if not lines or not varying(rows):
        return None
    head = f"Δ {MEASURES[measure]}"
    columns = ("method", head, "95% interval", "worst", "trainings")
    return ResultTable(columns, lines, OVER_SETTINGS.format(reference=reference))


def _over(method: str, differences: Sequence[float], measure: str) -> tuple[str, ...]:
    from scipy.stats import t as student

    factor = 100 if measure in SHARES else 1
    middle, count = factor * mean(differences), len(differences)
    half = factor * stdev(differences) / math.sqrt(count) * float(student.ppf(1 - LEVEL / 2, count - 1))
    interval = f"{middle - half:+.1f} to {middle + half:+.1f}"
    return method, f"{middle:+.1f}", interval, f"{factor * min(differences):+.1f}", str(count)


def grouped(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    """Return the rows of all seeds by setting and method, method last."""
    groups: dict[Setting, list[Row]] = {}
    for row in rows:
        axes = [name for name in axes_of([row]) if name not in ("method", "seed")]
        groups.setdefault((*(row[name] for name in axes), row["method"]), []).append(row)
    return groups


def differences(groups: dict[Setting, list[Row]], reference: str, measure: str) -> dict[Setting, Difference]:
    """Return each method minus the reference in the same setting."""
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
    """Return the axes with more than one value."""
    axes = [name for name in axes_of(rows) if name not in ("method", "seed")]
    return [name for name in axes if len({str(row[name]) for row in rows}) > 1]


def cell(rows: Sequence[Row], measure: str) -> str:
    """Return mean ± standard deviation of a measure, shares in percent."""
    if measure == "rollback_round":
        return _rounds(rows)
    factor = 100 if measure in SHARES else 1
    spread = mean_and_deviation([factor * row[measure] for row in rows if row.get(measure) is not None])
    if spread is None or (measure not in SHARES and not spread.mean and measure != "distance"):
        return UNKNOWN
    digits = _digits(measure, spread.mean)
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}"
    return f"{spread.mean:.{digits}f}{deviation}"


def _rounds(rows: Sequence[Row]) -> str:
    """Return the rollback round per seed if the method rolls back; a label begins with the method's name."""
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
    significance = "" if p is None else f" (p={p:.2g}){'*' if p < LEVEL else ''}"
    return f"{factor * difference.mean:+.1f}{significance}"


def axis_word(value: Any) -> str:
    """Return the value of an axis as one word."""
    return f"{value:g}" if isinstance(value, float) else str(value)
