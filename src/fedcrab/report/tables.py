"""Histories, plans and recoveries as terminal tables, and as plain values for JSON.

Client ids are untrusted, so they are shown as plain text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from fedcrab.history import History
from fedcrab.history.ledger_state import untimed_head
from fedcrab.history.records import instant_text
from fedcrab.recover.cost import PlannedCost
from fedcrab.recover.methods import rolls_back
from fedcrab.rollback.decision import Plan
from fedcrab.rollback.warnings import percent
from fedcrab.terminal_table import Column, FittedTable
from fedcrab.types import ClientId, natural


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """One client over all rounds."""

    client: ClientId
    rounds: int
    selected: int
    rejected: int
    mean_norm: float
    mean_cosine: float


def summarise_clients(history: History) -> list[ClientSummary]:
    """Return a summary of every client that took part or was rejected, in natural order."""
    rounds, selected, rejected = Counter[str](), Counter[str](), Counter[str]()
    norms, cosines = Counter[str](), Counter[str]()
    for entry in history.rounds:
        rejected.update(r.client for r in entry.rejected)
        for client, norm, cosine, chosen in zip(
            entry.clients, entry.norms.tolist(), entry.cosines.tolist(), entry.selected.tolist(), strict=True
        ):
            rounds[client] += 1
            selected[client] += chosen
            norms[client] += norm
            cosines[client] += cosine
    return [
        ClientSummary(c, rounds[c], selected[c], rejected[c], *_means(norms[c], cosines[c], rounds[c]))
        for c in sorted({*rounds, *rejected}, key=natural)
    ]


def _means(norms: float, cosines: float, rounds: int) -> tuple[float, float]:
    return (norms / rounds, cosines / rounds) if rounds else (0.0, 0.0)


def to_table(history: History) -> dict[str, Any]:
    """Return a history as plain values."""
    contents, charter = history.contents, history.charter
    return {
        "path": history.where,
        "closed": history.closed,
        "parameters": charter.layout.size,
        "aggregation": charter.aggregation,
        "selection": charter.to_table()["selection"],
        "format": charter.format,
        "head": contents.head,
        "untimed_head": untimed_head(contents),
        "clients": list(history.clients),
        "client_summaries": [
            {name: getattr(c, name) for name in ClientSummary.__slots__} for c in summarise_clients(history)
        ],
        "rounds": [
            {
                "index": entry.index,
                "window": contents.window_of(entry.index),
                "state": contents.state(entry.index),
                "began": instant_text(entry.began),
                "ended": instant_text(entry.ended),
                "loss": _plain(entry.loss),
                "divergence": _plain(entry.divergence),
                "participants": list(entry.clients),
                "selected": [c for c, s in zip(entry.clients, entry.selected, strict=True) if s],
                "rejected": [{"client": r.client, "reason": r.reason} for r in entry.rejected],
            }
            for entry in history.rounds
        ],
        "bytes": history.bytes(),
    }


def _plain(value: float) -> float | None:
    """Return the number; None if it is not finite, because JSON has no such numbers."""
    return value if isfinite(value) else None


Row = TypeVar("Row")
LONGEST = 60  # rows of a long history; --all shows every row


def history_tables(history: History, *, everything: bool = False) -> RenderableType:
    """Return the summary of a history, its rounds, its clients and its size."""
    return Group(
        headline(history),
        _rounds(history, everything),
        _clients(summarise_clients(history), everything),
        bytes_line(history.bytes(), len(history.kept)),
    )


def headline(history: History) -> Text:
    """Return a history in one line."""
    windows, rounds = len(history.contents.windows), len(history.rounds)
    state = "closed" if history.closed else "open"
    return Text(
        f"{history.where}: {state}, {rounds} rounds in {windows} windows, {len(history.kept)} kept, "
        f"{len(history.clients)} clients, {history.charter.layout.size:,} numbers, "
        f"aggregated by {history.charter.aggregation}"
    )


def _rounds(history: History, everything: bool) -> FittedTable:
    timed = any(entry.began for entry in history.rounds)  # older histories have no times
    table = FittedTable(
        "Rounds",
        "round",
        Column("window", 2),
        Column("state", left=True),
        "loss",
        Column("divergence", 1),
        "clients",
        "selected",
        Column("rejected", prose=True),
        *((Column("began (UTC)", 3),) if timed else ()),
    )
    for entry in _some(history.rounds, everything, table):
        window = history.contents.window_of(entry.index)
        table.add_row(
            str(entry.index),
            "open" if window is None else str(window),
            _state(history.contents.state(entry.index)),
            number(entry.loss),
            number(entry.divergence),
            str(len(entry.clients)),
            str(int(entry.selected.sum())),
            Text("; ".join(f"{r.client}: {r.reason}" for r in entry.rejected) or "-"),
            *((f"{entry.began:%Y-%m-%d %H:%M:%S}" if entry.began else "-",) if timed else ()),
        )
    return table


def _state(state: str) -> Text:
    return Text(state, style={"kept": "green", "pending": "yellow"}.get(state, "dim"))


def _clients(clients: Sequence[ClientSummary], everything: bool) -> FittedTable:
    table = FittedTable("Clients", "client", "rounds", "selected", "rejected", "mean norm", "mean cosine")
    for c in _some(clients, everything, table):
        cells = (str(c.rounds), str(c.selected), str(c.rejected), number(c.mean_norm), number(c.mean_cosine))
        table.add_row(Text(c.client), *cells)
    return table


def _some(rows: Sequence[Row], everything: bool, table: FittedTable) -> Iterable[Row]:
    if everything or len(rows) <= LONGEST:
        return rows
    table.caption = f"the first and last {LONGEST // 2} of {len(rows)}; --all shows every row"
    return [*rows[: LONGEST // 2], *rows[-LONGEST // 2 :]]


def bytes_line(sizes: Mapping[str, int], kept: int) -> Text:
    """Return the sizes on disk in one line."""
    return Text(
        f"On disk: {size(sizes['total'])} (ledger {size(sizes['ledger'])}, "
        f"snapshots {size(sizes['snapshots'])}, {kept} kept rounds)"
    )


def plans_table(plans: Mapping[str, Plan]) -> FittedTable:
    """Return the decisions of several plans, one column per plan."""
    table = FittedTable("Rollback", Column("", prose=True), *(Column(name, prose=True) for name in plans))
    rows: list[tuple[str, list[str]]] = [
        ("evidence, rule, β", [f"{p.evidence}, {p.rule}, {p.beta:g}" for p in plans.values()]),
        *_undetected(plans.values()),
        *_since(plans.values()),
        ("roll back to round", [f"{p.rollback_round} (record {p.index})" for p in plans.values()]),
        ("poison left in it", [_left(p) for p in plans.values()]),
        ("poison S, tolerated Φ there", [_at(p, p.index) for p in plans.values()]),
        ("S, Φ at the next record", [_at(p, p.index + 1) for p in plans.values()]),
        ("model", [p.model[:12] for p in plans.values()]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _left(plan: Plan) -> str:
    return f"{percent(plan.poison_left)} of its movement" if plan.poison_left else "none"


def _since(plans: Iterable[Plan]) -> list[tuple[str, list[str]]]:
    """Return a row with the first malicious round per client, if a plan has any."""
    cells = [", ".join(f"{c}@{plan.since[c]}" for c in sorted(plan.since, key=natural)) for plan in plans]
    return [("malicious since", cells)] if any(cells) else []


def _undetected(plans: Iterable[Plan]) -> list[tuple[str, list[str]]]:
    """Return a row with the number of undetected attackers, if a plan allows for any."""
    counts = [plan.unfound for plan in plans]
    return [("undetected attackers", [str(count) for count in counts])] if any(counts) else []


def _at(plan: Plan, index: int) -> str:
    if index >= len(plan.candidates):
        return "-"
    return f"{number(plan.sensitivity[index])}, {number(plan.threshold[index])}"


def costs_table(costs: Mapping[str, PlannedCost]) -> FittedTable:
    """Return the planned cost of each method for the honest clients."""
    columns = (Column("from round", 1), "rounds with contact", "client rounds", "cost, of full retraining")
    table = FittedTable("Cost of recovery", "method", *columns, Column("", prose=True, name="remark"))
    for name, cost in costs.items():
        if cost.refused:
            table.add_row(name, "-", "-", "-", "-", f"not possible with this history: {cost.refused}")
            continue
        counts = (str(n) for n in (cost.from_round, cost.contact_rounds, cost.client_rounds))
        table.add_row(name, *counts, f"{cost.share_of_retrain:.0%}", cost.remark)
    return table


def shares_table(plans: Mapping[str, Plan]) -> FittedTable:
    """Return each malicious client's share of the sensitivity, one column per plan."""
    table = FittedTable("Share of the poison", "client", *plans)
    for client in sorted(next(iter(plans.values())).malicious, key=natural):
        table.add_row(Text(client), *(f"{p.shares[client]:.1%}" for p in plans.values()))
    return table


