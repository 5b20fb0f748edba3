"""Tables: what stands in them, and that no markup is broken by what stands in them."""

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrab.experiment.run_suite import comma_separated, escaped, latex, markdown
from fedcrab.experiment.suite_tables import (
    AFTER,
    ResultTable,
    columns_of,
    no_formula,
    over_settings,
    summary,
    to_csv,
)

MEASURED = dict.fromkeys(AFTER)


def row(method: str, seed: int, ta: float, **more: Any) -> dict[str, Any]:
    axes = {"dataset": "digits", "fraction": 0.25, "method": method, "seed": seed}
    return {**axes, **MEASURED, "ta": ta, "key": f"{method}{seed}", **more}


ROWS = [
    *(row("retrain", seed, ta, client_rounds=40) for seed, ta in enumerate((0.90, 0.92, 0.94))),
    *(row("crab", seed, ta, client_rounds=10 + seed) for seed, ta in enumerate((0.70, 0.73, 0.74))),
    row("alone", 0, 0.5),
]


def test_a_summary_by_hand() -> None:
    table = summary(ROWS, ["ta", "client_rounds"], reference="retrain")
    assert table.columns == ("method", "TA %", "client-rounds", "Δ TA %", "seeds")
    assert table.rows[0] == ("retrain", "92.0 ± 2.0", "40 ± 0", "-", "3")
    # differences -20, -19, -20: mean -19.67, deviation 0.577, t = -59, p = 1 - 59/√(2 + 59²) = 0.000287
    assert table.rows[1] == ("crab", "72.3 ± 2.1", "11 ± 1", "-19.7 (p=0.00029)*", "3")
    assert table.rows[2] == ("alone", "50.0", "-", "-40.0", "1")
    assert "paired t-test, corrected for the 1 comparisons" in table.note


def test_without_a_test() -> None:
    table = summary(ROWS, ["ta"], reference="retrain", compared=None)
    assert table.columns == ("method", "TA %", "seeds")
    assert "t-test" not in table.note


def test_only_axes_that_vary_are_shown() -> None:
    table = summary([*ROWS, row("crab", 0, 0.6, fraction=0.5)], ["ta"], reference="retrain")
    assert table.columns[:2] == ("fraction", "method")
    assert [line[0] for line in table.rows] == ["0.25", "0.25", "0.25", "0.5"]


def test_differences_over_all_settings_by_hand() -> None:
    assert over_settings(ROWS, reference="retrain") is None  # one setting
    other = [row("retrain", 0, 0.5, fraction=0.5), row("crab", 0, 0.4, fraction=0.5)]
    table = over_settings([*ROWS, *other], reference="retrain")
    assert table is not None
    # -20, -19, -20, -10: mean -17.25, deviation 4.856, half width 4.856 / 2 × 3.182 = 7.727
    assert table.rows == (("crab", "-17.2", "-25.0 to -9.5", "-20.0", "4"),)


def test_latex_prints_what_it_is_given() -> None:
    assert escaped(r"50% of a_b & {c} #1 ~ ^ \ $5 < 6 > 4") == (
        r"50\% of a\_b \& \{c\} \#1 \textasciitilde{} \textasciicircum{} \textbackslash{} \$5 "
        r"\textless{} 6 \textgreater{} 4"
    )
    assert escaped("9 ± 1, λ=0.6") == r"9 $\pm$ 1, $\lambda$=0.6"
    table = latex(ResultTable(("a_b", "c"), (("1%", "2&3"),), "a note"))
    assert table.splitlines() == [
        "% a note",
        r"\begin{tabular}{ll}",
        r"\toprule",
        r"a\_b & c \\",
        r"\midrule",
        r"1\% & 2\&3 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_markdown_keeps_its_columns() -> None:
    text = markdown(ResultTable(("a|b", "c"), (("1|2", "3\n4"),)))
    assert text == "| a\\|b | c |\n|---|---|\n| 1\\|2 | 3 4 |\n"


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


@given(st.lists(st.tuples(words, words), max_size=5))
def test_csv_of_a_table_reads_back(rows: list[tuple[str, str]]) -> None:
    text = comma_separated(ResultTable(("x", "y"), tuple(rows)))
    read = [tuple(line) for line in csv.reader(io.StringIO(text, newline=""))]
    assert read == [("x", "y"), *((no_formula(x), no_formula(y)) for x, y in rows)]
    assert all(
        no_formula(word).removeprefix("'") == word.replace("\r", " ").removeprefix("'")
        for row in rows
        for word in row
    )


def test_tidy_csv_reads_back() -> None:
    rows = [*ROWS, row('with "quotes", and\nlines', 7, 0.123456789012345)]
    read = list(csv.DictReader(io.StringIO(to_csv(rows, columns_of(rows)), newline="")))
    assert list(read[0]) == ["dataset", "fraction", "method", "seed", *AFTER]
    for told, row_ in zip(read, rows, strict=True):
        assert told["method"] == row_["method"]
        assert float(told["ta"]) == row_["ta"]
        assert told["misr"] == ""


@pytest.mark.parametrize("evil", ["=1+2", "+cmd|' /C calc'!A0", "-2+3+cmd|x!A0", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_label_is_a_formula_in_a_spreadsheet(evil: str) -> None:
    for text in (
        to_csv([{evil: evil, "ta": -0.5}], [evil, "ta"]),
        comma_separated(ResultTable((evil,), ((evil,),))),
    ):
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert [row[0] for row in rows] == ["'" + evil.replace("\r", " ")] * 2
    assert to_csv([{"ta": -0.5}], ["ta"]) == "ta\n-0.5\n"
    assert no_formula("-0.5 ± 0.1") == "-0.5 ± 0.1"
    for formula in ("=1", "@x", "\t=1", "＝1", "＠x"):
        assert no_formula(formula) == f"'{formula}"
