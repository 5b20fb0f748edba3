"""The data sets: embedded digits, three image sets, a synthetic convex problem, and the user's own arrays.

Image values are float32 in [0, 1], shaped (examples, channels, height, width), and not normalised further, so
a white trigger is 1.0. The synthetic problem and the user's arrays are used unchanged.

The files of an image data set come from the folder ``FEDCRAB_DATA``, or from the network. Downloads go to the
user's cache. Every file in the cache is checked against its sha256 each time it is used, also unpacked ones;
a wrong file is fetched or unpacked again. Files in a folder that the user names are not compared with hashes,
because the same images exist in differently compressed files.

The readers of the formats IDX and CIFAR binary check all bounds first. A file may be truncated or hostile:
nothing is allocated because of a header alone, and every problem is one sentence that names the file.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrab.errors import ConfigError
from fedcrab.extras import install
from fedcrab.seeds import rng_for

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR_FOLDER, CIFAR_UNPACKED = "cifar-10-batches-bin", "cifar10.untar"
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CIFAR_FILES_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
IDX_URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}
IDX_SHA256 = {
    "mnist": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}


def idx_files(name: str) -> list[Path]:
    """Return the four files of MNIST or Fashion-MNIST: training images and labels, test images and labels."""
    if folder := _given_folder():
        return _all_of(folder / name, IDX_FILES, name)
    sums = zip(IDX_FILES, IDX_SHA256[name], strict=True)
    return [_download(name, IDX_URLS[name] + file, sha256, _cache() / name) for file, sha256 in sums]


def cifar_files() -> list[Path]:
    """Return the six binary batches of CIFAR-10, the test batch last."""
    if folder := _given_folder():
        return _all_of(folder / CIFAR_FOLDER, CIFAR_FILES, "cifar10")
    unpacked = _cache() / CIFAR_UNPACKED / CIFAR_FOLDER
    if _changed(unpacked):
        with _set_aside(_cache() / CIFAR_UNPACKED):  # otherwise it would not be unpacked again
            _download("cifar10", CIFAR_URL, CIFAR_SHA256, _cache(), unpack=True)
    if wrong := _changed(unpacked):
        raise ConfigError(
            f"data set 'cifar10': {unpacked / wrong[0]} is not the published file (its sha256 differs); "
            "delete the folder and try again"
        )
    return [unpacked / file for file in CIFAR_FILES]


@contextmanager
def _set_aside(folder: Path) -> Iterator[None]:
    """Move a folder out of the way; it comes back if the block fails, and is deleted otherwise."""
    aside = folder.with_name(f"{folder.name}.changed")
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(aside)
    try:
        yield
    except BaseException:
        if aside.exists():
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _changed(folder: Path) -> list[str]:
    """Return the batches of CIFAR-10 that are missing in a folder, or differ from the published ones."""
    sums = zip(CIFAR_FILES, CIFAR_FILES_SHA256, strict=True)
    return [file for file, sha256 in sums if _sha256(folder / file) != sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def extra(module: str) -> Any:
    """Import a module of the extra ``simulate``."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ConfigError(f"this data set needs {module}: {install('simulate')}") from problem


def _given_folder() -> Path | None:
    given = os.environ.get("FEDCRAB_DATA")
    return Path(given) if given else None


def _cache() -> Path:
    return Path(extra("pooch").os_cache("fedcrab"))


