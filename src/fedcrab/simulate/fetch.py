"""Where the files of an image data set come from: the folder ``FEDCRAB_DATA``, or the network.

Downloads go to the user's cache and are checked against the published MD5 sums. A folder the user
names is taken as it is: the same images are around in differently compressed files.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from fedcrab.errors import ConfigError

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"

IDX_URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}
IDX_MD5 = {
    "mnist": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def idx_files(name: str) -> list[Path]:
    """The four files of MNIST or Fashion-MNIST: training images and labels, test images and labels."""
    if folder := _given_folder():
        return _all_of(folder / name, IDX_FILES, name)
    sums = zip(IDX_FILES, IDX_MD5[name], strict=True)
    return [_download(name, IDX_URLS[name] + file, md5, _cache() / name) for file, md5 in sums]


def cifar_files() -> list[Path]:
    """The six binary batches of CIFAR-10, the test batch last."""
    if folder := _given_folder():
        return _all_of(folder / CIFAR_FOLDER, CIFAR_FILES, "cifar10")
    unpacked = _cache() / "cifar10.untar" / CIFAR_FOLDER
    if not all((unpacked / file).is_file() for file in CIFAR_FILES):
        _download("cifar10", CIFAR_URL, CIFAR_MD5, _cache(), unpack=True)
    return _all_of(unpacked, CIFAR_FILES, "cifar10")


def extra(module: str) -> Any:
    """A module of the extra `simulate`, imported only where it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ConfigError(
            f"this data set needs {module}: install it with pip install 'fedcrab[simulate]'"
        ) from problem


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
            f"data set {dataset!r}: {folder} has no {', '.join(missing)}; put the files there, point "
            f"FEDCRAB_DATA at a folder that has {folder.name}/, or unset it to download them"
        )
    return files


def _plain_or_packed(path: Path) -> Path:
    plain = path.with_suffix("")
    return plain if path.suffix == ".gz" and plain.is_file() and not path.is_file() else path


def _download(dataset: str, url: str, md5: str, folder: Path, *, unpack: bool = False) -> Path:
    pooch = extra("pooch")
    unpacker = pooch.Untar(extract_dir="cifar10.untar") if unpack else None
    name = url.rsplit("/", 1)[1]
    try:
        pooch.retrieve(url, f"md5:{md5}", fname=name, path=folder, processor=unpacker)
    except Exception as problem:  # whatever the network layer of the day raises
        raise ConfigError(
            f"data set {dataset!r}: {url} could not be fetched ({type(problem).__name__}); connect to the "
            "network, or point FEDCRAB_DATA at a folder that holds the files"
        ) from problem
    return folder / name
