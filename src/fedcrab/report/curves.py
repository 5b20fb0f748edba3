"""Plots: accuracy and attack success during a recovery, and the loss per share of attackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from fedcrab.experiment.cell_cache import CellCache, Point
from fedcrab.experiment.matrix import Cell
from fedcrab.files import file_errors, make_directory

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # safe for colour blindness
MARKS = ("o", "s", "^", "D", "v", "P")
Curve = Sequence[tuple[int, float, float]]  # client-rounds spent so far, accuracy, attack success


def draw_curves(path: Path, curves: Mapping[str, Curve], poisoned: tuple[float, float]) -> None:
    """Plot accuracy and attack success against the work of the clients, one line per method."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    titles = ("Accuracy on clean test data", "Attack success rate")
    for which, (ax, title) in enumerate(zip(axes, titles, strict=True), start=1):
        for (name, curve), colour, mark in zip(curves.items(), COLOURS, MARKS, strict=False):
            work, height = [p[0] for p in curve], [100 * p[which] for p in curve]
            ax.plot(work, height, color=colour, marker=mark, markersize=3.5, linewidth=1.5, label=name)
        level = 100 * poisoned[which - 1]
        ax.axhline(level, color="#555555", linestyle="--", linewidth=1, label="poisoned")
        ax.set(title=title, xlabel="client-rounds", ylim=(-3, 103))
        ax.yaxis.set_major_formatter("{x:.0f}%")
        ax.grid(alpha=0.25)
    axes[0].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


Losses = dict[float, dict[str, list[tuple[int, float]]]]  # share of attackers -> method -> (round, loss)


def draw_losses(directory: Path, cells: Sequence[Cell], store: CellCache) -> list[Path]:
    """Draw one plot per data set with results, and return their files."""
    with file_errors(f"{directory}: the plots were not written"):
        make_directory(directory.absolute())
    found = losses_of(cells, store)
    for dataset, panels in found.items():
        _draw(directory / f"loss-{dataset}.png", dataset, panels)
    return [directory / f"loss-{dataset}.png" for dataset in found]


def losses_of(cells: Sequence[Cell], store: CellCache) -> dict[str, Losses]:
    """Return the mean loss over the seeds after each recovery round, by data set, share and method."""
    curves_by_key: dict[tuple[str, float, str], list[Sequence[Point]]] = {}
    for cell in cells:
        finished = store.find(cell.key)
        if finished is not None and cell.method.selection is not None:
            labels = dict(cell.labels)
            key = (str(labels["dataset"]), float(labels["fraction"]), str(labels["method"]))
            curves_by_key.setdefault(key, []).append(finished.curve)
    found: dict[str, Losses] = {}
    for (dataset, fraction, method), curves in curves_by_key.items():
        found.setdefault(dataset, {}).setdefault(fraction, {})[method] = _averaged(curves)
    return found


def _averaged(curves: Sequence[Sequence[Point]]) -> list[tuple[int, float]]:
    """Return (recovery round, mean loss), as long as every seed has that round."""
    averages = []
    for number, points in enumerate(zip(*curves, strict=False), start=1):
        losses = [loss for _, _, loss, _ in points if loss is not None]
        if losses:
            averages.append((number, mean(losses)))
    return averages


def _draw(path: Path, dataset: str, panels: Mapping[float, Mapping[str, list[tuple[int, float]]]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.6 * len(panels), 3), layout="constrained", squeeze=False, sharey=True
    )
    for ax, (fraction, methods) in zip(axes[0], sorted(panels.items()), strict=True):
        for (method, points), colour in zip(methods.items(), COLOURS, strict=False):
            ax.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=".",
                markersize=4,
                linewidth=1.2,
                label=method,
            )
        ax.set(title=f"{dataset}, {fraction:.0%} malicious", xlabel="recovery round", yscale="log")
        ax.grid(alpha=0.25)
    axes[0][0].set_ylabel("loss on the probe set")
    axes[0][-1].legend(fontsize=7)
    with file_errors(f"{path}: the plot was not written"):
        figure.savefig(path, dpi=90)
    pyplot.close(figure)
