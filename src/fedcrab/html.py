"""Values as small HTML tables, for notebooks. Ids and paths come from strangers: all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

MOST = 30  # rows of a table; more are counted


def html_pairs(title: str, pairs: Mapping[str, object], *, below: str = "") -> str:
    """Names with a value each."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in pairs.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>{below}"


def html_rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under headings; of many, the first ones and how many more there are."""
    cells = [[escape(str(value)) for value in row] for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells[:MOST])
    more = f"<p>{len(cells) - MOST} more</p>" if len(cells) > MOST else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"
