"""The kernels that record a round do what numpy and hashlib do."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import CDLL
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab import Compact, Everything, Field, History, Layout, Round, Selective, Updates
from fedcrab.history.compact import Packing
from fedcrab.history.gram import measure
from fedcrab.history.verify import verify
from fedcrab.seeds import rng_for
from fedcrab.sha256 import sha256_by_kernels, sha256_together
from fedcrab.vectors import InMemory, first_equal, weighted_mean
from native.levels import LIBRARIES, each_level, kernels

LAYOUT = Layout((Field("a", (700,)), Field("steps", (3,), trained=False), Field("b", (30,))))


def cut(message: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(message) + 1) for place in places), len(message)]
    return [message[start:stop] for start, stop in pairwise(edges)]


def test_instructions_for_hashes_are_used_where_the_processor_has_them() -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    for library in LIBRARIES.values():
        assert bool(library.sha256_instructions(1)) == ("sha_ni" in flags.split())


@contextmanager
def hashing(level: str, instructions: bool) -> Iterator[CDLL]:
    """The kernels of this level, with SHA instructions where there are any, or without."""
    library = LIBRARIES[level]
    library.sha256_instructions(instructions)
    try:
        yield library
    finally:
        library.sha256_instructions(1)


with_and_without = pytest.mark.parametrize("instructions", [True, False], ids=["instructions", "lanes"])


@with_and_without
@each_level
@given(
    st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 20_000).map(bytes)), max_size=40),
    st.lists(st.integers(0, 20_000), max_size=3),
)
def test_digests_are_those_of_hashlib_however_the_messages_are_cut(
    level: str, instructions: bool, messages: list[bytes], places: list[int]
) -> None:
    with hashing(level, instructions) as library:
        found = sha256_by_kernels(library, [cut(message, places) for message in messages])
    assert found == [hashlib.sha256(message).hexdigest() for message in messages]


@with_and_without
@each_level
@pytest.mark.parametrize("count", [1, 2, 8, 9, 17, 300])
def test_digests_of_every_length_around_the_edges_of_blocks(
    level: str, instructions: bool, count: int
) -> None:
    messages = [rng_for(count, length).bytes(length) for length in (*range(200), 4095, 4096, 100_000)]
    with hashing(level, instructions) as library:
        for some in (messages[at : at + count] for at in range(0, len(messages), count)):
            found = sha256_by_kernels(library, [[message] for message in some])
            assert found == [hashlib.sha256(message).hexdigest() for message in some]


@each_level
def test_the_fastest_way_is_chosen_and_an_error_in_a_message_comes_through(level: str) -> None:
    messages = [[bytes([n]) * n, b"", b"end"] for n in range(30)]
    wanted = [hashlib.sha256(b"".join(parts)).hexdigest() for parts in messages]
    with ThreadPoolExecutor(1) as beside:
        for used in (level, "none"):
            with kernels(used):
                assert sha256_together(messages) == sha256_together(messages, beside) == wanted
                with pytest.raises(ZeroDivisionError):
                    sha256_together([*messages, (bytes(1 // n) for n in (1, 0))], beside)


@each_level
@pytest.mark.parametrize("bits", [2, 4, 8])
@given(
    st.integers(0, 999), st.integers(1, 1100), st.integers(1, 4), st.sampled_from([1e-40, 1e-30, 1.0, 1e37])
)
def test_packed_rows_have_the_same_bytes(
    level: str, bits: int, seed: int, size: int, rows: int, scale: float
) -> None:
    rng = rng_for(seed, "rows")
    matrix = (scale * rng.normal(size=(rows, size)) * 10.0 ** rng.integers(-9, 1, size)).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.1] = -0.0
    packing, found = Packing(Layout.flat(size), bits), {}
    for used in (level, "none"):
        with kernels(used):
            found[used] = packing.pack(matrix, matrix[:1, ::-1])
    assert found[level].tobytes() == found["none"].tobytes()


@each_level
@given(st.integers(0, 999), st.integers(1, 40), st.integers(0, 4), st.sampled_from([1, 7, 128, 129, 3000]))
def test_products_are_those_of_float64_and_equal_rows_have_equal_ones(
    level: str, seed: int, rows: int, references: int, size: int
) -> None:
    rng = rng_for(seed, "gram")
    vectors = rng.normal(size=(rows, size)).astype(np.float32)
    vectors[-1] = vectors[0]
    means = [InMemory(rng.normal(size=size)) for _ in range(references)]
    trained = (slice(0, size),) if size < 9 else (slice(0, size // 2), slice(size // 2 + 3, size))
    found = {}
    for used in (level, "none"):
        with kernels(used):
            found[used] = measure(vectors, vectors[0], means, trained)
    ours, numpys = found[level], found["none"]
    np.testing.assert_allclose(ours.norms, numpys.norms, rtol=1e-13)
    np.testing.assert_allclose(ours.cosines, numpys.cosines, atol=1e-13)
    np.testing.assert_allclose(ours.coordinates.gram(), numpys.coordinates.gram(), atol=1e-12 * size)
    assert ours.norms[0] == ours.norms[-1]
    assert ours.cosines[0] == ours.cosines[-1]


@each_level
@given(st.integers(0, 999), st.integers(0, 30), st.sampled_from([1, 8, 1023, 5000]))
def test_the_mean_has_the_same_bits(level: str, seed: int, rows: int, size: int) -> None:
    rng = rng_for(seed, "mean")
    vectors, weights = (
        rng.normal(size=(rows, size)).astype(np.float32),
        rng.integers(0, 4, rows).astype(float),
    )
    trained = (slice(0, size // 2), slice(size // 2 + 1, size))
    with ThreadPoolExecutor(1) as beside:
        with kernels(level):
            ours = weighted_mean(vectors, weights, trained, beside)
            of_columns = weighted_mean(np.asfortranarray(vectors), weights, trained, beside)
        with kernels("none"):
            numpys = weighted_mean(vectors, weights, trained, beside)
    assert ours.tobytes() == of_columns.tobytes() == numpys.tobytes()


def test_equal_rows_are_found_by_their_bits() -> None:
    rows = rng_for(0, "rows").normal(size=(7, 1000)).astype(np.float32)
    rows[3], rows[5], rows[6] = rows[1], rows[0], rows[1]
    rows[6, 999] = np.nextafter(rows[6, 999], np.float32(9))
    rows[2], rows[4] = 0.0, -0.0
    assert first_equal(rows) == [0, 1, 2, 1, 4, 0, 6]
    assert first_equal(rows[:0]) == []


@each_level
@pytest.mark.parametrize("selection", [Selective(), Compact(2), Everything()])
def test_a_history_has_the_same_files(level: str, selection: Selective, tmp_path: Path) -> None:
    names = {}
    for used in (level, "none"):
        with kernels(used):
            model = np.zeros(LAYOUT.size, np.float32)
            history = History.create(
                tmp_path / used, model, initial_loss=1.0, selection=selection, layout=LAYOUT
            )
            for t in range(3):
                drawn = rng_for(t, "updates").normal(size=(5, LAYOUT.size)).astype(np.float32)
                updates = Updates.of({f"c{row}": (drawn[row], 10) for row in range(5)})
                history.record(Round(t, model, updates, drawn.mean(axis=0), 1 / (t + 1), 0.1))
                history.record(Round(t, model, updates, drawn.mean(axis=0), 1 / (t + 1), 0.1))
                model = model + drawn.mean(axis=0)
            history.close()
            names[used] = sorted(path.name for path in (tmp_path / used / "snapshots").iterdir())
        assert not verify(tmp_path / used).problems
    assert names[level] == names["none"]