def curve_table(plan: Plan, name: str) -> FittedTable:
    """Return S and Φ of every record."""
    table = FittedTable(f"Records, {name}", "record", "round", "S", "Φ", Column("", left=True))
    for j, t in enumerate(plan.candidates):
        mark = (
            "◄ roll back"
            if j == plan.index
            else ("" if plan.sensitivity[j] <= plan.threshold[j] else "S > Φ")
        )
        table.add_row(str(j), str(t), number(plan.sensitivity[j]), number(plan.threshold[j]), mark)
    return table


RANKS = {
    "rounds": 6,
    "history": 5,
    "distance": 4,
    "contact": 3,
    "trigger": 2,
    "seconds": 1,
}  # a narrow terminal drops the column with the largest number first


def methods_table(rows: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return the measurements and the cost of each recovery, one row per method."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "method": lambda r: r["method"],
        "TA": lambda r: _percent(r["ta"]),
        "ASR": lambda r: _percent(r["asr"]),
        "MISR": _misr,
        "trigger": lambda r: _trigger(r.get("trigger")),
        "from round": lambda r: _whole(r["rollback_round"] if rolls_back(r["method"]) else None),
        "rounds": lambda r: _whole(r["rounds"]),
        "contact": lambda r: _whole(r.get("contact_rounds")),
        "client rounds": lambda r: _whole(r["client_rounds"]),
        "seconds": lambda r: f"{r['seconds']:.1f}" if r["seconds"] else "-",
        "history": lambda r: size(r["bytes"]) if r["bytes"] else "-",
        "distance": lambda r: "-" if r["distance"] is None else number(r["distance"]),
    }
    empty = [name for name in ("misr", "trigger") if all(r.get(name) is None for r in rows)]
    shown = [name for name in columns if name.lower() not in empty]
    table = FittedTable("Recovery", *(Column(name, RANKS.get(name, 0)) for name in shown))
    for row in rows:
        table.add_row(*(columns[name](row) for name in shown))
    return table


