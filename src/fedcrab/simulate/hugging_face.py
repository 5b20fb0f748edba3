"""Clients' data from Hugging Face ``datasets``, such as the partitions of flwr-datasets.

    partitions = [partitioner.load_partition(i) for i in range(20)]
    dataset, parts = from_partitions(partitions, test, x="image", y="label")
    fleet = SimulatedFleet(dataset, parts, Architecture("cnn", dataset.shape, dataset.classes), seed=0)

Each partition is one client, named by its position. Integer pixel values (0 to 255) become 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.simulate.data import Dataset, Images, Labels
from fedcrab.simulate.partition import Parts


class HuggingFaceDataset(Protocol):
    """The part of ``datasets.Dataset`` that is used here."""

    @property
    def column_names(self) -> Any:
        """The names of its columns."""
        ...

    def with_format(self, type: str) -> Any:
        """The same data as numpy arrays."""
        ...


def from_partitions(
    partitions: Sequence[HuggingFaceDataset],
    test: HuggingFaceDataset,
    *,
    x: str = "image",
    y: str = "label",
    classes: int | None = None,
) -> tuple[Dataset, Parts]:
    """Return the data set of all clients, and which of its training examples each client has.

    ``x`` and ``y`` are the columns of examples and labels. ``classes`` is the number of classes, by default
    the number of labels that occur.
    """
    if not partitions:
        raise ConfigError("there are no partitions; give one per client")
    found = [_examples(part, x, y, f"partition {place}") for place, part in enumerate(partitions)]
    test_x, test_y = _examples(test, x, y, "the test part")
    shapes = {part.shape[1:] for part, _ in found} | {test_x.shape[1:]}
    if len(shapes) > 1:
        raise ConfigError(f"column {x!r} has examples of different shapes: {', '.join(map(str, shapes))}")
    train_x, train_y = (np.concatenate(columns) for columns in zip(*found, strict=True))
    ends = np.cumsum([len(labels) for _, labels in found])
    parts = tuple(np.split(np.arange(len(train_y)), ends[:-1]))
    count = int(max(train_y.max(), test_y.max())) + 1 if classes is None else classes
    if max(int(train_y.max()), int(test_y.max())) >= count or min(int(train_y.min()), int(test_y.min())) < 0:
        raise ConfigError(f"column {y!r} has labels outside 0 to {count - 1}")
    dataset = Dataset("partitions", train_x, train_y, test_x, test_y, count, test_x.shape[1:])
    return dataset, parts


def _examples(part: HuggingFaceDataset, x: str, y: str, what: str) -> tuple[Images, Labels]:
    """Return the examples as float32, images as (examples, channels, height, width), and the labels."""
    names = list(part.column_names)
    if missing := [name for name in (x, y) if name not in names]:
        raise ConfigError(f"{what} has no column {missing[0]!r}; it has {', '.join(names)}")
    table = part.with_format("numpy")[:]
    labels = np.asarray(table[y])
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise ConfigError(f"{what}: column {y!r} must have one whole number per example, at least one")
    return _images(table[x], what, x), labels.astype(np.int64)


def _images(column: Any, what: str, name: str) -> Images:
    try:
        values: NDArray[Any] = np.stack([np.asarray(example) for example in column])
    except ValueError as error:
        raise ConfigError(f"{what}: the examples in column {name!r} have different shapes") from error
    if values.dtype.kind not in "fiu":
        raise ConfigError(f"{what}: column {name!r} must have numbers or images, got {values.dtype}")
    if values.dtype == np.uint8:
        values = np.divide(values, 255, dtype=np.float32)
    if values.ndim == 3:  # grey images
        values = values[:, None]
    elif values.ndim == 4 and values.shape[-1] in (1, 3, 4):
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values, np.float32)
