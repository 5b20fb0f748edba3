"""Table II: the paper's formulas with the numbers of a run put in, beside what was measured.

C clients, M parameters, T rounds; Δt FedEraser's interval; T_w, T_c, T_f FedRecover's warm-up, correction and
tuning; λ, δ Crab's shares; j* its rollback record.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from fedcrab.report.tables import size
from fedcrab.suite.expansion import Cell
from fedcrab.suite.tables import Table
from fedcrab.suite.tidy import Row

FORMULAS = {
    "retrain": ("O(CMT)", "O(T)"),
    "federaser": ("O(CM⌊T/Δt⌋)", "O(⌊T/Δt⌋)"),
    "fedrecover": ("O(CMT)", "O(T_w + T_f + ⌊(T − T_w − T_f)/T_c⌋)"),
    "crab-paper": ("O(λδCMT)", "O(λT − j*)"),
    "crab-hardened": ("O(λδCMT)", "O(λT − j*)"),
}


def formulas(rows: Sequence[Row], cells: Sequence[Cell]) -> Table:
    """The formulas of each method, and the measured bytes and client-rounds, over everything that was run."""
    honest = _honest(cells)
    lines = []
    for method, (memory, computation) in FORMULAS.items():
        own = [row for row in rows if row["method"] == method]
        if own:
            stored = size(mean(row["bytes"] for row in own)) if method != "retrain" else "nothing"
            asked = mean(row["client_rounds"] / honest[row["fraction"]] for row in own)
            lines.append((method, memory, stored, computation, f"{asked:.1f}"))
    columns = ("method", "memory, paper", "measured on disk", "computation, paper", "rounds an honest client")
    return Table(columns, tuple(lines))


def _honest(cells: Sequence[Cell]) -> dict[str | float, int]:
    """How many honest clients there are at each share of attackers."""
    counts = {}
    for cell in cells:
        labels, clients = dict(cell.labels), cell.config.clients.count
        counts[labels["fraction"]] = clients - round(float(labels["fraction"]) * clients)
    return counts
