"""Table II: the paper's formulas evaluated for a run, beside the measured values.

C clients, M parameters of four bytes, T rounds; Δt is FedEraser's interval; T_w, T_c and T_f are FedRecover's
warm-up, correction and tuning; λ and δ are Crab's shares; j* is its rollback record, here 0, which gives the
largest cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fedcrab.experiment.matrix import Cell
from fedcrab.experiment.suite_tables import ResultTable, Row
from fedcrab.history import Every, Selective
from fedcrab.recover.fedrecover import scheduled
from fedcrab.recover.methods import METHODS
from fedcrab.report.tables import size
from fedcrab.simulate import Architecture
from fedcrab.simulate.models import layout_of

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}
CLASSES = 10


@dataclass(frozen=True)
class Formula:
    """One line of the paper's table: how many vectors are stored, how many rounds each client trains."""

    memory: str
    vectors: Callable[[Cell], float]
    computation: str
    rounds: Callable[[Cell], float]


def _everything(cell: Cell) -> float:
    return cell.config.clients.count * cell.config.rounds


def _selected(cell: Cell) -> float:
    kept = cell.method.selection
    return kept.rounds * kept.clients * _everything(cell) if isinstance(kept, Selective) else 0.0


def _replayed(cell: Cell) -> float:
    kept = cell.method.selection
    return kept.rounds * cell.config.rounds if isinstance(kept, Selective) else 0.0


def _every(cell: Cell) -> float:
    kept = cell.method.selection
    return cell.config.rounds // kept.n if isinstance(kept, Every) else 0.0


def _exact(cell: Cell) -> float:
    settings = dict(cell.method.settings)
    names = ("pairs", "warm_up", "correct_every", "tune")
    schedule = scheduled(cell.config.rounds, *(settings[name] for name in names))
    between = schedule.rounds - schedule.warm_up - schedule.tune
    return schedule.warm_up + schedule.tune + between // schedule.correct_every


CRAB = Formula("O(λδCMT)", _selected, "O(λT − j*)", _replayed)
FORMULAS: Mapping[str, Formula] = {
    "retrain": Formula("O(CMT)", _everything, "O(T)", lambda cell: cell.config.rounds),
    "federaser": Formula(
        "O(CM⌊T/Δt⌋)", lambda cell: cell.config.clients.count * _every(cell), "O(⌊T/Δt⌋)", _every
    ),
    "fedrecover": Formula("O(CMT)", _everything, "O(T_w + T_f + ⌊(T − T_w − T_f)/T_c⌋)", _exact),
    "crab-paper": CRAB,
    "crab-hardened": CRAB,
}
COLUMNS = (
    "method",
    "memory, paper",
    "evaluated",
    "measured on disk",
    "computation, paper",
    "evaluated",
    "measured, rounds per honest client",
)


def formulas(rows: Sequence[Row], cells: Sequence[Cell]) -> ResultTable:
    """Return each method's formulas beside measured bytes and client-rounds, over everything that was run."""
    asked = {cell.key: cell for cell in cells}
    lines = []
    for method, formula in FORMULAS.items():
        own = [row for row in rows if row["method"] == method]
        if own:
            lines.append(_line(method, formula, own, asked))
    return ResultTable(COLUMNS, tuple(lines))


def _line(method: str, formula: Formula, rows: Sequence[Row], asked: Mapping[str, Cell]) -> tuple[str, ...]:
    cell = asked[rows[0]["key"]]
    evaluated = size(4 * _parameters(cell) * formula.vectors(cell))
    stored = size(mean(row["bytes"] for row in rows)) if METHODS[method].needs_history else "none"
    each = mean(row["client_rounds"] / _honest(asked[row["key"]]) for row in rows)
    return (
        method,
        formula.memory,
        evaluated,
        stored,
        formula.computation,
        f"{formula.rounds(cell):g}",
        f"{each:.1f}",
    )


def _parameters(cell: Cell) -> int:
    """M."""
    name = cell.config.data.name
    return layout_of(Architecture(cell.config.model, SHAPES[name], CLASSES).build()).size


def _honest(cell: Cell) -> int:
    """Return the number of honest clients."""
    clients, fraction = cell.config.clients.count, dict(cell.labels)["fraction"]
    return clients - round(float(fraction) * clients)