def _trigger(found: Mapping[str, Any] | None) -> str:
    """Return whether a trigger is planted, and how well the poisoned model's trigger works here."""
    if found is None:
        return "-"
    works = "" if found["lift"] is None else f", works {found['lift']:.0%}"
    return f"class {found['class']}{works}" if found["planted"] else f"none{works}"


CHANCE = "chance"
MISR_NOTE = (
    f"MISR {CHANCE}: examples of the malicious clients are recognised no better than by guessing. "
    "Compare other MISR figures with that of the retrained model."
)


def _misr(row: Mapping[str, Any]) -> str:
    """Return the recall of members, or CHANCE if it is no better than guessing."""
    return CHANCE if row.get("misr_beyond_chance") is False else _percent(row["misr"])


def misr_note(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return a note on how to read MISR, if it was measured."""
    return [Text(MISR_NOTE, style="dim")] if any(row["misr"] is not None for row in rows) else []


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def warnings_lines(plans: Mapping[str, Plan]) -> list[Text]:
    """Return each warning once, with the names of its plans."""
    names_by_warning: dict[str, list[str]] = {}
    for name, plan in plans.items():
        for warning in plan.warnings:
            names_by_warning.setdefault(warning, []).append(name)
    return [Text(f"! {', '.join(names)}: {w}", style="yellow") for w, names in names_by_warning.items()]


def number(value: float) -> str:
    """Return a number with four digits; a dash for NaN."""
    return "-" if isnan(value) else f"{value:.4g}"


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
