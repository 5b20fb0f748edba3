"""Updates in a few bits: against a naive version, at the edges of float32, and on the disk."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedcrab import Compact, ConfigError, DamagedError, Everything, Field, History, Layout, Round, Selective
from fedcrab.history.compact import Packing
from fedcrab.history.quantise import BLOCK, levels
from fedcrab.seeds import rng_for
from recover.scenes import Answering, record

BUFFERS = Layout(
    (
        Field("a", (300,)),
        Field("mean", (3,), trained=False),
        Field("b", (5, 7)),
        Field("steps", (), trained=False, integer=True),
    )
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
some_bits = pytest.mark.parametrize("bits", [2, 4, 8])


def naive(row: np.ndarray, bits: int) -> np.ndarray:
    """One block after the other, one number after the other, as the formula has it."""
    levels, largest, out = 2 ** (bits - 1) - 1, float(np.abs(row).max()), []
    for first in range(0, len(row), BLOCK):
        block = row[first : first + BLOCK].astype(np.float64)
        share = np.abs(block).max() / (largest * levels) if largest else 0.0
        stored = np.float16(share)
        while float(stored) < share:
            stored = np.nextafter(stored, np.float16(2))
        scale = float(stored) * largest
        out += [scale * round(x / scale) if scale else 0.0 for x in block.tolist()]
    return np.array(out)


@some_bits
@given(seed=st.integers(0, 999), size=st.integers(1, 1000), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e20]))
def test_it_equals_the_naive_version(bits: int, seed: int, size: int, scale: float) -> None:
    row = (scale * rng_for(seed, "row").normal(size=size)).astype(np.float32)
    packing = Packing(Layout.flat(size), bits)
    found, wanted = packing.unpack(packing.pack(row[None]))[0], naive(row, bits)
    step = np.abs(row).max() / levels(bits)
    # x/s is computed in float32 here: a number half-way between two codes may take either
    ties = np.abs(found - wanted) > 1e-5 * np.abs(row).max()
    np.testing.assert_allclose(np.abs(found - row)[ties], np.abs(wanted - row)[ties], atol=1e-4 * step)


def naive_bytes(row: np.ndarray, bits: int) -> bytes:
    """One block after the other, as the format has it, with the same float types."""
    top, padded = 2 ** (bits - 1) - 1, np.zeros(-(-len(row) // BLOCK) * BLOCK, np.float32)
    padded[: len(row)] = row
    largest = float(np.abs(row).max())
    largest = largest if largest >= 2.0**-100 else 0.0
    scales, codes, squares, steps = [], [], [], []
    for block in padded.reshape(-1, BLOCK):
        share = float(np.abs(block).max()) / (largest * top) if largest else 0.0
        scales.append(np.float16(share))
        if float(scales[-1]) < share:
            scales[-1] = np.nextafter(scales[-1], np.float16(2))
        steps.append(float(scales[-1]) * largest)
        scaled = block * np.float32(1 / steps[-1] if steps[-1] else 0)
        codes += [int(code) + top for code in np.rint(scaled)]
        square = np.square(scaled - np.rint(scaled))
        while len(square) > 1:
            square = square[: len(square) // 2] + square[len(square) // 2 :]
        squares.append(np.float64(square[0]))
    error = np.sqrt(np.matmul(squares, np.square(steps))) + largest * 2.0**-22 * np.sqrt(len(row))
    error = float(error if largest else np.linalg.norm(row.astype(np.float64)))
    most = np.finfo(np.float32).max
    stored = np.nextafter(np.float32(min(error * (1 + 1e-5), float(most))), most) if error else np.float32(0)
    text = "".join(f"{code:0{bits}b}" for code in codes)
    return (
        np.array([largest, stored], "<f4").tobytes()
        + np.array(scales, "<f2").tobytes()
        + int(text, 2).to_bytes(len(text) // 8, "big")
    )


def odd_rows(size: int) -> np.ndarray:
    """Rows that are easy to get wrong: zeros, constants, huge and tiny numbers, -0.0, half steps."""
    normal = rng_for(size, "odd").normal(size=size)
    where = np.arange(size)
    rows = [
        normal,
        normal * 1e-3 ** (where // BLOCK),
        normal * 1e37,
        normal * 2.0**-99,
        normal * 2.0**-101,
        normal * 1e-40,
        where == size - 1,
        -(where % 2 == 0).astype(float),
        np.full(size, -0.0),
        np.where(where % 3, -0.0, 1e-45),
        np.full(size, 0.1),
        np.full(size, np.finfo(np.float32).max) * np.where(where % 2, 1, -1e-6),
        np.where(where < BLOCK, 0, normal),
        (where % 15 - 7) / 2,
    ]
    return np.array(rows, np.float64).astype(np.float32)


@some_bits
@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 700, 1024])
def test_the_bytes_are_those_of_the_naive_version(bits: int, size: int) -> None:
    rows, packing = odd_rows(size), Packing(Layout.flat(size), bits)
    for row, packed in zip(rows, packing.pack(rows[:5], rows[5:]), strict=True):
        assert packed.tobytes() == naive_bytes(row, bits)


@some_bits
@example(row=np.array([9.86e37] + [0] * 255 + [9.24e32], np.float32))  # a scale that float16 rounds up
@example(row=np.array([1e-45], np.float32))
@given(row=arrays.arrays(np.float32, st.integers(1, 600), elements=numbers))
def test_any_finite_row_comes_back_finite_and_within_half_a_step(bits: int, row: np.ndarray) -> None:
    packing = Packing(Layout.flat(len(row)), bits)
    packed = packing.pack(row[None])
    found = packing.unpack(packed)[0].astype(np.float64)
    assert np.isfinite(found).all()
    largest = float(np.abs(row).max())
    for first in range(0, len(row), BLOCK):
        block = slice(first, first + BLOCK)
        step = float(np.abs(row[block]).max()) * (1 + 2**-10) + largest * levels(bits) * 2.0**-24
        error = np.abs(found[block] - row[block]).max()
        assert error <= max(step / levels(bits) * (0.5 + 1e-4), 2.0**-100)
    measured, true = packing.errors(packed)[0], np.linalg.norm(found - row)
    assert (
        true <= measured <= true * (1 + 1e-3) + 1e-6 * largest * len(row) ** 0.5 + 2.0**-100 or largest > 1e38
    )


def test_zeros_and_tiny_rows_are_zero_and_say_so() -> None:
    packing = Packing(Layout.flat(300))
    rows = np.zeros((2, 300), np.float32)
    rows[1] = 1e-40
    packed = packing.pack(rows)
    assert not packing.unpack(packed).any()
    np.testing.assert_allclose(packing.errors(packed), [0, 1e-40 * 300**0.5], rtol=1e-3)


@some_bits
def test_buffers_are_exact(bits: int) -> None:
    packing = Packing(BUFFERS, bits)
    rows = rng_for(1).normal(size=(3, BUFFERS.size)).astype(np.float32)
    rows[:, -1] = 2**24 - 1
    found = packing.unpack(packing.pack(rows))
    places = BUFFERS.slices()
    for name in ("mean", "steps"):
        np.testing.assert_array_equal(found[:, places[name]], rows[:, places[name]])
    for name in ("a", "b"):
        assert 0 < np.abs(found - rows)[:, places[name]].max() < 4 / levels(bits)


@some_bits
@pytest.mark.parametrize("size", [1, 256, 700])
def test_rows_packed_together_are_those_packed_alone(
    bits: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rng_for(size, "rows").normal(size=(9, size)).astype(np.float32)
    rows[4] = 0
    packing = Packing(Layout.flat(size), bits)
    together = packing.pack(rows[:8], rows[8:])
    monkeypatch.setattr("fedcrab.history.compact.TOGETHER", 1)
    monkeypatch.setattr("fedcrab.history.quantise.AT_ONCE", 2)
    alone = np.concatenate([packing.pack(row[None]) for row in rows])
    assert together.tobytes() == alone.tobytes()


def test_a_layout_of_buffers_alone_is_kept_exactly() -> None:
    packing = Packing(Layout((Field("steps", (5,), trained=False),)))
    rows = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert packing.unpack(packing.pack(rows)).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("bits", "wanted"), [(2, "acfc8ea9dd718a60"), (4, "b6a167974be4c270"), (8, "506312de8111e386")]
)
def test_the_bytes_are_those_of_the_first_version(bits: int, wanted: str) -> None:
    rows = np.random.default_rng(7).integers(-1000, 1000, (5, BUFFERS.size)).astype(np.float32) / 64
    rows[3] = 0
    packed = Packing(BUFFERS, bits).pack(rows)
    packed[:, 4:8] = 0  # the error's last bit depends on the BLAS
    assert hashlib.sha256(packed.tobytes()).hexdigest()[:16] == wanted


@pytest.mark.parametrize("bits", [0, 1, 3, 5, 16, True, "4", None])
def test_other_numbers_of_bits_are_refused(bits: object) -> None:
    with pytest.raises(ConfigError, match="bits must be 2, 4 or 8"):
        Compact(bits=bits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "value"),
    [(slice(0, 4), np.float32(np.nan)), (slice(0, 4), np.float32(-1)), (slice(8, 10), np.float16(np.inf))],
)
def test_bytes_from_a_stranger_give_no_infinity(place: slice, value: np.generic) -> None:
    packing = Packing(Layout.flat(300))
    packed = packing.pack(np.ones((1, 300), np.float32))
    packed[0, place] = np.frombuffer(value.tobytes(), np.uint8)
    with pytest.raises(DamagedError, match="not a finite number"):
        packing.unpack(packed)


def answer(model: np.ndarray, client: str, t: int, epochs: object) -> tuple[np.ndarray, int]:
    return rng_for(9, client, t).normal(size=len(model)) * 0.1 - 0.1 * model, 10 + ord(client)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, History, History]:
    """One training, kept three ways."""
    place, model = tmp_path_factory.mktemp("kept"), np.zeros(5000, np.float32)
    kinds = Everything(), Compact(), Selective()
    recorded = [
        record(place / str(i), Answering(answer), list("abcdefghij"), 20, kind, model=model, share=0.9)
        for i, kind in enumerate(kinds)
    ]
    return recorded[0], recorded[1], recorded[2]


def test_every_update_of_every_round_is_there_within_its_error(both: tuple[History, ...]) -> None:
    everything, compact, _ = both
    for t in range(20):
        exact, found = everything.updates(t), compact.updates(t)
        assert found.clients == exact.clients
        np.testing.assert_array_equal(found.weights, exact.weights)
        errors = np.linalg.norm(found.vectors.astype(np.float64) - exact.vectors, axis=1)
        np.testing.assert_allclose(compact.update_errors(t), errors, rtol=1e-3)
        assert (errors <= 0.15 * np.linalg.norm(exact.vectors, axis=1)).all()
        assert not everything.update_errors(t).any()


def test_the_updates_of_some_clients_are_those_of_all(both: tuple[History, ...]) -> None:
    for history in both[:2]:
        everyone = history.updates(3)
        for some in ([], ["c"], ["b", "j", "nobody"], everyone.clients[1:], everyone.clients):
            found, wanted = history.updates(3, some), everyone.only(some)
            assert found.clients == wanted.clients
            assert found.vectors.tobytes() == wanted.vectors.tobytes()
            assert found.weights.tolist() == wanted.weights.tolist()


def test_models_are_exact_or_within_their_error(both: tuple[History, ...]) -> None:
    everything, compact, _ = both
    rebuilt = 0
    for t in range(20):
        apart = np.linalg.norm(compact.model(t).astype(np.float64) - everything.model(t))
        assert apart <= compact.model_error(t) + 1e-6
        assert (apart == 0) == (t in compact.kept)
        rebuilt += t not in compact.kept
    assert rebuilt == 8
    np.testing.assert_array_equal(compact.final_model(), everything.final_model())


def test_decisions_are_those_of_selective(both: tuple[History, ...]) -> None:
    _, compact, selective = both
    assert compact.kept == selective.kept
    for ours, theirs in zip(compact.rounds, selective.rounds, strict=True):
        assert ours.digests == theirs.digests
        np.testing.assert_array_equal(ours.selected, theirs.selected)
        np.testing.assert_array_equal(ours.coordinates.numbers, theirs.coordinates.numbers)


def test_twenty_clients_take_less_than_a_sixth_of_everything(tmp_path: Path) -> None:
    model, sizes = np.zeros(20_000, np.float32), []
    for kind in (Everything(), Compact()):
        path = tmp_path / type(kind).__name__
        record(path, Answering(answer), list("abcdefghijklmnopqrst"), 20, kind, model=model)
        sizes.append(History.open(path).bytes()["snapshots"])
    assert sizes[1] <= sizes[0] / 6


def test_damage_to_packed_updates_is_found_and_named(tmp_path: Path) -> None:
    model = np.zeros(600, np.float32)
    history = record(tmp_path / "h", Answering(answer), list("abc"), 6, Compact(), model=model)
    dropped = next(t for t in range(6) if t not in history.kept)
    path = tmp_path / "h" / "snapshots" / f"{history.rounds[dropped].updates}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert any(f"updates of round {dropped}" in problem for problem in History.verify(tmp_path / "h"))
    with pytest.raises(DamagedError, match="sha256"):
        history.updates(dropped)


def test_a_model_exchanged_between_rounds_is_kept_exactly(tmp_path: Path) -> None:
    """Rounds after it are rebuilt from it, not from the model before."""
    selection, models = Compact(rounds=0.1), []
    model = np.zeros(600, np.float32)
    with History.create(tmp_path / "h", model, initial_loss=1.0, selection=selection) as history:
        for t in range(6):
            if t == 3:
                model = rng_for(4).normal(size=600).astype(np.float32)
            models.append(model)
            updates = Answering(answer).train(model, ["a", "b"], round=t)
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 1.0, 0.1))
            model = model + step
    found = History.open(tmp_path / "h")
    assert found.kept == (0,)
    assert History.verify(tmp_path / "h") == []
    for t, exact in enumerate(models):
        assert np.linalg.norm(found.model(t) - exact) <= found.model_error(t) + 1e-6
    assert found.model_error(3) == 0 < found.model_error(4)
