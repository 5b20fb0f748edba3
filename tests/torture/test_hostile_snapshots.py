"""Snapshots that are absurd, and strange things in place of files: refused in a sentence."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from torture import forge
from torture.victim import ROOM, safetensors


def tensor(dtype: str = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


REST = {"bias": tensor(shape=[1], offsets=[16, 20]), "seen": tensor(shape=[1], offsets=[20, 24])}
SNAPSHOTS = {
    "nothing": b"",
    "half a length": b"\1\0\0",
    "a header beyond the file": safetensors({}, b"", length=2**40),
    "a header beyond counting": safetensors({}, b"", length=2**64 - 1),
    "a header of noise": safetensors(b"\xff" * 200, bytes(24)),
    "a deep header": safetensors(b"[" * 100_000, bytes(24)),
    "no tensor": safetensors({}, bytes(24)),
    "a list": safetensors([], bytes(24)),
    "another type": safetensors({"weight": tensor("F64", [2, 2]), **REST}, bytes(24)),
    "an unknown type": safetensors({"weight": tensor("F31", [2, 2]), **REST}, bytes(24)),
    "another shape": safetensors({"weight": tensor(shape=[4, 1]), **REST}, bytes(24)),
    "a huge shape": safetensors({"weight": tensor(shape=[2**40, 2**40]), **REST}, bytes(24)),
    "a negative shape": safetensors({"weight": tensor(shape=[-2, -2]), **REST}, bytes(24)),
    "overlapping tensors": safetensors(
        {"weight": tensor(shape=[2, 2]), "bias": tensor(shape=[1], offsets=[0, 4]), "seen": REST["seen"]},
        bytes(24),
    ),
    "tensors beyond the end": safetensors(
        {"weight": tensor(shape=[2, 2], offsets=[2**40, 2**40 + 16])}, bytes(24)
    ),
    "backward offsets": safetensors({"weight": tensor(shape=[2, 2], offsets=[16, 0]), **REST}, bytes(24)),
    "a tensor too many": safetensors(
        {"weight": tensor(shape=[2, 2]), "x": tensor(shape=[0], offsets=[16, 16]), **REST}, bytes(24)
    ),
    "a tensor twice": safetensors(
        b'{"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
        b'"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}',
        bytes(24),
    ),
    "many tensors": safetensors(
        {str(n): tensor(shape=[0], offsets=[0, 0]) for n in range(15_000)}, bytes(24)
    ),
    "only metadata": safetensors({"__metadata__": {"a": "b" * 10**6}}, bytes(24)),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_an_absurd_snapshot_is_refused_in_a_sentence(victim, name):
    """The ledger names it and the hash fits: only its content is absurd."""
    victim.edit(*victim.point_to(SNAPSHOTS[name]))
    refused, peak = victim.cost()
    assert sum(victim.absurd.name in sentence for sentence in refused) >= 2  # verified, and read
    assert all(sentence.isprintable() for sentence in refused)
    assert peak < ROOM


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
    os.chdir(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only the superuser makes devices")


THINGS = {
    "a pipe": make_pipe,
    "a socket": make_socket,
    "/dev/zero": make_device,
    "a directory": Path.mkdir,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("/nonexistent/file"),
    "a link outside": lambda path: path.symlink_to(
        path.parents[path.parents[0].name == "snapshots"].parent / "outside" / "x"
    ),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "place", ["ledger.sqlite", "ledger.head", "ledger.sqlite-wal", "ledger.sqlite-shm", "snapshots", "model"]
)
@pytest.mark.parametrize("thing", THINGS)
def test_a_strange_thing_in_place_of_a_file_is_refused(victim, thing, place, sealed):
    victim.put(victim.ledger, sealed=sealed)
    path = next((victim.path / "snapshots").iterdir()) if place == "model" else victim.path / place
    outside = victim.outside / "x"
    if path.is_dir():
        path.rename(outside)
    else:
        outside.write_bytes(path.read_bytes() if path.exists() else b"")
        path.unlink(missing_ok=True)
    THINGS[thing](path)
    before = forge.listing(victim.outside)
    refused, peak = victim.cost()
    assert refused or thing == "a link to nothing"
    assert peak < ROOM
    assert forge.listing(victim.outside) == before
