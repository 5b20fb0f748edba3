"""A history as one line, as HTML for a notebook, or as a pandas data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedcrab.extras import need_extra
from fedcrab.html import html_pairs, html_rows

if TYPE_CHECKING:
    import pandas

    from fedcrab.history.history import History


def in_one_line(history: History) -> str:
    """Return the path and the counts."""
    state = "closed" if history.closed else "open"
    return (
        f"History({str(history.path)!r}, {state}, {len(history.rounds)} rounds, {len(history.kept)} kept, "
        f"{len(history.clients)} clients)"
    )


def as_html(history: History) -> str:
    """Return a table of the history and its last rounds."""
    charter, sizes = history.charter, history.bytes()
    facts = {
        "path": history.path,
        "state": "closed" if history.closed else "open",
        "rounds": f"{len(history.rounds)}, {len(history.kept)} kept",
        "clients": len(history.clients),
        "parameters": f"{charter.layout.size:,}",
        "keeps": charter.selection,
        "bytes": f"{sizes['total']:,}",
    }
    heads = ("round", "state", "loss", "divergence", "clients", "rejected")
    rows = [
        (
            entry.index,
            history.contents.state(entry.index),
            f"{entry.loss:.4g}",
            f"{entry.divergence:.4g}",
            len(entry.clients),
            len(entry.rejected),
        )
        for entry in reversed(history.rounds)
    ]
    return html_pairs("History", facts, below=html_rows(heads, rows))


def as_frame(history: History) -> pandas.DataFrame:
    """Return one row per client and round, rejected answers included."""
    need_extra("pandas", "History.to_frame()")
    import pandas

    rows: list[dict[str, Any]] = []
    for entry in history.rounds:
        round_fields = {
            "round": entry.index,
            "state": history.contents.state(entry.index),
            "loss": entry.loss,
            "divergence": entry.divergence,
            "began": entry.began,
            "ended": entry.ended,
        }
        columns = (entry.clients, entry.examples, entry.norms, entry.cosines, entry.selected)
        for client, examples, norm, cosine, selected in zip(*columns, strict=True):
            measured = {"examples": examples, "norm": norm, "cosine": cosine, "selected": bool(selected)}
            rows.append({**round_fields, "client": client, **measured, "rejected": ""})
        rows += [
            {**round_fields, "client": r.client, "selected": False, "rejected": r.reason}
            for r in entry.rejected
        ]
    names = ("round", "client", "examples", "norm", "cosine", "selected", "rejected", "state")
    return pandas.DataFrame(rows, columns=[*names, "loss", "divergence", "began", "ended"])
