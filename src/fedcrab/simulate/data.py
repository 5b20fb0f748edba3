"""The data sets: embedded digits, three image sets, a synthetic convex problem, and the user's own arrays.

Image values are float32 in [0, 1], shaped (examples, channels, height, width), not normalised further:
so a white trigger is 1.0 everywhere. The synthetic problem and the user's arrays are as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrab.errors import ConfigError
from fedcrab.seeds import rng_for
from fedcrab.simulate.fetch import cifar_files, extra, idx_files
from fedcrab.simulate.formats import read_cifar, read_idx

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test examples; ``shape`` is that of one example."""

    name: str
    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    classes: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            _check_examples(f"data set {self.name!r}, {part}", x, y, self.shape, self.classes)


def _check_examples(where: str, x: Images, y: Labels, shape: tuple[int, ...], classes: int) -> None:
    if len(x) != len(y) or x.shape[1:] != shape or y.ndim != 1:
        raise ConfigError(
            f"{where}: needs one label for each example of shape {shape}, got x {x.shape} and y {y.shape}"
        )
    if x.dtype != np.float32 or y.dtype != np.int64:
        raise ConfigError(f"{where}: needs float32 examples and int64 labels, got {x.dtype} and {y.dtype}")
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise ConfigError(f"{where}: labels must be 0 to {classes - 1}, found {y.min()} to {y.max()}")


def from_arrays(
    train_x: ArrayLike, train_y: ArrayLike, test_x: ArrayLike, test_y: ArrayLike, *, name: str = "own"
) -> Dataset:
    """The user's own arrays as a data set; values are taken as they are, classes counted from the labels."""
    x, tx = np.asarray(train_x, np.float32), np.asarray(test_x, np.float32)
    y, ty = np.asarray(train_y, np.int64), np.asarray(test_y, np.int64)
    if x.ndim < 2 or not len(x) or not len(y):
        raise ConfigError(f"data set {name!r}: x must be (examples, ...) and not empty, got shape {x.shape}")
    classes = int(max(y.max(), ty.max(initial=0))) + 1
    return Dataset(name, x, y, tx, ty, classes, x.shape[1:])


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8 x 8, of which 360 are the test part; no network needed."""
    bunch = extra("sklearn.datasets").load_digits()
    x = (bunch.images / 16).astype(np.float32)[:, None]
    y = bunch.target.astype(np.int64)
    order = rng_for(0, "digits").permutation(len(y))
    train, test = order[360:], order[:360]
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, (1, 8, 8))


def synthetic(*, features: int = 20, classes: int = 5, examples: int = 5000, seed: int = 0) -> Dataset:
    """Gaussian classes: with softmax regression a smooth convex problem, whose bounds can be checked.

    Means have length about 2 and each class unit variance in every direction, then everything is divided by
    √features, so that the loss is 1-smooth in each row of weights whatever the number of features.
    """
    if features < 1 or classes < 2 or examples < 5:
        raise ConfigError(
            "the synthetic problem needs 1 feature, 2 classes and 5 examples or more, "
            f"got {features}, {classes} and {examples}"
        )
    rng = rng_for(seed, "synthetic", features, classes, examples)
    means = rng.normal(size=(classes, features)) * 2 / np.sqrt(features)
    y = rng.integers(classes, size=examples)
    x = ((means[y] + rng.normal(size=(examples, features))) / np.sqrt(features)).astype(np.float32)
    cut = examples // 5
    return Dataset("synthetic", x[cut:], y[cut:], x[:cut], y[:cut], classes, (features,))


def _idx_dataset(name: str) -> Dataset:
    paths = idx_files(name)
    images = [_scaled(read_idx(path, dimensions=3)[:, None]) for path in paths[::2]]
    labels = [read_idx(path, dimensions=1).astype(np.int64) for path in paths[1::2]]
    return Dataset(name, images[0], labels[0], images[1], labels[1], 10, images[0].shape[1:])


def _cifar() -> Dataset:
    *batches, (test_x, test_y) = [read_cifar(path) for path in cifar_files()]
    x = _scaled(np.concatenate([x for x, _ in batches]))
    y = np.concatenate([y for _, y in batches]).astype(np.int64)
    return Dataset("cifar10", x, y, _scaled(test_x), test_y.astype(np.int64), 10, (3, 32, 32))


def _scaled(pixels: NDArray[np.uint8]) -> Images:
    return np.divide(pixels, 255, dtype=np.float32)


DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "mnist": lambda: _idx_dataset("mnist"),
    "fashion-mnist": lambda: _idx_dataset("fashion-mnist"),
    "cifar10": _cifar,
    "synthetic": synthetic,
}


def load(name: str) -> Dataset:
    """A data set by name."""
    if name not in DATASETS:
        raise ConfigError(f"no data set {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]()


def hold_out(dataset: Dataset, *, probe: int, seed: int) -> tuple[Dataset, Images, Labels]:
    """The data set without ``probe`` training examples, and those: the server's own, seen by no client."""
    count = len(dataset.train_y)
    if not 0 < probe < count:
        raise ConfigError(f"probe must be 1 to {count - 1} of {count} training examples, got {probe}")
    order = rng_for(seed, "probe").permutation(count)
    kept, held = np.sort(order[probe:]), np.sort(order[:probe])
    rest = replace(dataset, train_x=dataset.train_x[kept], train_y=dataset.train_y[kept])
    return rest, dataset.train_x[held], dataset.train_y[held]
