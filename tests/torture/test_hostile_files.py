"""Files from strangers: whatever is in them, a sentence comes out; nothing is written, little allocated."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fedcrab.history.seal import LEDGER
from torture import forge, recording

ROOM = 32 * 2**20  # bytes that an interpreter may take whatever the file
HASH = "ab" * 32
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


class Victim:
    """A sound history, closed, that can be made hostile and sound again."""

    def __init__(self, directory: Path, sound: Path) -> None:
        self.path = directory / "history"
        shutil.copytree(sound, self.path)
        self.ledger = (self.path / LEDGER).read_bytes()
        _, self.entries, self.head = forge.edited(self.ledger)
        self.absurd = self.path / "snapshots" / "none"
        self.outside = directory / "outside"
        self.outside.mkdir()

    def put(self, ledger: bytes, *, sealed: bool = True) -> None:
        for left in ("-wal", "-shm"):
            Path(f"{self.path / LEDGER}{left}").unlink(missing_ok=True)
        forge.put_ledger(self.path, ledger, self.entries, self.head, sealed=sealed)

    def edit(self, *edits: forge.Edit) -> None:
        content, entries, digest = forge.edited(self.ledger, *edits)
        forge.put_ledger(self.path, content, entries, digest)

    def use(self) -> list[str]:
        before = forge.listing(self.path.parent)
        refused = forge.use(self.path)
        written = {p for p, state in forge.listing(self.path.parent).items() if before.get(p) != state}
        assert written <= {f"{self.path / LEDGER}-wal"}
        return refused

    def point_to(self, content: bytes) -> list[forge.Edit]:
        """Edits after which the ledger takes these bytes for the initial model and for every round's."""
        self.absurd.unlink(missing_ok=True)
        digest = hashlib.sha256(content).hexdigest()
        self.absurd = self.path / "snapshots" / f"{digest}.safetensors"
        self.absurd.write_bytes(content)
        columns = [set_cell("rounds", column, digest, -1) for column in ("start", "after")]
        return [forge.charter_with(initial_model=digest), *columns]

    def cost(self) -> tuple[list[str], int]:
        """What was refused, and the most memory that was taken beyond twice the size of the history."""
        size = sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())
        refused, peak = forge.cost(self.path, seconds=20)
        return refused, peak - 2 * size


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "history"
    recording.record(path, "selective", count=4)
    return path


@pytest.fixture
def victim(tmp_path: Path, sound: Path) -> Victim:
    return Victim(tmp_path, sound)


def test_a_sound_history_is_refused_nothing(victim):
    victim.put(victim.ledger)
    assert victim.use() == []
    victim.edit()
    assert victim.use() == []


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


def test_a_ledger_of_mutated_bytes_gives_only_sentences(victim):
    assert fuzz_bytes(victim, 1000, 0) >= 1000


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
COLUMNS = {
    "rounds": "entry round loss divergence start after mean updates compared_with sketched coordinates",
    "clients": "round client examples norm cosine selected sha256",
    "rejections": "round place client reason",
    "windows": "entry number first last chosen reference",
    "closing": "entry rounds",
    "charter": "entry settings",
}
cells = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns.split()])
SETTINGS = (
    *("layout", "selection", "aggregation", "initial_model", "initial_loss", "seed", "gram_limit"),
    *("sketch_size", "format"),
)


def set_cell(table: str, column: str, value: object, row: int) -> forge.Edit:
    """One value exchanged, in one row or in all; what SQLite itself refuses is left as it is."""
    some = "" if row < 0 else f" WHERE {column} IN (SELECT {column} FROM {table} LIMIT 1 OFFSET {row})"
    return lambda connection: connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?{some}", (value,))


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


def test_a_ledger_of_absurd_values_gives_only_sentences(victim):
    assert fuzz_values(victim, 500, 0) >= 500


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_ledgers_of_absurd_values_give_only_sentences(victim, part):
    tried = fuzz_values(victim, 5_000, part + 1)
    assert tried >= 5_000
    print(f"{tried} ledgers of absurd values")


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
    "a format of the future": {"format": 2},
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


@pytest.mark.parametrize("table", ["closing", "windows", "rounds", "clients", "rejections"])
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


DENSE = {
    "closings": insert_many("closing", 500_000, "n", "0", "''"),
    "rejections": insert_many("rejections", 150_000, "0", "n - 100", "''", "''"),
    "clients": insert_many(
        "clients", 60_000, "0", "printf('%08d', n)", "1.0", "1.0", "1.0", "1", f"'{HASH}'"
    ),
    "clients of no round": insert_many("clients", 60_000, "n", "'a'", "1.0", "1.0", "1.0", "1", f"'{HASH}'"),
    "a long list": forge.charter_with(layout=[[]] * 2_000_000),
    "a long charter": forge.charter_with(aggregation="\N{CRAB}" + "a" * 10**7),
    "a deep list": lambda c: c.execute("UPDATE charter SET settings = ?", ("[" * 10**7,)),
    "long references": set_cell("rounds", "compared_with", "[" + "0," * 3_000_000 + "0]", 0),
    "a long decision": set_cell("windows", "chosen", "[" + "0," * 3_000_000 + "0]", 0),
    "long coordinates": set_cell("rounds", "coordinates", bytes(10**7), 0),
    "a long reason": set_cell("rejections", "reason", "\N{CRAB}" * 10**6, 0),
    "a long id": set_cell("clients", "client", "\N{CRAB}" * 10**6, 0),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_ledger_full_of_small_things_takes_little_memory(victim, name):
    content, entries, digest = forge.edited(victim.ledger, DENSE[name])
    forge.put_ledger(victim.path, content, entries, digest)
    refused, peak = victim.cost()
    print(f"{name}: {len(content)} bytes, {peak + 2 * len(content)} of memory")
    # A rejection that says nothing takes twelve bytes of a file, and an object and a list of a process.
    assert peak < (8 * len(content) if name == "rejections" else 0) + ROOM
    assert (refused == []) is (name == "rejections")  # many, and yet a sound ledger
    assert all(len(sentence) < 1000 for sentence in refused)


def safetensors(table: object, data: bytes, *, length: int | None = None) -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


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
    assert fuzz_snapshots(victim, 200, 0) >= 200


@pytest.mark.slow
def test_fuzzed_snapshots_give_only_sentences(victim):
    tried = fuzz_snapshots(victim, 8_000, 1)
    assert tried >= 8_000
    print(f"{tried} snapshots")


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
