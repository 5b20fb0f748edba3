"""The table of ``forensics.py``: each figure beside its goal, with the number of trainings.

Rankings, names and recoveries of backdoors come from seeds from PRESENT on: earlier seeds were investigated
with an earlier rule. The audit did not change, so its figures, the onset, and all figures of clean trainings
come from every seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORKS, CLOSE, MASK = 0.8, 0.05, 0.5
OTHERS = (("cifar10", "mlp"), ("mnist", "cnn"), ("fashion-mnist", "cnn"), ("cifar10", "resnet"))
BEGIN, END = "<!-- forensics table -->\n", "<!-- end of the forensics table -->\n"
PRESENT = 10000  # the first seed with the present naming rule
Row = dict[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Return markdown: what is measured, the goal, the figure, and the number of cases."""
    lines = ["| what | goal | measured | of |", "|---|---|---|---|"]
    attacked = [row for row in rows if row["kind"] in ("patch", "boosted", "dba")]
    working, clean = [r for r in attacked if r["success"] >= WORKS], [r for r in rows if r["kind"] == "clean"]

    def add(what: str, goal: str, figure: str, count: int) -> None:
        lines.append(f"| {what} | {goal} | {figure if count else '-'} | {count} |")

    def share(what: str, goal: str, hits: Iterable[bool]) -> None:
        told = [*hits]
        add(what, goal, f"{100 * sum(told) / max(len(told), 1):.1f}% ({sum(told)})", len(told))

    def mean(what: str, goal: str, values: Iterable[float | None]) -> None:
        known = [value for value in values if value is not None]
        add(what, goal, f"{np.mean(known):.3f} (least {np.min(known):.2f})" if known else "-", len(known))

    share("attack works (success over 80%)", "", (r["success"] >= WORKS for r in attacked))
    share("audit: flagged with the right class", "95%", (_right(r) for r in working))
    share("audit: clean flagged", "2%", (r["planted"] for r in clean))
    share("picture: half of the mask inside the patch", "80%", (r["inside"] >= MASK for r in working))
    for model in sorted({r["model"] for r in rows}, key=("mlp", "cnn", "resnet").index):
        some = [r for r in working if r["model"] == model]
        share(f"audit, {model}: flagged with the right class", "", (_right(r) for r in some))
        share(f"audit, {model}: clean flagged", "", (r["planted"] for r in clean if r["model"] == model))
        share(f"picture, {model}", "", (r["inside"] >= MASK for r in some))
    every_right = [r for r in working if _right(r)]
    attacked, working, right = (
        [r for r in some if r["seed"] >= PRESENT] for some in (attacked, working, every_right)
    )
    for spread in ("iid", "dirichlet-0.5", "dirichlet-0.1"):
        mean(f"who, {spread}: AUC", "0.98", (r["auc"] for r in right if r["spread"] == spread))
    weak = [r for r in attacked if r["success"] < WORKS]
    mean("who, attacks that hardly work (below 80%): AUC", "", (r["auc"] for r in weak))
    share(
        "audit and who together: right class, or attackers named",
        "",
        (_right(r) or bool(r["named"]) for r in working),
    )
    share("who, each attacker: named (recall)", "90%", _named_attackers(working))
    share("who, each name: an attacker (precision)", "98%", _names(attacked))
    for what, kinds in (("without DBA", ("patch", "boosted")), ("of DBA", ("dba",))):
        share(f"who, {what} (recall)", "90%", _named_attackers(r for r in working if r["kind"] in kinds))
    for spread in ("iid", "dirichlet-0.5", "dirichlet-0.1"):
        share(f"who, {spread} (recall)", "90%", _named_attackers(r for r in working if r["spread"] == spread))
    for data, model in OTHERS:
        some = [r for r in working if (r["data"], r["model"]) == (data, model)]
        share(f"who, {model} on {data} (recall)", "90%", _named_attackers(some))
    share("who, each suspect of `detect`: an attacker", "", _names(attacked, "suspects"))
    share("who, each attacker: a suspect of `detect`", "", _named_attackers(working, "suspects"))
    both = [r for r in right if r.get("auc_exact") is not None]
    gaps = [abs(r["auc"] - r["auc_exact"]) for r in both]
    add(
        "who: AUC from 4 bits beside exact, mean difference",
        "0.01",
        f"{np.mean(gaps):.4f}" if gaps else "-",
        len(gaps),
    )
    share("clean: anybody named for a trigger", "0", (bool(r["named"]) for r in clean))
    share(
        "clean: named by the rule alone, per class that is tried",
        "",
        (n > 0 for r in clean for n in r["unflagged"]),
    )
    share(
        "clean: named for ten natural mistakes that are brought",
        "0",
        (r["mistakes_named"] > 0 for r in clean),
    )
    share("clean: anybody suspected by `detect`", "0", (bool(r["suspects"]) for r in clean))
    share("clean: suspected by the ledger's detector alone", "", (bool(r["ledger"]) for r in clean))
    share("clean: somebody stands apart, not named", "", (bool(r["apart"]) for r in clean))
    for kind in ("class-flip", "subgroup"):
        own = [r for r in rows if r["kind"] == kind]
        mean(f"brought, {kind}: AUC", "0.95", (r["auc"] for r in own))
        mean(
            f"brought, {kind} that works (over 30%): AUC",
            "0.95",
            (r["auc"] for r in own if r["success"] >= 0.3),
        )
        changed = [r.get("changed_auc") for r in own]
        mean(f"brought, {kind}, examples that the attack changed: AUC", "0.95", changed)
    share(
        "brought: each name an attacker",
        "",
        (n in r["malicious"] for r in rows if r["kind"] in ("class-flip", "subgroup") for n in r["named"]),
    )
    share("when taught: median onset of the named within 2 kept models", "90%", map(_since, every_right))
    known = [r for r in every_right if "lifts" in r and r["true_when"] is not None]
    share("when it works: within 2 kept models", "90%", map(_in_time, known))
    for model in ("mlp", "cnn", "resnet"):
        share(f"when it works, {model}", "", (_in_time(r) for r in known if r["model"] == model))
    for spread, goal in (("iid", "95%"), ("dirichlet-0.5", "90%"), ("dirichlet-0.1", "75%")):
        share(
            f"end to end, {spread}: within 5 points of retraining",
            goal,
            (_clean_again(r) for r in working if r["spread"] == spread),
        )
    share("end to end, attacks that hardly work", "", (_clean_again(r) for r in weak))
    for data, model in OTHERS:
        some = [r for r in working if (r["data"], r["model"]) == (data, model)]
        share(f"end to end, {model} on {data}", "", (_clean_again(r) for r in some))
    for data, model in (("mnist", "mlp"), *OTHERS):
        cpu = [r["cpu"] for r in working if (r["model"], r["data"]) == (model, data)]
        what = f"what `detect` takes, {model} on {data}: seconds of one core (median)"
        add(what, "", f"{np.median(cpu):.1f}" if cpu else "-", len(cpu))
    return "\n".join(lines) + "\n"


def _right(row: Row) -> bool:
    return bool(row["planted"] and row["class"] == row["target"])


def _named_attackers(rows: Iterable[Row], which: str = "named") -> list[bool]:
    """Return, per attacker, whether it is named; nobody is named if the model is not flagged."""
    return [client in row[which] for row in rows for client in row["malicious"]]


def _names(rows: Iterable[Row], which: str = "named") -> list[bool]:
    return [client in row["malicious"] for row in rows for client in row[which]]


def _since(row: Row) -> bool:
    """Return whether the named clients taught it since the attack started; False if nobody is named."""
    if not row.get("onsets"):
        return False
    found, true = (np.searchsorted(row["kept"], t, "right") for t in (np.median(row["onsets"]), row["start"]))
    return bool(abs(int(found) - int(true)) <= 2)


def _in_time(row: Row) -> bool:
    if row["when"] is None:
        return False
    places = {t: i for i, t in enumerate(row["kept"])}
    return abs(places[row["when"]] - places[row["true_when"]]) <= 2


def _clean_again(row: Row) -> bool:
    return bool(row["recovered"] <= (row["retrained"] or 0.0) + CLOSE)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Put the table into a document, between its two marks."""
    text = path.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")
