"""What was planted, since when and who taught it: how often the audit and the attribution are right.

usage: python benchmarks/forensics.py [mlp|cnn|resnet|clean|brought ...] [--minutes M] [--table]

20 clients, 24 rounds, 300 examples a client, 1,000 probe examples. Each training draws its trigger (2 to 6
pixels a side, anywhere, several values), its target and its start (round 0, 4 or 8) by its seed.
Thresholds were set on other trainings: seeds below 100 and from 1000 on. Needs the image sets (FEDCRAB_DATA).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from cells import MEMORY, Cell, fill, read
from incidents import SPREADS, Incident, incident
from numpy.typing import NDArray

from fedcrab.audit import FlatModel, Inversion, invert, taught_examples, taught_trigger, timeline
from fedcrab.audit.attribution import Attribution, weighted
from fedcrab.history import History
from fedcrab.types import Updates

RESULTS = Path("benchmarks/results/forensics")
SEEDS = {"mlp": 7, "clean": 7, "brought": 3, "cnn": 1, "resnet": 1}
DATA = ("mnist", "fashion-mnist", "cifar10")
WORKS = 0.8  # attack success of a backdoor that works


class Quantised:
    """A history whose updates have 4 bits: blocks of 256 numbers, one float16 scale each."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)

    def updates(self, round: int) -> Updates:
        found = self._history.updates(round)
        return replace(found, vectors=quantised(found.vectors))


