"""A fork server with the fault shim in it: one child records under a fault, another looks at what is left.

Run as a process of its own; reads one JSON request, prints one JSON answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torture.faults import ERRORS, Kind, Mode
from torture.trial import Trial


def main() -> None:
    request = json.load(sys.stdin)
    trial = Trial(Path(request["directory"]), request["selection"])
    fault, _, detail = request["fault"].partition(":")
    other = REQUESTS.get(fault)
    answer = other(trial, detail, request) if other else faulted(trial, fault, detail, request)
    print(json.dumps(answer))


def _strided(total: int, request: dict[str, Any]) -> list[int]:
    return [n for n in range(1, total + 1) if n % request["stride"] == request["offset"] % request["stride"]]


def faulted(trial: Trial, fault: str, detail: str, request: dict[str, Any]) -> dict[str, Any]:
    total = trial.count()
    return {"operations": total, "points": list(trial.points(fault, detail, _strided(total, request)))}


def power(trial: Trial, loss: str, request: dict[str, Any]) -> dict[str, Any]:
    operations = trial.operations(Mode.NONE, 0, 0)
    points = set(_strided(len(operations), request))
    return {"operations": len(operations), "points": list(trial.power_losses(operations, loss, points))}


def power_after_error(trial: Trial, loss: str, request: dict[str, Any]) -> dict[str, Any]:
    """Forcing fails for a while, and what was not forced is forgotten; then the power goes."""
    undisturbed = [o for o in trial.operations(Mode.NONE, 0, 0) if o.kind is not Kind.MARK]
    forced = [n for n, o in enumerate(undisturbed, 1) if o.kind is Kind.SYNC]
    found = []
    for n in _strided(len(forced), request):
        operations = trial.operations(Mode.LASTING, forced[n - 1], ERRORS["EIO"])
        first = next(i for i, o in enumerate(operations) if o.kind is Kind.SYNC and o.error)
        points = set(range(first, min(first + 100, len(operations))))
        found += [
            {**p, "point": [forced[n - 1], p["point"]]} for p in trial.power_losses(operations, loss, points)
        ]
    return {"operations": len(undisturbed), "points": found}


def log(trial: Trial, _detail: str, _request: dict[str, Any]) -> dict[str, Any]:
    """What the recording does, in its order."""
    operations = trial.operations(Mode.NONE, 0, 0)
    return {"operations": len(operations), "points": [[o.kind.name, o.path] for o in operations]}


REQUESTS = {"power": power, "power-after-error": power_after_error, "log": log}


if __name__ == "__main__":
    main()
