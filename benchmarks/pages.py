"""Write the tables of the last runs into docs/detection.md and docs/adaptive.md, each after its marker.

usage: python benchmarks/pages.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import adaptive
import detection
import sides
import undetected_plans

TABLES: dict[str, Callable[[], str]] = {
    "digits": lambda: detection.detection_table("digits"),
    "mnist": lambda: detection.detection_table("mnist"),
    "step": lambda: detection.detection_table("step"),
    "alarms": detection.alarms_table,
    "sides": sides.table,
    "mistakes": detection.mistakes_table,
    "adaptive": adaptive.recovery_table,
    "found": adaptive.found_table,
    "unfound": undetected_plans.table,
    "supposed": undetected_plans.supposed_table,
}


def main() -> None:
    for page in (Path("docs/detection.md"), Path("docs/adaptive.md")):
        text = page.read_text()
        for name, table in TABLES.items():
            place = re.compile(rf"(<!-- {name} -->\n\n)(\|.*\n)*\n?")
            text = place.sub(lambda found, t=table: f"{found[1]}{t()}\n\n", text)
        page.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
