"""An audit as a table, as a picture, and as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from fedcrab.detect.saved_audit import read_audit
from fedcrab.history import History
from fedcrab.rollback.malicious import quoted
from fedcrab.terminal_table import Column, FittedTable

if TYPE_CHECKING:  # both need torch
    from fedcrab.audit import Inversion
    from fedcrab.experiment.forensics import Investigation


CAPTIONS = {
    "mask": "where it is (mask)",
    "trigger": "what it paints",
    "example": "an example",
    "stamped": "the same, taken for class {label}",
}


def trigger_facts(history: History, recovered: Path | None = None) -> dict[str, Any] | None:
    """What ``audit`` or ``detect`` kept about the final model, as plain values; None without such a file."""
    head = history.contents.head
    kept = read_audit(recovered, head) if recovered else None
    kept = kept or read_audit(history.path, head)
    final = next((row for row in kept["models"] if row["model"] == "final"), None) if kept else None
    if kept is None or final is None:
        return None
    when, pictures = kept["timeline"], kept["pictures"] or {}
    taught: dict[str, Any] = next((t for t in kept["taught"] if t["about"] == "trigger"), {})
    return {
        "planted": final["planted"],
        "label": final["class"],
        "success": final["success"],
        "confidence": final["confidence"],
        "since": when["planted"] if when else None,
        "lifts": list(zip(when["rounds"], when["lifts"], strict=True)) if when else [],
        "pictures": [
            {
                **{side: pictures[name][side] for side in ("width", "height", "channels")},
                "title": caption.format(label=final["class"]),
                "pixels": {"kind": "u8", "base64": pictures[name]["base64"]},
            }
            for name, caption in CAPTIONS.items()
            if name in pictures
        ],
        "taught": [
            {field: row[field] for field in ("client", "part", "named", "since")}
            for row in taught.get("clients", [])
        ],
        "unknown": " ".join([*taught.get("notes", []), *kept["notes"]]),
    }


SHADES = " ░▒▓█"


def audit_tables(found: Investigation) -> Sequence[RenderableType]:
    """What was found in each model, the mask of the first in characters, and since when it works."""
    columns = ("model", "class", "of the median", "turns", "sure", Column("found", left=True))
    table = FittedTable("Smallest trigger of any class", *columns, "history's trigger")
    for name, audit in found.models.items():
        planted = found.is_planted(name)
        verdict = Text("planted", style="red") if planted else Text("no trigger")
        sure = f"{found.sure(name):.1%}" if planted else ""
        turns, works = f"{audit.success[audit.label]:.0%}", f"{found.lifts[name]:.0%}"
        table.add_row(Text(name), str(audit.label), f"{audit.ratio:.2f}", turns, sure, verdict, works)
    first = next(iter(found.models.values()))
    lines: list[RenderableType] = [table]
    if found.trigger is not None:
        lines.append(Text(f"Where it is, for class {first.label}:"))
        lines += [Text(row, no_wrap=True) for row in shaded(first.mask)]
    if found.when is not None and found.when.planted is not None:
        lines.append(Text(f"It works since the model of round {found.when.planted}."))
    if found.teachers:
        names = ", ".join(f"{quoted(c)} (from round {t} on)" for c, t in found.teachers.items())
        lines.append(Text(f"Taught by: {names}"))
    return [*lines, *(Text(f"! {note}", style="yellow") for note in first.notes)]


def shaded(mask: NDArray[np.float32]) -> list[str]:
    """A mask in characters, two to a pixel."""
    levels = np.clip(np.rint(mask * (len(SHADES) - 1)).astype(int), 0, len(SHADES) - 1)
    rows = ["".join(2 * SHADES[level] for level in row) for row in levels]
    edge = "─" * (2 * mask.shape[1])
    return [f"┌{edge}┐", *(f"│{row}│" for row in rows), f"└{edge}┘"]


def draw_trigger(path: Path, trigger: Inversion, example: NDArray[np.float32]) -> None:
    """A PNG: the mask, what it paints, an example, and the example with it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedcrab.files import file_errors

    shape = trigger.pattern.shape
    image = np.asarray(example[0], np.float32).reshape(shape)
    stamped = trigger.stamp(image[None])[0]
    pictures = {
        "mask": trigger.mask[None],
        "trigger": trigger.mask * trigger.pattern,
        "an example": image,
        f"taken for class {trigger.label}": stamped,
    }
    figure = Figure(figsize=(9, 2.6))
    FigureCanvasAgg(figure)
    for place, (title, values) in enumerate(pictures.items(), 1):
        axes = figure.add_subplot(1, len(pictures), place)
        axes.imshow(_viewable(values), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    with file_errors(f"{path}: the picture is not written"):
        figure.savefig(path, dpi=110, format="png")


def _viewable(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(height, width) or (height, width, 3), from 0 to 1."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1.0)
    scaled = (values - low) / (high - low)
    return np.asarray(scaled.transpose(1, 2, 0) if len(scaled) == 3 else scaled.mean(axis=0), np.float32)
