"""Making a new history: built beside its place, then moved there in one step."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedcrab.admission import LONGEST_TEXT
from fedcrab.errors import ConfigError, DamagedError, HistoryError
from fedcrab.history.disk import explained, make_directory
from fedcrab.history.entries import GENESIS, Charter, link
from fedcrab.history.ledger import Ledger
from fedcrab.history.parsing import LONGEST_JSON
from fedcrab.history.seal import LEDGER, SNAPSHOTS, Head
from fedcrab.history.snapshots import HEADER, Snapshots, header
from fedcrab.history.verification import load
from fedcrab.types import Vector
from fedcrab.vectors import is_finite


def create(path: Path, charter: Charter, initial_model: Vector) -> None:
    """Lay a new history down at ``path``, whole or not at all. The name is durable once it is resumed."""
    _check(charter, initial_model)
    with explained(f"{path}: not created"):
        if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
            if _is_left_over(path, charter, initial_model):
                return
            raise HistoryError(f"{path}: there is something already; choose another place, or resume it")
        make_directory(path.parent)
        with _building_site(path) as site:
            _build(site, charter, initial_model)
            site.rename(path)


def _is_left_over(path: Path, charter: Charter, initial_model: Vector) -> bool:
    """Whether this is what the same call left when it failed after the move: ours, and no round in it."""
    if path.is_symlink() or not (path / LEDGER).is_file():
        return False
    try:
        found = load(path)
    except DamagedError:
        return False
    model = Snapshots(path / SNAPSHOTS).hash_of(charter.layout, initial_model)
    wanted = replace(charter, initial_model=model, seed=found.charter.seed)
    return found.entries == 1 and wanted.facts() == found.charter.facts()


def _check(charter: Charter, model: Vector) -> None:
    size = charter.layout.size
    if np.shape(model) != (size,) or model.dtype != np.float32 or not is_finite(model):
        raise ConfigError(f"the initial model must be {size} finite float32 numbers")
    for text in (charter.aggregation, *(f.name for f in charter.layout.fields)):
        if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_TEXT:
            raise ConfigError(
                "the names of tensors and of the aggregation must be printable and of at most "
                f"{LONGEST_TEXT} characters, got {ascii(text)[:80]}"
            )
    if len(json.dumps(charter.to_table())) > LONGEST_JSON or len(header(charter.layout)) > HEADER:
        raise ConfigError(
            f"{len(charter.layout.fields)} tensors with these names are more than a history can describe"
        )
    for name, value in (("gram_limit", charter.gram_limit), ("sketch_size", charter.sketch_size)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number of 1 or more, got {value!r}")
    if not isinstance(charter.seed, int) or charter.seed < 0:
        raise ConfigError(f"seed must be a whole number of 0 or more, got {charter.seed!r}")


def _build(site: Path, charter: Charter, initial_model: Vector) -> None:
    snapshots = Snapshots(site / SNAPSHOTS)
    snapshots.directory.mkdir()
    charter = replace(charter, initial_model=snapshots.put_model(charter.layout, initial_model))
    snapshots.settle()
    digest = link(GENESIS, charter)
    ledger = Ledger(site / LEDGER)
    try:
        ledger.lay_out()
        ledger.append([(0, charter, digest)])
        ledger.checkpoint()
    finally:
        ledger.close()
    Head(1, digest, None).write(site)


@contextmanager
def _building_site(path: Path) -> Iterator[Path]:
    """A locked directory beside ``path``; what killed builders left there is cleared away first."""
    prefix = f".{path.name}.creating-"
    for abandoned in path.parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(abandoned):
            shutil.rmtree(abandoned)
    site = path.parent / f"{prefix}{secrets.token_hex(8)}"
    site.mkdir()
    with _locked(site):
        try:
            yield site
        except BaseException:
            shutil.rmtree(site, ignore_errors=True)
            raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
