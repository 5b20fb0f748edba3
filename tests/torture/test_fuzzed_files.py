"""Fuzzed files: whatever is in them, a sentence comes out and nothing is written."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from torture import forge
from torture.victim import COLUMNS, HASH, Victim, safetensors, set_cell

QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
mutations = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 99),  # the header of the file
            st.builds(lambda page, at: page * forge.PAGE + at, st.integers(0, 30), st.integers(0, 120)),
            st.integers(0, 2**17),
        ),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from(
                [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff", b"\x80\x80\x80\x80\x01", b"\x0d", b"\x05"]
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)


def mutated(content: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    changed = bytearray(content)
    for at, new in changes:
        at %= len(content)
        changed[at : at + len(new)] = new[: len(content) - at]
    return bytes(changed)


def fuzz_bytes(victim: Victim, examples: int, start: int) -> int:
    tried = 0

    @seed(start)
    @settings(max_examples=examples, **QUIET)
    @given(mutations, st.booleans())
    def trial(changes: list[tuple[int, bytes]], sealed: bool) -> None:
        nonlocal tried
        tried += 1
        victim.put(mutated(victim.ledger, changes), sealed=sealed)
        victim.use()

    trial()
    return tried


@pytest.mark.long(15)
def test_a_ledger_of_mutated_bytes_gives_only_sentences(victim):
    assert fuzz_bytes(victim, 200, 0) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_ledgers_of_mutated_bytes_give_only_sentences(victim, part):
    tried = fuzz_bytes(victim, 18_000, part + 1)
    assert tried >= 18_000
    print(f"{tried} ledgers of mutated bytes")


absurd = st.one_of(
    st.sampled_from([0, -1, 1, 2, 2**31, 2**63 - 1, -(2**63)]),
    st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf")]),
    st.sampled_from(
        ["", "a", "..", "../../etc/passwd", "/dev/zero", HASH, "\0", "é" * 300, "[" * 5000, "[]", "[0]"]
    ),
    st.sampled_from([b"", b"\0" * 8, b"\xff" * 8, b"\xff" * 80, b"\0" * 4096, b"\0\0\0\0\0\0\xf0\x7f" * 10]),
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=200),
)
absurd_json = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(-(10**30), 10**30),
        st.text(max_size=10),
        st.sampled_from([10**12, 2**63, "..", HASH]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
cells = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns.split()])
SETTINGS = (
    *("layout", "selection", "aggregation", "initial_model", "initial_loss", "seed", "gram_limit"),
    *("sketch_size", "format"),
)


def empty(table: str) -> forge.Edit:
    return lambda connection: connection.execute(f"DELETE FROM {table}")


edits = st.one_of(
    st.builds(lambda cell, value, row: set_cell(*cell, value, row), cells, absurd, st.integers(-1, 7)),
    st.builds(
        lambda name, value: forge.charter_with(**{name: value}), st.sampled_from(SETTINGS), absurd_json
    ),
    st.builds(empty, st.sampled_from(sorted(COLUMNS))),
).map(forge.where_possible)


def fuzz_values(victim: Victim, examples: int, start: int) -> int:
    tried = 0

    @seed(start)
    @settings(max_examples=examples, **QUIET)
    @given(st.lists(edits, min_size=1, max_size=3))
    def trial(changes: list[forge.Edit]) -> None:
        nonlocal tried
        tried += 1
        victim.edit(*changes)
        victim.use()

    trial()
    return tried


@pytest.mark.long(15)
def test_a_ledger_of_absurd_values_gives_only_sentences(victim):
    assert fuzz_values(victim, 100, 0) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_ledgers_of_absurd_values_give_only_sentences(victim, part):
    tried = fuzz_values(victim, 5_000, part + 1)
    assert tried >= 5_000
    print(f"{tried} ledgers of absurd values")


def fuzz_snapshots(victim: Victim, examples: int, start: int) -> int:
    sound = next(p.read_bytes() for p in (victim.path / "snapshots").iterdir())
    tried = 0

    @seed(start)
    @settings(max_examples=examples, **QUIET)
    @given(
        st.one_of(
            mutations.map(lambda m: mutated(sound, m)),
            st.binary(max_size=300),
            absurd_json.map(lambda table: safetensors(table, bytes(24))),
        )
    )
    def trial(content: bytes) -> None:
        nonlocal tried
        tried += 1
        victim.edit(*victim.point_to(content))
        victim.use()

    trial()
    return tried


def test_a_fuzzed_snapshot_gives_only_sentences(victim):
    assert fuzz_snapshots(victim, 80, 0) >= 80


@pytest.mark.slow
def test_fuzzed_snapshots_give_only_sentences(victim):
    tried = fuzz_snapshots(victim, 8_000, 1)
    assert tried >= 8_000
    print(f"{tried} snapshots")