def _all_of(folder: Path, names: tuple[str, ...], dataset: str) -> list[Path]:
    files = [_plain_or_packed(folder / name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(
            f"data set {dataset!r}: {folder} has no {', '.join(missing)}; put the files there, set "
            f"FEDCRAB_DATA to a folder that has {folder.name}/, or unset it to download them"
        )
    return files


def _plain_or_packed(path: Path) -> Path:
    plain = path.with_suffix("")
    return plain if path.suffix == ".gz" and plain.is_file() and not path.is_file() else path


def _download(dataset: str, url: str, sha256: str, folder: Path, *, unpack: bool = False) -> Path:
    pooch = extra("pooch")
    unpacker = pooch.Untar(extract_dir=CIFAR_UNPACKED) if unpack else None
    name = url.rsplit("/", 1)[1]
    found = _sha256(folder / name)
    damaged = f"{folder / name} is not the published file (its sha256 differs), and "
    why = damaged if found not in (None, sha256) else ""
    try:
        pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=folder, processor=unpacker)
    except Exception as problem:  # the network library may raise anything
        raise ConfigError(
            f"data set {dataset!r}: {why}{url} could not be fetched ({type(problem).__name__}); connect to "
            "the network, or set FEDCRAB_DATA to a folder with the files"
        ) from problem
    return folder / name


LARGEST = 1 << 28  # bytes of a decompressed file; the largest of MNIST has 47 million
UNSIGNED_BYTE = 0x08
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_RECORDS = 10_000


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes, gzipped if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _idx(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as problem:
        raise ConfigError(f"{path}: cannot be read ({problem}); fetch the file again") from problem


def _idx(file: gzip.GzipFile | BufferedReader, path: Path, dimensions: int) -> NDArray[np.uint8]:
    head = file.read(4 + 4 * dimensions)
    if len(head) != 4 + 4 * dimensions or head[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise ConfigError(
            f"{path}: not an IDX file of unsigned bytes in {dimensions} dimensions; fetch the file again"
        )
    shape = tuple(int(n) for n in np.frombuffer(head, ">u4", offset=4))
    size = prod(shape)
    if not 0 < size <= LARGEST:
        raise ConfigError(f"{path}: its header gives shape {shape}, which no supported data set has")
    body = file.read(size + 1)  # one byte more than expected, to detect a file that is too long
    if len(body) != size:
        found = f"{len(body)}" if len(body) < size else f"more than {size}"
        raise ConfigError(f"{path}: shape {shape} needs {size} bytes, found {found}; fetch the file again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images (n, 3, 32, 32) and labels of one CIFAR-10 binary batch."""
    try:
        size = path.stat().st_size
        if size == 0 or size % CIFAR_RECORD or size > CIFAR_RECORD * CIFAR_RECORDS:
            raise ConfigError(
                f"{path}: a CIFAR-10 batch has up to {CIFAR_RECORDS} records of {CIFAR_RECORD} bytes, but "
                f"this file has {size} bytes; fetch it again"
            )
        records = np.fromfile(path, np.uint8).reshape(-1, CIFAR_RECORD)
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem}); fetch the file again") from problem
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test examples; ``shape`` is the shape of one example."""

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
            f"{where}: needs one label per example of shape {shape}, got x {x.shape} and y {y.shape}"
        )
    if x.dtype != np.float32 or y.dtype != np.int64:
        raise ConfigError(f"{where}: needs float32 examples and int64 labels, got {x.dtype} and {y.dtype}")
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise ConfigError(f"{where}: labels must be 0 to {classes - 1}, found {y.min()} to {y.max()}")


def from_arrays(
    train_x: ArrayLike, train_y: ArrayLike, test_x: ArrayLike, test_y: ArrayLike, *, name: str = "own"
) -> Dataset:
    """Return the user's own arrays, unchanged, as a data set; the labels give the classes."""
    x, tx = np.asarray(train_x, np.float32), np.asarray(test_x, np.float32)
    y, ty = np.asarray(train_y, np.int64), np.asarray(test_y, np.int64)
    if x.ndim < 2 or not len(x) or not len(y):
        raise ConfigError(f"data set {name!r}: x must be (examples, ...) and not empty, got shape {x.shape}")
    classes = int(max(y.max(), ty.max(initial=0))) + 1
    return Dataset(name, x, y, tx, ty, classes, x.shape[1:])


def digits() -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits (8 x 8), 360 of them for testing; needs no network."""
    bunch = extra("sklearn.datasets").load_digits()
    x = (bunch.images / 16).astype(np.float32)[:, None]
    y = bunch.target.astype(np.int64)
    order = rng_for(0, "digits").permutation(len(y))
    train, test = order[360:], order[:360]
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, (1, 8, 8))


def synthetic(*, features: int = 20, classes: int = 5, examples: int = 5000, seed: int = 0) -> Dataset:
    """Return Gaussian classes: with softmax regression a smooth convex problem, whose bounds can be checked.

    Means have length about 2, and each class has unit variance in every direction. Everything is divided by
    √features, so that the loss is 1-smooth in each row of weights for any number of features.
    """
    if features < 1 or classes < 2 or examples < 5:
        raise ConfigError(
            "the synthetic problem needs at least 1 feature, 2 classes and 5 examples, "
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


@dataclass(frozen=True, slots=True)
class Size:
    """What is known about a data set before it is loaded."""

    examples: int  # for training
    shape: tuple[int, ...]
    classes: int


SIZES = {
    "digits": Size(1437, (1, 8, 8), 10),
    "mnist": Size(60_000, (1, 28, 28), 10),
    "fashion-mnist": Size(60_000, (1, 28, 28), 10),
    "cifar10": Size(50_000, (3, 32, 32), 10),
    "synthetic": Size(4000, (20,), 5),
}
DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "mnist": lambda: _idx_dataset("mnist"),
    "fashion-mnist": lambda: _idx_dataset("fashion-mnist"),
    "cifar10": _cifar,
    "synthetic": synthetic,
}


def load_dataset(name: str) -> Dataset:
    """Return a data set by name."""
    if name not in DATASETS:
        raise ConfigError(f"no data set {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]()


def hold_out(dataset: Dataset, *, probe: int, seed: int) -> tuple[Dataset, Images, Labels]:
    """Return the data set without ``probe`` training examples, and these, which only the server has."""
    count = len(dataset.train_y)
    if not 0 < probe < count:
        raise ConfigError(f"probe must be 1 to {count - 1} of the {count} training examples, got {probe}")
    order = rng_for(seed, "probe").permutation(count)
    kept, held = np.sort(order[probe:]), np.sort(order[:probe])
    rest = replace(dataset, train_x=dataset.train_x[kept], train_y=dataset.train_y[kept])
    return rest, dataset.train_x[held], dataset.train_y[held]
