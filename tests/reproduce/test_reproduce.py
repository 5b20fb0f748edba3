"""The paper's evaluation at scale `smoke`, for real, and what is made of it."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from fedcrab import ConfigError
from fedcrab.experiment.matrix import expand
from fedcrab.experiment.scheduler import trainings
from fedcrab.reproduce.claims import TESTS, Observed, largest_rise
from fedcrab.reproduce.formulas import formulas
from fedcrab.reproduce.items import ITEMS, SCALES
from fedcrab.reproduce.write_results import ReproduceResult, claims, figures, reproduce_command
from fedcrab.terminal import Printable
from trials.command import fedcrab

pytestmark = pytest.mark.long(15)

ROOT = Path(__file__).parents[2]
CELLS = {name: [expand(item.suite(scale)) for scale in SCALES.values()] for name, item in ITEMS.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(scope="module")
def smoke(place: Path) -> ReproduceResult:
    done = reproduce_command(None, "smoke", place / "results", place / "docs", jobs=2)
    assert done.failed == {}
    return done


def test_every_item_is_run(smoke: ReproduceResult, place: Path) -> None:
    assert [section.item.name for section in smoke.sections] == list(ITEMS)
    assert all(len(section.rows) == len(section.cells) > 0 for section in smoke.sections)
    for name in ITEMS:
        assert (place / "results" / "smoke" / name / "table.tex").is_file()
    json.dumps(smoke.to_table(), allow_nan=False)


def test_the_document_says_what_was_run(smoke: ReproduceResult, place: Path) -> None:
    text = (place / "docs" / "results.md").read_text()
    assert SCALES["smoke"].says in text
    assert all(f"(`{name}`)" in text for name in ITEMS)
    for section in smoke.sections:
        assert section.ran in text
    assert "does not hold" not in text  # digits say nothing about the paper
    for picture in re.findall(r"\]\((.*\.png)\)", text):
        assert (place / "docs" / picture).read_bytes().startswith(b"\x89PNG")
    assert "results-smoke/loss-digits.png" in text


def test_all_is_the_same_as_no_name(smoke: ReproduceResult, place: Path) -> None:
    words = ("reproduce", "--no-run", "--results", str(place / "results"), "--json")
    told = [json.loads(fedcrab(*words, *name, cwd=place).stdout) for name in ((), ("all",))]
    assert told[0] == told[1] != {}


def test_one_item_alone_is_taken_from_what_is_there(smoke: ReproduceResult, place: Path) -> None:
    done = reproduce_command("beta", "smoke", place / "results", None, run=False)
    (section,) = done.sections
    assert [row["method"] for row in section.rows][-1] == "crab-hardened β=0.9"
    assert done.tables()


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    done = reproduce_command("trim", "laptop", tmp_path / "results", tmp_path, run=False)
    text = (tmp_path / "results.md").read_text()
    assert "Not run yet" in text
    assert f"0 of {len(done.sections[0].cells)} cells" in text


def test_the_published_document_is_what_the_published_cells_give(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    done = reproduce_command(None, "laptop", tmp_path / "results", tmp_path, run=False)
    published = [section for section in done.sections if section.item.place != "Not in the paper"]
    assert all(len(section.rows) == len(section.cells) > 0 for section in published)
    assert (tmp_path / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()


def test_unknown_names_list_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no item 'fame'; there are memory, time"):
        reproduce_command("fame", "smoke", tmp_path, None)
    with pytest.raises(ConfigError, match="no scale 'huge'; there are smoke, laptop, full"):
        reproduce_command("time", "huge", tmp_path, None)


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_can_be_asked_for_at_every_scale(name: str) -> None:
    smoke, laptop, full = CELLS[name]
    assert len(smoke) < len(laptop) == len(full)
    assert {cell.config.data.name for cell in smoke} == {"digits"}
    assert all(cell.config.data.examples_per_client is None for cell in full)


def test_items_share_their_trainings() -> None:
    laptop = [cell for _, cells, _ in CELLS.values() for cell in cells]
    # Backdoor at three shares, trim at one, the baselines on MNIST without membership; three seeds.
    assert len(trainings(laptop)) == 3 * 3 * 3 + 3 * 3 + 3 * 3


def test_every_figure_of_the_paper_has_its_cell_and_every_claim_its_test() -> None:
    for name, (_, laptop, _) in CELLS.items():
        rows = [dict(cell.labels) for cell in laptop]
        for figure in figures(name):
            assert any(figure.matches(row) for row in rows), figure
        assert bool(claims(name)) == (ITEMS[name].place != "Not in the paper")
        assert all(claim.test in TESTS for claim in claims(name))
    assert {claim.test for name in ITEMS for claim in claims(name)} == set(TESTS)


def test_the_formulas_by_hand() -> None:
    """Table II for 20 clients, half of them honest, 40 rounds, 784 × 128 + 128 + 128 × 10 + 10 numbers."""
    cells = [cell for cell in CELLS["memory"][1] if dict(cell.labels)["fraction"] == 0.5]
    rows = [{**dict(cell.labels), "key": cell.key, "bytes": 5000, "client_rounds": 240} for cell in cells]
    told = {line[0]: line for line in formulas(rows, cells).rows}
    assert told["retrain"][1:4] == ("O(CMT)", "326 MB", "none")
    assert told["federaser"][1:4] == ("O(CM⌊T/Δt⌋)", "326 MB", "5 kB")
    assert told["crab-paper"][1:4] == ("O(λδCMT)", "137 MB", "5 kB")  # 0.6 × 0.7 × 325.7
    assert [told[m][5] for m in ("retrain", "federaser", "fedrecover", "crab-paper")] == [
        "40",
        "40",
        "12",
        "24",
    ]
    assert told["crab-paper"][6] == "24.0"


def row(method: str, **more: object) -> dict[str, object]:
    return {"dataset": "mnist", "fraction": 0.5, "method": method, "seed": 0, "key": method, **more}


def found(test: str, *rows: dict[str, object], **curves: object) -> bool | None:
    return TESTS[test](Observed(rows, curves)).holds


def test_claims_by_hand() -> None:
    crab, retrain = row("crab-paper", ta=0.8811), row("retrain", ta=0.9328)
    assert found("crab_near_retrain", crab, retrain) is True
    assert found("crab_near_retrain", crab, row("retrain", ta=0.95)) is False
    assert found("crab_near_retrain", crab) is None
    assert found("accuracy_falls_at_50", row("poisoned", ta=0.4669)) is True
    assert found("accuracy_falls_at_50", row("poisoned", ta=0.9)) is False
    assert found("rolls_back_to_2_to_3", row("crab-paper", rollback_round=3)) is True
    assert found("rolls_back_to_2_to_3", row("crab-paper", rollback_round=0)) is False
    low, high = row("crab-paper β=0.1", ta=0.8133), row("crab-paper β=0.3", ta=0.8048)
    assert found("beta_03_is_free", low, high) is True
    assert found("beta_03_is_free", low, row("crab-paper β=0.3", ta=0.7)) is False
    assert found("asr_at_floor", row("crab-paper", asr_with_target=0.1)) is True
    assert found("asr_at_floor", row("crab-paper", asr_with_target=0.9)) is False
    shares = [row("crab-paper", asr_with_target=asr, fraction=f) for f, asr in ((0.1, 0.9), (0.5, 0.1))]
    assert found("asr_at_floor_at_every_share", *shares[1:]) is True
    assert found("asr_at_floor_at_every_share", *shares) is False
    curve = [(0, 1, 2.0, None), (1, 2, 4.0, None), (2, 3, 5.0, None), (3, 4, 1.0, None)]
    assert largest_rise(curve) == 2.5
    both = row("fedrecover"), row("retrain")
    assert found("fedrecover_jumps", *both, fedrecover=curve, retrain=curve[3:]) is True
    assert found("fedrecover_jumps", *both, fedrecover=curve[2:], retrain=curve) is False


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_it_in_its_width(width: int, smoke: ReproduceResult) -> None:
    """No method's name is cut, and the smallest scale judges nothing."""
    out = io.StringIO()
    console = Printable(file=out, width=width, markup=False)
    for line in smoke.tables():
        console.print(line, crop=False)
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "not judged at this scale" in out.getvalue()
    assert "not run" not in out.getvalue()
    names = {row["method"] for section in smoke.sections for row in section.rows}
    assert all(any(name in line for line in lines) for name in names)
