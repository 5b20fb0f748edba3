"""A detection as a table with bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedcrab.detect import Detection
from fedcrab.named import NO_SIGN, SUSPECTS
from fedcrab.report.tables import number
from fedcrab.types import natural

WIDTH = 24  # of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST = 60  # clients shown unless all are asked for; suspects are always shown


def detection_tables(detection: Detection, *, everything: bool = False) -> Sequence[RenderableType]:
    """Every client's score as a bar, the suspects with their reasons, and the judgement in one line."""
    table = Table(title="Clients", title_justify="left", title_style="bold", header_style="bold")
    for name in ("client", "score", "", "sure", "because of"):
        table.add_column(name, justify="right" if name in ("score", "sure") else "left", overflow="fold")
    ranked = sorted(detection.scores, key=lambda c: (c not in detection.suspicions, natural(c)))
    shown = ranked if everything else ranked[: max(LONGEST, len(detection.suspicions))]
    most = max(detection.scores.values(), default=0.0)
    for client in shown:
        _add(table, detection, client, most)
    if len(shown) < len(ranked):
        table.caption = f"{len(shown)} of {len(ranked)}; --all shows every one"
    return [table, _judgement(detection), *(Text(f"! {note}", style="yellow") for note in detection.notes)]


def _add(table: Table, detection: Detection, client: str, most: float) -> None:
    score, found = detection.scores[client], detection.suspicions.get(client)
    style = "red" if found else ""
    cells = (Text(client), number(score), Text(bar(score, most), style=style))
    table.add_row(*cells, f"{found.confidence:.1%}" if found else "", found.reason if found else "")


def bar(value: float, most: float) -> str:
    """A bar of up to WIDTH characters, to an eighth of one."""
    eighths = round(8 * WIDTH * value / most) if most > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _judgement(detection: Detection) -> Text:
    seen = f"{detection.detector}, {detection.rounds} rounds"
    if detection.attack:
        return Text(f"{SUSPECTS} {', '.join(detection.suspects)}", no_wrap=True)  # a program may read it
    return Text(f"{NO_SIGN} ({seen}; the clearest sign has {detection.strength:.2f} of what would be one)")
