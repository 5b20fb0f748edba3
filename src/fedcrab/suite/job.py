"""The process that computes trainings and their cells, one after another.

Each comes as a line on standard input; how it goes leaves as lines on standard output. When the input ends,
whoever started the process is gone or has no more work, and it leaves.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from fedcrab.errors import FedcrabError
from fedcrab.experiment.config import Config
from fedcrab.suite.cells import Cells
from fedcrab.suite.description import MethodChoice
from fedcrab.suite.expansion import Cell
from fedcrab.suite.method import resolve


def request_of(cells: Sequence[Cell], results: Path, *, workers: int, keep: bool) -> str:
    """The line that a job is started with."""
    methods = [(cell.choice.model_dump(mode="json"), cell.method.label) for cell in cells]
    first = cells[0]
    return json.dumps(
        {
            "config": first.config.to_json(),
            "membership": first.membership,
            "methods": methods,
            "results": str(results.absolute()),
            "workers": workers,
            "keep": keep,
        }
    )


def cells_of(request: dict[str, Any]) -> list[Cell]:
    """The cells that a request asks for."""
    config, found = Config.from_json(request["config"]), list[Cell]()
    for table, label in request["methods"]:
        choice = MethodChoice(**{**table, "label": label})
        found.append(Cell(config, resolve(choice), choice, request["membership"]))
    return found


def main() -> None:
    """Do what each line asks for."""
    requests: Queue[str] = Queue()
    threading.Thread(target=_receive, args=[requests], daemon=True).start()
    import torch

    torch.set_num_threads(1)  # the jobs or workers beside it have the other cores
    while True:
        _do(json.loads(requests.get()))
        tell({"ended": True})


def _receive(requests: Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _do(request: dict[str, Any]) -> None:
    from fedcrab.suite.work import compute

    try:
        store = Cells(Path(request["results"]))
        compute(cells_of(request), store, tell, workers=request["workers"], keep=request["keep"])
    except FedcrabError as error:
        tell({"failed": None, "why": str(error)})


def tell(news: dict[str, Any]) -> None:
    """One line to whoever started this."""
    try:
        sys.stdout.write(json.dumps(news) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody listens any more
        os._exit(0)
