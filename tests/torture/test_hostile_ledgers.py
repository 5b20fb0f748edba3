"""Ledgers with absurd values, under hashes that fit: a sentence comes out, and little is allocated."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from torture import forge
from torture.victim import COLUMNS, HASH, ROOM, set_cell

pytestmark = pytest.mark.long(20)


def test_a_sound_history_is_refused_nothing(victim):
    victim.put(victim.ledger)
    assert victim.use() == []
    victim.edit()
    assert victim.use() == []


def test_a_value_of_each_kind_in_each_column_gives_only_sentences(victim):
    values = [-1, 2**63 - 1, 1e308, "../../x", b"\xff" * 8, "\x1b[2J", "[" * 5000]
    for table, columns in COLUMNS.items():
        for column in columns.split():
            for value in values:
                victim.edit(forge.where_possible(set_cell(table, column, value, 0)))
                victim.use()
    victim.edit()
    assert victim.use() == []


ABSURD_SETTINGS = {
    "a huge tensor": {"layout": [["w", [10**12], True, False]]},
    "a tensor beyond any machine": {"layout": [["w", [10**30, 10**30], True, False]]},
    "an empty tensor beyond any machine": {"layout": [["w", [0, 2**62, 2**62], True, False]]},
    "a tensor of a hundred dimensions": {"layout": [["w", [1] * 100, True, False]]},
    "a tensor of negative size": {"layout": [["w", [-6], True, False]]},
    "tensors without end": {"layout": [[str(n), [0], True, False] for n in range(20_000)]},
    "a tensor trained by a list": {"layout": [["w", [6], [[[]]], False]]},
    "a name that rings": {"layout": [["\a", [6], True, False]]},
    "no tensor": {"layout": []},
    "sketches of nothing": {"gram_limit": 0, "sketch_size": 0},
    "millions in gram_limit": {"gram_limit": 10**9},
    "sketches of every round": {"gram_limit": 1, "sketch_size": 10**9},
    "a path for a hash": {"initial_model": "../../../etc/passwd"},
    "an absolute path for a hash": {"initial_model": "/etc/passwd"},
    "half a character": {"aggregation": "\ud800"},
    "a loss that is none": {"initial_loss": {"a": []}},
    "a selection that is none": {"selection": {"kind": "__class__"}},
    "a selection of all times": {"selection": {"kind": "every", "n": 10**30}},
    "a window without end": {"selection": {"kind": "selective", "max_window": 10**18}},
    "a format of the future": {"format": 99},
}


HARMLESS = {"millions in gram_limit", "a window without end"}


@pytest.mark.parametrize("name", ABSURD_SETTINGS)
def test_absurd_settings_are_refused_in_a_sentence(victim, name):
    victim.edit(forge.charter_with(**ABSURD_SETTINGS[name]))
    refused, peak = victim.cost()
    assert all(sentence.isprintable() for sentence in refused)
    assert refused or name in HARMLESS
    assert peak < ROOM


SCHEMAS = {
    "a view": "CREATE VIEW v AS SELECT * FROM rounds",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM clients; END",
    "an index": "CREATE INDEX i ON rounds (round)",
    "another table": "CREATE TABLE more (x)",
    "a virtual table": "CREATE VIRTUAL TABLE f USING fts5(x)",
    "a view for a table": "ALTER TABLE closing RENAME TO kept; CREATE VIEW closing AS SELECT * FROM kept",
    "a computed column": "ALTER TABLE rounds ADD COLUMN extra GENERATED ALWAYS AS (zeroblob(round))",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_another_schema_is_refused(victim, name):
    content, _, _ = forge.edited(victim.ledger, lambda connection: connection.executescript(SCHEMAS[name]))
    victim.put(content)
    refused = victim.use()
    assert len(refused) == 2
    assert all("not a fedcrab ledger" in sentence for sentence in refused)


@pytest.mark.parametrize("table", ["closing", "windows", "rounds", "participants", "rejections"])
@pytest.mark.parametrize("levels", [1, 4, 9])
def test_pages_that_point_to_each_other_cost_nothing(victim, table, levels):
    victim.put(forge.tower(victim.ledger, table, levels))
    refused, peak = victim.cost()
    assert len(refused) >= 2 or (refused == [] and levels == 1)  # one level can lead to the right rows still
    assert peak < ROOM


def insert_many(table: str, rows: int, *values: str) -> forge.Edit:
    """Rows as small and as many as can be; ``n`` counts them."""
    query = f"INSERT INTO {table} SELECT {', '.join(values)} FROM count"
    return lambda connection: connection.execute(
        f"WITH RECURSIVE count(n) AS (SELECT 100 UNION ALL SELECT n + 1 FROM count WHERE n < {rows}) {query}"
    )


def compressed_zeros(count: int) -> bytes:
    """What ``zlib.compress(bytes(count), 9)`` may give, from one block that is repeated: a thousandth."""
    block, packer = 10**6, zlib.compressobj(9)
    packed = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    head, body, tail = packed[:2], packed[2:], b"\3\0" + struct.pack(">I", count % 65521 << 16 | 1)
    return head + body * (count // block) + tail


def test_compressed_zeros_are_zeros() -> None:
    packed = compressed_zeros(3 * 10**6)
    assert zlib.decompress(packed) == bytes(3 * 10**6)
    assert len(packed) < 3300


def growing_planes(size: int) -> bytes:
    """Packed planes that would become a thousand times as long."""
    packed = compressed_zeros(1000 * size // 10)
    return struct.pack("<QQQ", *([len(packed)] * 3)) + packed * 3


DENSE: dict[str, Callable[[], forge.Edit]] = {  # made when they are used: some are large
    "closings": lambda: insert_many("closing", 500_000, "n", "0", "''"),
    "rejections": lambda: insert_many("rejections", 150_000, "0", "n - 100", "''", "''"),
    "clients": lambda: insert_many(
        "clients", 60_000, "0", "printf('%08d', n)", "1.0", "1.0", "1.0", "1", f"'{HASH}'"
    ),
    "clients of no round": lambda: insert_many(
        "clients", 60_000, "n", "'a'", "1.0", "1.0", "1.0", "1", f"'{HASH}'"
    ),
    "a long list": lambda: forge.charter_with(layout=[[]] * 2_000_000),
    "a long charter": lambda: forge.charter_with(aggregation="\N{CRAB}" + "a" * 10**7),
    "a deep list": lambda: lambda c: c.execute("UPDATE charter SET settings = ?", ("[" * 10**7,)),
    "long references": lambda: set_cell("rounds", "compared_with", "[" + "0," * 3_000_000 + "0]", 0),
    "a long decision": lambda: set_cell("windows", "chosen", "[" + "0," * 3_000_000 + "0]", 0),
    "long coordinates": lambda: set_cell("participants", "coordinates", bytes(10**7), 0),
    "coordinates twice": lambda: set_cell("rounds", "coordinates", bytes(10**7), 0),
    "planes that grow": lambda: set_cell("participants", "coordinates", growing_planes(10**7), 0),
    "long numbers": lambda: set_cell("participants", "numbers", bytes(10**7), 0),
    "ids without end": lambda: set_cell(
        "participants", "ids", "\n".join(map("{:07}".format, range(10**6))), 0
    ),
    "a long reason": lambda: set_cell("rejections", "reason", "\N{CRAB}" * 10**6, 0),
    "a long id": lambda: set_cell("participants", "ids", "\N{CRAB}" * 10**6, 0),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_ledger_full_of_small_things_takes_little_memory(victim, name):
    content, entries, digest = forge.edited(victim.ledger, DENSE[name]())
    forge.put_ledger(victim.path, content, entries, digest)
    refused, peak = victim.cost()
    print(f"{name}: {len(content)} bytes, {peak + 2 * len(content)} of memory")
    # A rejection that says nothing takes twelve bytes of a file, and an object and a list of a process.
    assert peak < (8 * len(content) if name == "rejections" else 0) + ROOM
    assert (refused == []) is (name == "rejections")  # many, and yet a sound ledger
    assert all(len(sentence) < 1000 for sentence in refused)
