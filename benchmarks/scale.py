"""What a history costs as it grows: in rounds, in participants per round, in parameters. Fitted exponents.

usage: python benchmarks/scale.py [--minutes M] [--table]

One row per size: CPU seconds of the process (threads included; a busy machine changes them little) and bytes.
``record`` is the sum over all rounds; ``open``, ``plan`` and ``detect`` are each the first call in a new
process. Updates share a direction, like those of honest clients; a tenth of the clients sends longer ones
after a third of the training. Every size has its own process. An exponent is the slope of a line through the
logarithms of cost and size: through all sizes, and through the last two, where constant costs matter least.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, read, run

from fedcrab import Compact, Everything, History, Round, Selective, Updates, plan
from fedcrab.detect.ledger import ledger

RESULTS = Path("benchmarks/results/scale.jsonl")
SELECTIONS = {"selective": Selective(), "compact": Compact(), "everything": Everything()}
COSTS = {"record": "record, s", "open": "open, s", "plan": "plan, s", "detect": "detect, s"}
BYTES = {"ledger": "ledger, bytes", "snapshots": "snapshots, bytes"}
# Of each trial: participants, rounds, parameters, what is kept; and which of them grows.
TRIALS: dict[str, tuple[str, list[tuple[int, int, int, str]]]] = {
    "rounds": ("rounds", [(50, r, 2000, "selective") for r in (125, 250, 500, 1000)]),
    "participants, exact": ("participants", [(n, 8, 2000, "selective") for n in (65, 125, 250, 500)]),
    "participants, sketched": (
        "participants",
        [(n, 8, 2000, "selective") for n in (1250, 2500, 5000)],
    ),
    "parameters": (
        "parameters",
        [(8, 6, d, "selective") for d in (10**5, 4 * 10**5, 16 * 10**5, 64 * 10**5)],
    ),
    "parameters, compact": ("parameters", [(8, 6, d, "compact") for d in (10**5, 4 * 10**5, 16 * 10**5)]),
    "parameters, everything": (
        "parameters",
        [(8, 6, d, "everything") for d in (10**5, 4 * 10**5, 16 * 10**5)],
    ),
    "large": ("parameters", [(4, 3, d, "selective") for d in (25 * 10**6, 10**8)]),
    "long": ("rounds", [(1000, r, 2000, "selective") for r in (100, 2000)]),
    "wide": ("participants", [(5000, 100, 2000, "selective")]),
}


def recorded(place: Path, participants: int, rounds: int, parameters: int, kept: str) -> dict[str, Any]:
    """Record a training; CPU seconds and bytes."""
    rng, model = np.random.default_rng(0), np.zeros(parameters, np.float32)
    history = History.create(place, model, initial_loss=2.3, selection=SELECTIONS[kept], seed=0)
    clients = tuple(f"{i:06}" for i in range(participants))
    weights = rng.integers(1, 999, participants).astype(np.float64)
    own = rng.standard_normal((participants, parameters), dtype=np.float32)
    spent = 0.0
    for t in range(rounds):
        vectors = np.roll(own, 7 * t + 1, axis=1)
        vectors += rng.standard_normal(parameters, dtype=np.float32)
        vectors[: participants // 10] *= 1.5 if 3 * t > rounds else 1.0
        step = (weights / weights.sum()).astype(np.float32) @ vectors
        made = Round(t, model, Updates(clients, vectors, weights), step, 2.3 * 0.99**t, float(rng.random()))
        spent -= time.process_time()
        history.record(made)
        spent += time.process_time()
        model = model + step
    spent -= time.process_time()
    history.close()
    return {"record": spent + time.process_time(), **history.bytes()}


def used(place: Path) -> dict[str, float]:
    """Return the CPU seconds of opening, planning and detecting, and the additional peak memory."""
    before = _peak()
    marks = [time.process_time()]
    history = History.open(place)
    marks.append(time.process_time())
    bad = set(history.clients[: min(5, len(history.clients) // 2)])
    plan(history, bad)
    marks.append(time.process_time())
    ledger(history)
    marks.append(time.process_time())
    spent = dict(zip(("open", "plan", "detect"), np.diff(marks).tolist(), strict=True))
    return {**spent, "memory": _peak() - before}


def _peak() -> int:
    """The largest resident set so far, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


def measured(participants: int, rounds: int, parameters: int, kept: str) -> dict[str, Any]:
    """Return one row; one process records the history, another uses it."""
    sizes = {"participants": participants, "rounds": rounds, "parameters": parameters, "kept": kept}
    with tempfile.TemporaryDirectory(prefix=".work-", dir=".") as place:
        tasks = (["record", *map(str, sizes.values())], ["use"])
        for task, *arguments in tasks:
            command = [sys.executable, __file__, f"--{task}", f"{place}/h", *arguments]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            sizes |= json.loads(found.stdout)
    return sizes


def cells() -> Iterator[Cell]:
    for name, (_, sizes) in TRIALS.items():
        for size in sizes:
            key = f"{size[0]} × {size[1]} × {size[2]} {size[3]}"
            yield name.replace(", ", "-"), key, lambda size=size: measured(*size)


def exponent(grown: list[float], cost: list[float]) -> float:
    """The slope of log cost over log size."""
    return float(np.polyfit(np.log(grown), np.log(cost), 1)[0])


def table() -> str:
    """Every row, and below each trial its exponents."""
    names = COSTS | BYTES
    lines = [
        "| trial | participants | rounds | parameters | " + " | ".join(names.values()) + " | memory, MB |"
    ]
    lines.append("|---" * (len(names) + 5) + "|")
    for name, (grows, sizes) in TRIALS.items():
        found = read(RESULTS, name.replace(", ", "-"))
        rows = [found[k] for k in (f"{a} × {b} × {c} {d}" for a, b, c, d in sizes) if k in found]
        for row in rows:
            shape = f"{row['participants']:,} | {row['rounds']:,} | {row['parameters']:,}"
            costs = " | ".join(f"{row[c]:.3g}" for c in COSTS)
            sizes_of = " | ".join(f"{row[b]:,}" for b in BYTES)
            lines.append(f"| {name} | {shape} | {costs} | {sizes_of} | {row['memory'] / 1e6:.0f} |")
        for what, some in (("over all", rows), ("at the end", rows[-2:])):
            if len(rows) > 2:
                slopes = (exponent([r[grows] for r in some], [r[c] for r in some]) for c in names)
                told = " | ".join(f"**{round(slope, 2) + 0.0:.2f}**" for slope in slopes)  # no -0.00
                lines.append(f"| *exponent in {grows}, {what}* | | | | {told} | |")
    return "\n".join(lines)


def main() -> None:
    task, *arguments = sys.argv[1:] or [""]
    if task == "--record":
        place, *sizes, kept = arguments
        print(json.dumps(recorded(Path(place), *map(int, sizes), kept)))
    elif task == "--use":
        print(json.dumps(used(Path(arguments[0]))))
    else:
        run(__doc__, RESULTS, cells, table)


if __name__ == "__main__":
    main()
