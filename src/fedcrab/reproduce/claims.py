"""Whether the paper's claims about its figures hold for ours: one function per claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import mean

from fedcrab.experiment.cell_cache import Point
from fedcrab.experiment.suite_tables import Row

Curves = Mapping[str, Sequence[Point]]  # by the key of a cell


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds (``None``: not run), and the numbers that show it."""

    holds: bool | None
    numbers: str = ""


@dataclass(frozen=True)
class Observed:
    """Our rows for an item, and their loss curves."""

    rows: Sequence[Row]
    curves: Curves

    def mean(self, measure: str, *, method: str, **where: object) -> float | None:
        """Return the mean of a measure over the seeds."""
        values = [r[measure] for r in self.pick(method, **where) if r[measure] is not None]
        return mean(values) if values else None

    def pick(self, method: str, **where: object) -> list[Row]:
        """Return the rows of a method in a setting."""
        return [r for r in self.rows if r["method"] == method and all(r[k] == v for k, v in where.items())]

    def datasets(self) -> list[str]:
        """Return the data sets of the rows."""
        return list(dict.fromkeys(row["dataset"] for row in self.rows))

    def each(self, look: Callable[[str], tuple[bool, str] | None]) -> Verdict:
        """Return the verdict on a claim that must hold on every data set."""
        looked = [(name, result) for name in self.datasets() if (result := look(name)) is not None]
        numbers = "; ".join(f"{name}: {words}" for name, (_, words) in looked)
        return Verdict(all(holds for _, (holds, _) in looked) if looked else None, numbers)


PAPER = "crab-paper"
OTHERS = ("retrain", "federaser", "fedrecover")
Test = Callable[[Observed], Verdict]


def _compared(
    measure: str, ours: str, others: Iterable[str], *, factor: float = 1, digits: int = 2, most: bool = False
) -> Test:
    """Our method has the smallest (or largest) value of a measure on every data set."""

    def test(seen: Observed) -> Verdict:
        def look(dataset: str) -> tuple[bool, str] | None:
            means = {m: seen.mean(measure, method=m, dataset=dataset) for m in (ours, *others)}
            if any(value is None for value in means.values()):
                return None
            real = {m: factor * value for m, value in means.items() if value is not None}
            best = max(real.values()) if most else min(real.values())
            return real[ours] == best, ", ".join(f"{m} {value:.{digits}f}" for m, value in real.items())

        return seen.each(look)

    return test


def _beats(ours: str, theirs: str, *, fraction: float | None = None, margin: float = 0.0) -> Test:
    """Our accuracy is at most ``margin`` points below theirs on every data set."""

    def test(seen: Observed) -> Verdict:
        def look(dataset: str) -> tuple[bool, str] | None:
            where = {"dataset": dataset} | ({} if fraction is None else {"fraction": fraction})
            a, b = (seen.mean("ta", method=m, **where) for m in (ours, theirs))
            if a is None or b is None:
                return None
            return 100 * (a - b) > -margin, f"{ours} {100 * a:.1f}, {theirs} {100 * b:.1f}"

        return seen.each(look)

    return test


def _below(measure: str, method: str, limit: float, **where: object) -> Test:
    def test(seen: Observed) -> Verdict:
        value = seen.mean(measure, method=method, **where)
        if value is None:
            return Verdict(None)
        return Verdict(100 * value < limit, f"{method} {100 * value:.1f}")

    return test


def _asr_at_floor(seen: Observed) -> Verdict:
    def look(dataset: str) -> tuple[bool, str] | None:
        value = seen.mean("asr_with_target", method=PAPER, dataset=dataset)
        return None if value is None else (abs(100 * value - 10) < 5, f"{100 * value:.1f}")

    return seen.each(look)


def _asr_at_every_share(seen: Observed) -> Verdict:
    """ASR, target class included, is within 5 points of 10% at every share of attackers."""
    shares = sorted({row["fraction"] for row in seen.rows})
    means = {share: seen.mean("asr_with_target", method=PAPER, fraction=share) for share in shares}
    known = {share: 100 * value for share, value in means.items() if value is not None}
    numbers = ", ".join(f"{share:.0%}: {value:.1f}" for share, value in known.items())
    return Verdict(all(abs(value - 10) < 5 for value in known.values()) if known else None, numbers)


def _misr_falls(seen: Observed) -> Verdict:
    def look(dataset: str) -> tuple[bool, str] | None:
        means = [seen.mean("misr", method=m, dataset=dataset) for m in ("poisoned", PAPER, "retrain")]
        if any(value is None for value in means):
            return None
        poisoned, crab, retrained = (100 * (value or 0) for value in means)
        words = f"poisoned {poisoned:.1f}, {PAPER} {crab:.1f}, retrained {retrained:.1f}"
        return crab < poisoned - 5, words

    return seen.each(look)


def _rolled_back(fraction: float, first: int, last: int) -> Test:
    def test(seen: Observed) -> Verdict:
        rows = seen.pick(PAPER, fraction=fraction)
        rounds = [row["rollback_round"] for row in rows]
        numbers = "; ".join(f"{row['dataset']} seed {row['seed']}: {row['rollback_round']}" for row in rows)
        return Verdict(all(first <= t <= last for t in rounds) if rounds else None, numbers)

    return test


