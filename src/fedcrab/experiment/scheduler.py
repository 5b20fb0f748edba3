"""Run trainings in parallel on a ``concurrent.futures`` executor until every cell is finished.

By default each training has its own process. If there are at least as many trainings as cores, each gets
one core; a single training gets all cores. Two trainings on one core each are faster than one on two, because
the server's own work between rounds then keeps only one core waiting.

On a Dask cluster (extra ``cluster``) each worker computes one training at a time in a temporary directory and
sends its cells back over the network. If a worker dies, its training starts again on another one.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, cast
from uuid import uuid4

from fedcrab.errors import ConfigError, FedcrabError, shown
from fedcrab.experiment.cell_cache import CellCache, parse_line
from fedcrab.experiment.config import Config
from fedcrab.experiment.matrix import Cell
from fedcrab.experiment.processes import Processes, tell_parent
from fedcrab.experiment.suite import MethodChoice, resolve
from fedcrab.simulate.machine import cores

ENDED = "ended"
TIMEOUT = 10  # seconds for a cluster to answer
_ONE_AT_A_TIME = threading.Lock()  # a worker with several threads still computes one training at a time
Tables = list[dict[str, Any]]


@dataclass(frozen=True)
class JobEvent:
    """What happened in a training: progress, a cell that finished or failed, or the end.

    The first event belongs to no training; it says how many trainings run in parallel.
    """

    training: str
    table: dict[str, Any] = field(default_factory=dict)


def trainings(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells grouped by training, each cell once."""
    groups: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training, {}).setdefault(cell.key, cell)
    return {training: list(group.values()) for training, group in groups.items()}


def request_of(
    cells: Sequence[Cell], store: CellCache, *, workers: int, keep: bool, topic: str = ""
) -> dict[str, Any]:
    """Return a training and its cells as plain values; ``topic`` is for machines without this directory."""
    first = cells[0]
    return {
        "config": first.config.to_json(),
        "membership": first.membership,
        "methods": [(cell.choice.model_dump(mode="json"), cell.method.label) for cell in cells],
        "there": [cell.key for cell in cells if store.has_result(cell.key)],
        "results": "" if topic else str(store.results.absolute()),
        "suite": store.suite,
        "workers": workers,
        "keep": keep,
        "topic": topic,
    }


def cells_of(request: dict[str, Any]) -> list[Cell]:
    """Return the cells in a request."""
    config, found = Config.from_json(request["config"]), list[Cell]()
    for table, label in request["methods"]:
        choice = MethodChoice(**{**table, "label": label})
        found.append(Cell(config, resolve(choice), choice, request["membership"]))
    return found


def compute_request(request: dict[str, Any]) -> tuple[Tables, list[bytes]]:
    """Compute the missing cells of a training; return what finished or failed, and the results to write."""
    from fedcrab.experiment.compute import compute

    outcomes: Tables = []
    cells, there = cells_of(request), frozenset(request["there"])
    tell = _teller(request["topic"], cells[0].training)

    def note(table: dict[str, Any]) -> None:
        if "doing" not in table:
            outcomes.append(table)
        tell(table)

    with _ONE_AT_A_TIME, _results(request["results"]) as results:
        store = CellCache(results, request["suite"])
        try:
            compute(cells, store, note, workers=request["workers"], keep=request["keep"], there=there)
        except FedcrabError as error:
            note({"failed": None, "why": str(error)})
        found = [store.find(cell.key) for cell in cells] if request["topic"] else []
        return outcomes, [result.line() for result in found if result is not None]


@contextmanager
def _results(path: str) -> Iterator[Path]:
    if path:
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="fedcrab-", ignore_cleanup_errors=True) as place:
        yield Path(place)


def _teller(topic: str, training: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that sends messages to the process or machine that made the request."""
    if not topic:
        return lambda table: tell_parent((training, table))
    import torch
    from distributed import get_worker

    torch.set_num_threads(1)
    worker = get_worker()
    return lambda table: worker.log_event(topic, (training, table))


@dataclass(frozen=True)
class Place:
    """Where trainings are computed."""

    executor: Executor
    side_by_side: int
    workers: int  # worker processes per training; 0: only its own process
    topic: str = ""  # of the messages that a cluster's workers send


@contextmanager
def this_machine(count: int, jobs: int | None, on_event: Callable[[JobEvent], None]) -> Iterator[Place]:
    """Processes for ``count`` trainings; leaving the context ends them."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {jobs}")
    side_by_side = min(jobs or cores(), max(count, 1))
    each = cores() // (jobs or side_by_side)
    executor = Processes(side_by_side, lambda message: on_event(JobEvent(*message)))
    try:
        yield Place(executor, side_by_side, each if each > 1 else 0)
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def dask_cluster(address: str, on_event: Callable[[JobEvent], None]) -> Iterator[Place]:
    """The workers of the Dask scheduler at an address; leaving the context cancels what has not started."""
    from distributed import Client

    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"no Dask scheduler answers at {shown(address)}; give one as HOST:PORT") from error
    topic, executor = f"fedcrab-{uuid4().hex}", client.get_executor(pure=False)
    try:
        client.subscribe_topic(topic, lambda event: on_event(JobEvent(*event[1])))
        count = len(client.scheduler_info(n_workers=-1)["workers"])
        yield Place(cast(Executor, executor), max(count, 1), 0, topic)
        client.unsubscribe_topic(topic)
    finally:
        executor.shutdown(wait=False)
        client.close()


def run_jobs(
    cells: Sequence[Cell],
    store: CellCache,
    *,
    jobs: int | None = None,
    keep: bool = False,
    cluster: str | None = None,
) -> Iterator[JobEvent]:
    """Compute the missing cells and yield events. Leaving the loop ends what is running."""
    groups = [group for group in trainings(cells).values() if not all(store.has_result(c.key) for c in group)]
    news: Queue[JobEvent | tuple[str, Future[Any]]] = Queue()
    with dask_cluster(cluster, news.put) if cluster else this_machine(len(groups), jobs, news.put) as place:
        for group in groups:
            request = request_of(group, store, workers=place.workers, keep=keep, topic=place.topic)
            future = place.executor.submit(compute_request, request)
            future.add_done_callback(partial(_done, news, group[0].training))
        yield JobEvent("", {"side_by_side": place.side_by_side})
        left, reported = len(groups), set[tuple[str, str]]()
        while left:
            item = news.get()
            events = [item] if isinstance(item, JobEvent) else _outcome(*item, store)
            for event in events:
                what = event.training, str(event.table)
                if "doing" in event.table or what not in reported:  # progress and outcome both report a cell
                    reported.add(what)
                    yield event
                left -= ENDED in event.table


def _done(news: Queue[Any], training: str, future: Future[Any]) -> None:
    news.put((training, future))


def _outcome(training: str, future: Future[Any], store: CellCache) -> list[JobEvent]:
    """Return the final events of a training; writes the results that its worker could not write."""
    tables: Tables
    try:
        tables, lines = future.result()
        for line in lines:
            if not store.has_result((result := parse_line(line)).key):
                store.write(result)
    except BrokenExecutor:
        tables = [{"failed": None, "why": "the process of a training ended early"}]
    except CancelledError:
        tables = [{"failed": None, "why": "cancelled, or the cluster does not answer any more"}]
    except Exception as error:  # any error in another process; the other trainings continue
        tables = [{"failed": None, "why": f"{type(error).__name__}: {error}"}]
    return [JobEvent(training, table) for table in [*tables, {ENDED: True}]]
