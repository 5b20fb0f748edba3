"""Recovery as a picture: how accuracy comes back, and the attack does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by everyone
MARKS = ("o", "s", "^", "D", "v", "P")

Curve = Sequence[tuple[int, float, float]]  # client-rounds spent so far, accuracy, attack success


def draw_curves(path: Path, curves: Mapping[str, Curve], poisoned: tuple[float, float]) -> None:
    """Accuracy and attack success against the work of the clients, a line a method."""
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
