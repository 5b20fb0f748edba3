"""Tables fit the terminal, and no name in them is broken or cut."""

import io

import pytest
from rich.cells import cell_len
from rich.text import Text

from fedcrab.report.tables import methods_table
from fedcrab.terminal import Printable
from fedcrab.terminal_table import Column, FittedTable

METHODS = ["poisoned", "retrain", "retrain-few", "fedrecover", "crab-hardened"]
NUMBERS = {"ta": 0.9, "asr": 1.0, "misr": 0.5, "rollback_round": 11, "rounds": 40, "contact_rounds": 40}
NUMBERS |= {"client_rounds": 12000, "seconds": 1234.5, "bytes": 24_500_000, "distance": 0.00012345}


def drawn(thing: FittedTable, width: int) -> list[str]:
    out = io.StringIO()
    Printable(file=out, width=width, markup=False).print(thing, crop=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def methods() -> FittedTable:
    return methods_table([{"method": name, **NUMBERS} for name in METHODS])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_name_is_broken(width: int) -> None:
    lines = drawn(methods(), width)
    assert max(map(cell_len, lines)) <= width
    for name in METHODS:
        assert sum(name in line.replace("│", " ").split() for line in lines) == 1


def test_what_is_left_out_is_named_and_shown_where_there_is_room() -> None:
    narrow, wide = drawn(methods(), 80), drawn(methods(), 120)
    told = " ".join(narrow[-2:])
    assert "Left out to fit 80 columns: rounds, history." in told
    needed = int(told.split("history. ")[1].split()[0])
    assert not any("Left out" in line for line in wide)
    assert any("Left out" in line for line in drawn(methods(), needed - 1))
    assert not any("Left out" in line for line in drawn(methods(), needed))
    assert all(name in " ".join(wide) for name in ("MISR", "contact", "history", "distance"))


def test_sentences_are_broken_between_words_and_take_what_is_left() -> None:
    table = FittedTable("Title", "client", "score", Column("because of", prose=True))
    why = "its updates contain directions that nobody else shares, in 12 rounds"
    table.add_row("CN=a-long-name,O=hospital", "1.5", why)
    for width in (60, 80, 120):
        lines = drawn(table, width)
        assert max(map(cell_len, lines)) <= width
        words = " ".join(lines).replace("│", " ").split()
        assert [w for w in words if w in why.split()] == why.split()
        assert "CN=a-long-name,O=hospital" in words
    assert cell_len(drawn(table, 120)[1]) == 3 * 3 + 1 + len("CN=a-long-name,O=hospital") + 5 + len(why)


def test_a_name_wider_than_the_terminal_stays_in_one_piece() -> None:
    name = "CN=" + "x" * 100
    table = FittedTable("Title", "client", "score", Column("", left=True, name="the bars"))
    table.add_row(Text(name), "1.5", "███")
    assert drawn(table, 60) == ["Title", name, "  score: 1.5 · ███"]


def test_a_row_has_a_cell_for_every_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        FittedTable("Title", "a", "b").add_row("1")
