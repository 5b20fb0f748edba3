"""What recording and planning cost, each figure beside its limit, in one interleaved run.

usage: python benchmarks/history.py [small] [memory] [cheap] [stalled] [long] [instant] [wide]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcrab import PRESETS, Everything, History, Round, Selective, Updates, plan
from fedcrab.report.tables import size

CLIENTS, PARAMETERS, ROUNDS = 20, 10**6, 40
LONG = 10_000  # rounds of the long training; the short one has a hundredth of them


def updates(rng: np.random.Generator, clients: int, parameters: int) -> Updates:
    """Return updates that share a direction, like those of honest clients."""
    shared = rng.standard_normal(parameters, dtype=np.float32)
    rows = rng.standard_normal((clients, parameters), dtype=np.float32)
    rows += shared
    return Updates(tuple(f"{i:04}" for i in range(clients)), rows, rng.integers(1, 999, clients) * 1.0)


def rounds(count: int, clients: int, parameters: int, *, fall: float = 0.97):
    """Yield a training of ``count`` rounds; its loss falls by the factor ``fall`` per round."""
    rng = np.random.default_rng(0)
    model = np.zeros(parameters, np.float32)
    for index in range(count):
        sent = updates(rng, clients, parameters)
        step = (sent.weights / sent.weights.sum()).astype(np.float32) @ sent.vectors
        yield Round(index, model, sent, step, 2.3 * fall ** (index + 1), float(rng.exponential()))
        model = model + step


def create(path: Path, parameters: int, **settings: object) -> History:
    return History.create(path, np.zeros(parameters, np.float32), initial_loss=2.3, seed=0, **settings)


def small(place: Path) -> list[tuple[str, str, str]]:
    """Bytes of both selections over the same training, and the decision with all vectors."""
    histories = {"selective": create(place / "s", PARAMETERS)}
    histories["everything"] = create(place / "e", PARAMETERS, selection=Everything())
    for r in rounds(ROUNDS, CLIENTS, PARAMETERS):
        for history in histories.values():
            history.record(r)
    for history in histories.values():
        history.close()
    ours, theirs = (histories[name].bytes()["total"] for name in ("selective", "everything"))
    vectors = [histories["everything"].updates(t) for t in range(ROUNDS)]
    found = plan(histories["selective"], {"0003", "0007"})
    by_vectors = [decision_by_vectors(vectors, found.candidates, {"0003", "0007"})]
    same = "same" if np.allclose(by_vectors, [found.sensitivity], rtol=1e-6) else "DIFFERENT"
    return [
        ("bytes, Selective", size(ours), ""),
        ("bytes, Everything", size(theirs), ""),
        ("Everything / Selective", f"{theirs / ours:.1f}", "at least 30"),
        ("S from the ledger and from all vectors", same, "same to 1e-6"),
    ]


def decision_by_vectors(vectors: list[Updates], candidates: tuple[int, ...], bad: set[str]) -> list[float]:
    """S(j) by plain means over full vectors."""
    moved = []
    for sent in vectors:
        everyone = np.average(sent.vectors.astype(np.float64), axis=0, weights=sent.weights)
        honest = sent.without(bad)
        theirs = np.average(honest.vectors.astype(np.float64), axis=0, weights=honest.weights)
        moved.append(float(np.linalg.norm(everyone - theirs)))
    return [sum(moved[:t]) for t in candidates]


def memory(place: Path) -> list[tuple[str, str, str]]:
    """Peak memory above the round's own updates, in vectors, against the pending rounds."""
    history = create(place / "m", PARAMETERS, selection=Selective(max_window=6, alpha=0.9))
    worst = (0.0, 0.0, 0)
    made = list(rounds(8, CLIENTS, PARAMETERS))
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    for r in made:
        tracemalloc.reset_peak()
        pending = len(history.contents.pending) + 1
        history.record(r)
        peak = (tracemalloc.get_traced_memory()[1] - base) / (4 * PARAMETERS)
        worst = max(worst, (peak / (2 * pending + 2), peak, pending))
    tracemalloc.stop()
    history.close()
    share, peak, pending = worst
    return [
        ("peak vectors while recording", f"{peak:.2f}", f"at most {2 * pending + 2} with {pending} pending"),
        ("peak / allowed, worst round", f"{share:.2f}", "at most 1"),
    ]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write_synced(path: Path, vector: np.ndarray) -> None:
    with path.open("wb") as file:
        file.write(memoryview(vector))
        file.flush()
        os.fsync(file.fileno())


def gram(vectors: np.ndarray) -> np.ndarray:
    exact = vectors.astype(np.float64)
    return exact @ exact.T


def cheap(place: Path, fall: float = 0.97) -> list[tuple[str, str, str]]:
    """Recording a round against one write, one Gram product and one hash, interleaved."""
    history = create(place / "c", PARAMETERS)
    recording, parts, ratios = [], {"write": [], "gram": [], "hash": []}, []
    for r in rounds(25, CLIENTS, PARAMETERS, fall=fall):
        one = {
            "write": timed(lambda r=r: write_synced(place / "model", r.start)),
            "gram": timed(lambda r=r: gram(r.updates.vectors)),
            "hash": timed(lambda r=r: [hashlib.sha256(row).digest() for row in r.updates.vectors]),
        }
        ours = timed(lambda r=r: history.record(r))
        for name, seconds in one.items():
            parts[name].append(seconds)
        recording.append(ours)
        ratios.append(ours / sum(one.values()))
    history.close()
    rows = [(f"{name}, ms", f"{1e3 * median(values):.1f}", "") for name, values in parts.items()]
    return [
        *rows,
        ("recording a round, ms", f"{1e3 * median(recording):.1f}", ""),
        ("recording / (write + gram + hash)", f"{median(ratios):.2f}", "at most 1.3"),
    ]