def _ends_like_federaser(seen: Observed) -> Verdict:
    """Crab's final loss is within 0.1 of FedEraser's."""

    def look(dataset: str) -> tuple[bool, str] | None:
        found = [seen.pick(method, dataset=dataset) for method in (PAPER, "federaser")]
        ends = [[seen.curves[row["key"]][-1][2] for row in rows] for rows in found]
        known = [[loss for loss in losses if loss is not None] for losses in ends]
        if not all(known):
            return None
        crab, eraser = (mean(losses) for losses in known)
        return abs(crab - eraser) < 0.1, f"{PAPER} {crab:.3f}, federaser {eraser:.3f}"

    return seen.each(look)


def _fedrecover_jumps(seen: Observed) -> Verdict:
    """FedRecover's loss somewhere rises to more than 1.25 times the lowest value before."""

    def look(dataset: str) -> tuple[bool, str] | None:
        rises = {m: _largest_rises(seen, m, dataset) for m in ("fedrecover", "retrain")}
        if not all(rises.values()):
            return None
        numbers = ", ".join(
            f"{m} up to {max(found):.2f} times the lowest before" for m, found in rises.items()
        )
        return max(rises["fedrecover"]) > 1.25, numbers

    return seen.each(look)


def _largest_rises(seen: Observed, method: str, dataset: str) -> list[float]:
    return [largest_rise(seen.curves[row["key"]]) for row in seen.pick(method, dataset=dataset)]


def largest_rise(curve: Sequence[Point]) -> float:
    """Return the largest ratio of a loss to the lowest loss before it."""
    losses = [loss for _, _, loss, _ in curve if loss]
    lowest = list(accumulate(losses, min))
    return max((loss / before for loss, before in zip(losses[1:], lowest, strict=False)), default=1.0)


def _rises(symbol: str, values: Sequence[float]) -> Test:
    """Accuracy never falls from one value of a sweep to the next."""

    def test(seen: Observed) -> Verdict:
        means = [seen.mean("ta", method=f"{PAPER} {symbol}={value:g}") for value in values]
        known = [100 * m for m in means if m is not None]
        if len(known) < len(values):
            return Verdict(None)
        numbers = ", ".join(f"{value:g}: {m:.1f}" for value, m in zip(values, known, strict=True))
        return Verdict(all(a <= b for a, b in pairwise(known)), f"{PAPER}, {symbol} = {numbers}")

    return test


def _along(symbol: str, first: float, last: float, *, falls: float) -> Test:
    """Accuracy falls by more than ``falls`` points between two values of a sweep."""

    def test(seen: Observed) -> Verdict:
        a, b = (seen.mean("ta", method=f"{PAPER} {symbol}={value:g}") for value in (first, last))
        if a is None or b is None:
            return Verdict(None)
        numbers = f"{PAPER} {symbol}={first:g}: {100 * a:.1f}, {symbol}={last:g}: {100 * b:.1f}"
        return Verdict(100 * (a - b) > falls, numbers)

    return test


def _not(test: Test) -> Test:
    def turned(seen: Observed) -> Verdict:
        found = test(seen)
        return Verdict(None if found.holds is None else not found.holds, found.numbers)

    return turned


TESTS: Mapping[str, Test] = {
    "crab_stores_least": _compared("bytes", PAPER, ("federaser", "fedrecover"), factor=1e-6),
    "crab_computes_least": _compared("client_rounds", PAPER, OTHERS, digits=0),
    "crab_rounds_are_fastest": _compared("seconds_a_round", PAPER, OTHERS, digits=3),
    "fedrecover_rounds_are_slowest": _compared(
        "seconds_a_round", "fedrecover", ("retrain", "federaser", PAPER), digits=3, most=True
    ),
    "crab_ends_like_federaser": _ends_like_federaser,
    "fedrecover_jumps": _fedrecover_jumps,
    "rolls_back_to_5_to_7": _rolled_back(0.1, 5, 7),
    "rolls_back_to_2_to_3": _rolled_back(0.5, 2, 3),
    "harmless_at_10": _beats("poisoned", "retrain", fraction=0.1, margin=2),
    "accuracy_falls_at_50": _below("ta", "poisoned", 60, fraction=0.5),
    "crab_near_retrain": _beats(PAPER, "retrain", fraction=0.5, margin=5.2),
    "crab_beats_fedrecover": _beats(PAPER, "fedrecover"),
    "crab_beats_poisoned": _beats(PAPER, "poisoned"),
    "asr_at_floor": _asr_at_floor,
    "asr_at_floor_at_every_share": _asr_at_every_share,
    "misr_falls": _misr_falls,
    "more_rounds_more_accuracy": _rises("λ", (0.3, 0.5, 0.6, 0.7, 0.9)),
    "too_many_clients_hurt": _along("δ", 0.7, 0.8, falls=0),
    "beta_03_is_free": _not(_along("β", 0.1, 0.3, falls=1)),
    "beta_09_hurts": _along("β", 0.3, 0.9, falls=2),
}