def quantised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, size = vectors.shape
    blocks = np.zeros((rows, -(-size // 256) * 256), np.float32)
    blocks[:, :size] = vectors
    blocks = blocks.reshape(rows, -1, 256)
    scales = (np.abs(blocks).max(axis=2, keepdims=True) / 7).astype(np.float16).astype(np.float32)
    levels = np.clip(np.round(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)), -7, 7)
    return np.ascontiguousarray((levels * scales).reshape(rows, -1)[:, :size])


def auc(scores: NDArray[np.float64], bad: NDArray[np.bool_]) -> float | None:
    if not bad.any() or bad.all():
        return None
    above = scores[bad][:, None] - scores[~bad][None]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def examine(data: str, model: str, spread: str, fraction: float, kind: str, seed: int) -> dict[str, Any]:
    """One training, audited; of a clean one the attribution of what would be a trigger is measured too."""
    about = incident(data, model, spread, fraction, kind, seed)
    with TemporaryDirectory(dir=MEMORY) as folder:
        row = _examined(about, about.record(Path(folder) / "h"))
    about.setup.close()
    return row


def _examined(about: Incident, history: History) -> dict[str, Any]:
    setup, final = about.setup, history.final_model()
    x, y = setup.probe.examples
    flat = FlatModel(setup.architecture.build(), history.charter.layout)
    row = {"ta": setup.accuracy(final), "success": about.success(final), "start": about.start}
    row |= {"malicious": sorted(setup.attackers.clients), "target": about.target}
    if about.kind in ("class-flip", "subgroup"):
        return _rounded(row | _brought(about, history, flat))
    began = time.perf_counter()
    found = invert(flat.at(final), x, y, classes=setup.dataset.classes)
    row["seconds_audit"] = time.perf_counter() - began
    row |= {"planted": found.planted, "class": found.label, "ratio": found.ratio, "steps": found.steps}
    began = time.perf_counter()
    when = timeline(history, flat, found, x, y)
    detection, parts = taught_trigger(history, flat, found, x, y)
    row["seconds_taught"] = time.perf_counter() - began
    row |= {"when": when.planted, "named": list(detection.suspects), "clearness": parts.clearness}
    row |= _ranked(about, parts, "")
    row |= _ranked(about, taught_trigger(Quantised(history), flat, found, x, y)[1], "_4bit")  # type: ignore[arg-type]
    row["onsets"] = [parts.onset(client) for client in detection.suspects]
    if about.patch is not None:
        row |= _against_truth(about, history, flat, found)
    return _rounded(row)


def _against_truth(about: Incident, history: History, flat: FlatModel, found: Inversion) -> dict[str, Any]:
    """The weight of the mask inside the true patch, and the first model that the true one works in."""
    assert about.patch is not None
    x, y = about.setup.probe.examples
    truth = about.patch.mask(about.setup.dataset.shape)
    others = x[y != about.target]
    stamped = about.patch.stamp(others)
    rounds = [*range(len(history.rounds)), len(history.rounds)]
    rates = []
    for t in rounds:
        model = history.model(t) if t < len(history.rounds) else history.final_model()
        rates.append(float(np.mean(flat.predict(model, stamped) == about.target)))
    works = np.array(rates) >= max(0.5 * rates[-1], 0.25)
    idle = np.flatnonzero(~works)
    since = int(idle[-1]) + 1 if len(idle) else 0
    inside = float(found.mask[truth].sum() / max(float(found.mask.sum()), 1e-9))
    return {"inside": inside, "true_when": since if since < len(rounds) else None}


def _ranked(about: Incident, parts: Attribution, ending: str) -> dict[str, Any]:
    bad = np.array([client in about.setup.attackers.clients for client in parts.clients])
    lowers = weighted(parts.lowers, parts.weights)
    return {
        f"auc{ending}": auc(parts.scores, bad),
        f"auc_contrast{ending}": auc(parts.parts, bad),
        f"auc_lowers{ending}": auc(lowers, bad),
    }


def _brought(about: Incident, history: History, flat: FlatModel) -> dict[str, Any]:
    """Ten test examples that the model takes for what was taught."""
    x, y = about.misbehaviour()
    taken = np.flatnonzero(flat.predict(history.final_model(), x) == y)[:10]
    if not len(taken):
        return {"examples": 0}
    detection, parts = taught_examples(history, flat, x[taken], y[taken], *about.setup.probe.examples)
    told = {"examples": len(taken), "named": list(detection.suspects), "clearness": parts.clearness}
    return told | _ranked(about, parts, "")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}


def cells(parts: Sequence[str]) -> Iterator[Cell]:
    """The trainings of these parts, a seed of every one before the next: seeds that set no threshold."""
    for seed in range(1, 1 + max(SEEDS.values())):
        for part in parts:
            for d, data in enumerate(DATA if seed <= SEEDS[part] else ()):
                for s, spread in enumerate(SPREADS):
                    yield from _cells(part, data, spread, seed, 100 * seed + 10 * d + s)


def _cells(part: str, data: str, spread: str, seed: int, own: int) -> Iterator[Cell]:
    fraction = (0.1, 0.25, 0.4)[(own // 10 + own + seed) % 3]
    kinds = {
        "mlp": [("boosted" if fraction == 0.1 else ("patch", "dba", "patch")[own % 3], "mlp", fraction)],
        "clean": [("clean", "mlp", 0.0)],
        "brought": [("class-flip", "mlp", 0.4), ("subgroup", "mlp", 0.4), ("class-flip", "mlp", 0.25)],
        "cnn": [("patch", "cnn", fraction), ("clean", "cnn", 0.0)] if data != "cifar10" else [],
        "resnet": [("boosted", "resnet", 0.4), ("clean", "resnet", 0.0)] if data == "cifar10" else [],
    }
    for kind, model, share in kinds[part]:
        number = own + (50 if kind == "clean" else 0)
        arguments = (data, model, spread, share, kind, number)
        yield f"{part}-{data}-{spread}", f"{kind}-{share}-{number}", lambda a=arguments: examine(*a)


def rows(*parts: str) -> list[dict[str, Any]]:
    names = [f"{part}-{data}-{spread}" for part in parts for data in DATA for spread in SPREADS]
    return [row | {"cell": n, "key": k} for n in names for k, row in read(RESULTS, n).items()]


def table(models: tuple[str, ...] = ("mlp", "cnn", "resnet")) -> str:
    """What the trainings show, one line per claim."""
    attacked = [r for r in rows(*models) if not r["key"].startswith("clean")]
    clean = [r for r in rows(*models, "clean") if r["key"].startswith("clean")]
    working = [r for r in attacked if r["success"] > WORKS]
    right = [r for r in working if r["planted"] and r["class"] == r["target"]]
    named = [(set(r["named"]), set(r["malicious"])) for r in working]
    flagged = [r for r in clean if r["planted"]]
    when = [r for r in right if r["when"] is not None and abs(r["when"] - r["true_when"]) <= 2]
    lines = ["| what | figure | of |", "|---|---|---|"]
    add = lambda what, figure, of: lines.append(f"| {what} | {figure} | {of} |")  # noqa: E731
    add("backdoor works: flagged, right class", _share(len(right), len(working)), len(working))
    add("clean models flagged", _share(len(flagged), len(clean)), len(clean))
    add(
        "half of the mask inside the patch",
        _share(sum(r["inside"] >= 0.5 for r in right), len(right)),
        len(right),
    )
    for spread in SPREADS:
        own = [r["auc"] for r in right if r["cell"].endswith(spread)]
        add(f"AUC, {spread}", f"{np.mean(own):.3f}" if own else "-", len(own))
    bits = [abs(r["auc"] - r["auc_4bit"]) for r in right]
    add("largest change of AUC by 4 bits", f"{max(bits, default=0):.3f}", len(bits))
    hits, told = sum(len(n & b) for n, b in named), sum(len(n) for n, _ in named)
    add("names: precision", _share(hits, told), told)
    add("names: recall", _share(hits, sum(len(b) for _, b in named)), sum(len(b) for _, b in named))
    add("clean trainings with names", sum(bool(r["planted"] and r["named"]) for r in clean), len(clean))
    add("planted within 2 models of the truth", _share(len(when), len(right)), len(right))
    seconds = [r["seconds_audit"] for r in attacked + clean]
    add("seconds, audit (median)", f"{np.median(seconds):.1f}" if seconds else "-", len(seconds))
    seconds = [r["seconds_taught"] for r in attacked + clean]
    add("seconds, when and who (median)", f"{np.median(seconds):.1f}" if seconds else "-", len(seconds))
    for kind in ("class-flip-0.4", "class-flip-0.25", "subgroup-0.4"):
        own = [r for r in rows("brought") if r["key"].startswith(kind) and r.get("auc") is not None]
        added = [r["auc"] for r in own]
        add(f"brought, {kind}: AUC", f"{np.mean(added):.3f}" if added else "-", len(added))
    return "\n".join(lines)


def _share(some: int, of: int) -> str:
    return f"{100 * some / of:.1f}%" if of else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(SEEDS))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table and not fill(RESULTS, cells(arguments.parts), minutes=arguments.minutes):
        print("there is more to do; the same command goes on")
    print(table())


if __name__ == "__main__":
    main()
