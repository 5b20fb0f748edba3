"""The result of an audit: as a table, as an image, and as data of the page."""

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
    "mask": "its place (mask)",
    "trigger": "its pattern",
    "example": "an example",
    "stamped": "with the trigger: class {label}",
}


def trigger_facts(history: History, recovered: Path | None = None) -> dict[str, Any] | None:
    """Return the saved result of ``audit`` or ``detect`` for the final model; None if none was saved."""
    head = history.contents.head
    saved = read_audit(recovered, head) if recovered else None
    saved = saved or read_audit(history.path, head)
    final = next((row for row in saved["models"] if row["model"] == "final"), None) if saved else None
    if saved is None or final is None:
        return None
    timeline, pictures = saved["timeline"], saved["pictures"] or {}
    taught: dict[str, Any] = next((t for t in saved["taught"] if t["about"] == "trigger"), {})
    return {
        "planted": final["planted"],
        "label": final["class"],
        "success": final["success"],
        "confidence": final["confidence"],
        "since": timeline["planted"] if timeline else None,
        "lifts": list(zip(timeline["rounds"], timeline["lifts"], strict=True)) if timeline else [],
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
        "unknown": " ".join([*taught.get("notes", []), *saved["notes"]]),
    }


SHADES = " ░▒▓█"


def audit_tables(found: Investigation) -> Sequence[RenderableType]:
    """Return a table of all models, the mask of the first in characters, and who taught it since when."""
    columns = ("model", "class", "size / median", "success", "sure", Column("found", left=True))
    table = FittedTable("Smallest trigger of any class", *columns, "history's trigger")
    for name, audit in found.models.items():
        planted = found.is_planted(name)
        result = Text("planted", style="red") if planted else Text("no trigger")
        confidence = f"{found.sure(name):.1%}" if planted else ""
        success, lift = f"{audit.success[audit.label]:.0%}", f"{found.lifts[name]:.0%}"
        table.add_row(Text(name), str(audit.label), f"{audit.ratio:.2f}", success, confidence, result, lift)
    first = next(iter(found.models.values()))
    lines: list[RenderableType] = [table]
    if found.trigger is not None:
        lines.append(Text(f"Mask of the trigger for class {first.label}:"))
        lines += [Text(row, no_wrap=True) for row in shaded(first.mask)]
    if found.when is not None and found.when.planted is not None:
        lines.append(Text(f"It works in every kept model from round {found.when.planted} on."))
    if found.teachers:
        names = ", ".join(f"{quoted(c)} (from round {t} on)" for c, t in found.teachers.items())
        lines.append(Text(f"Taught by: {names}"))
    return [*lines, *(Text(f"! {note}", style="yellow") for note in first.notes)]


def shaded(mask: NDArray[np.float32]) -> list[str]:
    """Return a mask as lines of text, two characters per pixel."""
    levels = np.clip(np.rint(mask * (len(SHADES) - 1)).astype(int), 0, len(SHADES) - 1)
    rows = ["".join(2 * SHADES[level] for level in row) for row in levels]
    edge = "─" * (2 * mask.shape[1])
    return [f"┌{edge}┐", *(f"│{row}│" for row in rows), f"└{edge}┘"]


def draw_trigger(path: Path, trigger: Inversion, example: NDArray[np.float32]) -> None:
    """Write a PNG with the mask, the pattern, an example, and the example with the trigger."""
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
        f"with the trigger: class {trigger.label}": stamped,
    }
    figure = Figure(figsize=(9, 2.6))
    FigureCanvasAgg(figure)
    for column, (title, values) in enumerate(pictures.items(), 1):
        axes = figure.add_subplot(1, len(pictures), column)
        axes.imshow(_viewable(values), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    with file_errors(f"{path}: the image was not written"):
        figure.savefig(path, dpi=110, format="png")


def _viewable(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an image of shape (height, width) or (height, width, 3), scaled to 0 … 1."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1.0)
    scaled = (values - low) / (high - low)
    return np.asarray(scaled.transpose(1, 2, 0) if len(scaled) == 3 else scaled.mean(axis=0), np.float32)