def stalled(place: Path) -> list[tuple[str, str, str]]:
    """The same with a loss that does not fall, so that windows have their maximum length."""
    return cheap(place, fall=1.0)


def long(place: Path) -> list[tuple[str, str, str]]:
    """Recording the 10,000th round beside the 100th, in turns, and the growth of a history in memory."""
    small, turns = {"clients": 3, "parameters": 100}, 200
    lengths = {"young": LONG // 100, "old": LONG}
    histories = {name: create(place / name, small["parameters"]) for name in lengths}
    trainings = {name: rounds(length + turns, **small) for name, length in lengths.items()}
    tracemalloc.start()
    for name, length in lengths.items():
        for _ in range(length - turns if name == "old" else length // 2):
            histories[name].record(next(trainings[name]))
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(turns if name == "old" else length - length // 2):
            histories[name].record(next(trainings[name]))
    grown = (tracemalloc.get_traced_memory()[0] - before) / turns
    tracemalloc.stop()
    times = {name: [] for name in lengths}
    for _ in range(turns):
        for name, history in histories.items():
            r = next(trainings[name])
            times[name].append(timed(lambda h=history, r=r: h.record(r)))
    for history in histories.values():
        history.close()
    old, young = (1e3 * median(times[name]) for name in ("old", "young"))
    row = histories["old"].bytes()["ledger"] / LONG
    return [
        (f"recording after {LONG // 100} rounds, ms", f"{young:.2f}", ""),
        (f"recording after {LONG} rounds, ms", f"{old:.2f}", ""),
        ("the later / the earlier", f"{old / young:.2f}", "1: constant"),
        ("growth of memory per round, bytes", f"{grown:.0f}", f"below the ledger's {row:.0f}"),
    ]


def instant(place: Path) -> list[tuple[str, str, str]]:
    """Planning after opening, for a long history and for a wide one."""
    rows = []
    for count, clients, limit in ((1000, 20, 0.2), (100, 1000, 3.0)):
        path = place / f"i{count}"
        with create(path, 2000) as history:
            for r in rounds(count, clients, 2000):
                history.record(r)
        history = History.open(path)
        bad = set(history.clients[:: max(clients // 5, 4)])
        others = set(history.clients[1 :: max(clients // 5, 4)])
        first = timed(lambda h=history, b=bad: plan(h, b))
        again = median(timed(lambda h=history, b=others: plan(h, b)) for _ in range(5))
        beta = median(timed(lambda h=history, b=others: plan(h, b, 0.7)) for _ in range(5))
        paper = timed(lambda h=history, b=bad: plan(h, b, **PRESETS["paper"]))
        name = f"{clients} clients × {count} rounds"
        rows += [
            (f"{name}: opening, s", f"{timed(lambda p=path: History.open(p)):.2f}", ""),
            (f"{name}: first plan, s", f"{first:.3f}", f"under {limit}"),
            (f"{name}: first plan, paper, s", f"{paper:.3f}", f"under {limit}"),
            (f"{name}: other clients, ms", f"{1e3 * again:.1f}", "milliseconds"),
            (f"{name}: other beta, ms", f"{1e3 * beta:.1f}", "milliseconds"),
        ]
    return rows


def wide(place: Path) -> list[tuple[str, str, str]]:
    """Rounds above the limit are sketched: ledger bytes per participant, and the error of the decision."""
    rows, per_client = [], []
    for clients in (2500, 5000):
        with create(place / f"w{clients}", 2000) as history:
            for r in rounds(4, clients, 2000):
                history.record(r)
        per_client.append(history.bytes()["ledger"] / clients / 4)
        rows.append((f"{clients} clients: ledger bytes per client-round", f"{per_client[-1]:.0f}", ""))
    rows.append(("5,000 / 2,500", f"{per_client[1] / per_client[0]:.3f}", "1: linear"))
    plans = []
    for limit in (400, 1000):
        path = place / f"w{limit}"
        with create(path, 2000, gram_limit=limit) as history:
            for r in rounds(10, 500, 2000):
                history.record(r)
        plans.append(plan(history, set(history.clients[:50])))
    sketched, exact = plans
    error = max(abs(a / b - 1) for a, b in zip(sketched.sensitivity[1:], exact.sensitivity[1:], strict=True))
    rows.append(("500 clients: largest error of S, sketched", f"{error:.1%}", "standard error 4.4%"))
    return rows


def main() -> None:
    trials = {f.__name__: f for f in (small, memory, cheap, stalled, long, instant, wide)}
    table = Table("trial", "what", "measured", "wanted")
    for name in sys.argv[1:] or trials:
        place = Path(tempfile.mkdtemp(dir="."))
        try:
            for row in trials[name](place):
                table.add_row(name, *row)
        finally:
            shutil.rmtree(place)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
