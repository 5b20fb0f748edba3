"""The page as a file: what it carries, that nothing in it can break out, and what is refused."""

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from fedcrab import History, plan
from fedcrab.errors import ConfigError, DamagedError
from fedcrab.report.page import (
    ASSETS,
    SCRIPTS,
    asset,
    embedded,
    find,
    page_data,
    render_page,
    script,
    write_page,
)
from fedcrab.report.page_clients import MOST_NUMBERS, by_influence, clients_that_fit
from fedcrab.report.page_data import packed, unpacked
from report.histories import HOSTILE, hostile_history, odd_history
from rollback.test_against_naive import record
from trials.command import fedcrab
from trials.trainings import training


class Outline(html.parser.HTMLParser):
    """The elements of a page as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> History:
    return hostile_history(tmp_path_factory.mktemp("hostile") / "h")


def test_hostile_names_are_data_and_nothing_else(hostile: History) -> None:
    facts = page_data(hostile)
    page, empty = Outline(render_page(facts)), Outline(render_page({}))
    assert page.elements == empty.elements
    assert json.loads(page.texts["script"][0]) == json.loads(json.dumps(facts))
    assert facts["clients"] == sorted([*HOSTILE, "</style><b>mallory"])


def test_nothing_is_fetched_and_only_the_own_script_may_run(hostile: History) -> None:
    page = Outline(render_page(page_data(hostile)))
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, text in (("script", page.texts["script"][1]), ("style", page.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not [a for _, a in page.elements if "src" in a or not (a.get("href") or "#").startswith("#")]
    dangerous = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(|import\(|Request"
    assert not re.search(dangerous, script())


def test_embedded_json_cannot_end_its_element() -> None:
    text = embedded(["</script>", "<!--", "]]>", "&amp;", "\u2028"])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == ["</script>", "<!--", "]]>", "&amp;", "\u2028"]


def test_every_script_is_part_of_the_page() -> None:
    assert {path.name for path in ASSETS.iterdir()} == {*SCRIPTS, "template.html", "style.css"}
    assert all(len(asset(name).splitlines()) <= 300 for name in SCRIPTS)


def test_arrays_come_back_as_they_were() -> None:
    values = np.array([0.1, np.nan, np.inf, -np.inf, -0.0, 5e-324])
    assert unpacked(packed("f64", values)).tobytes() == values.tobytes()


@pytest.mark.parametrize(("rounds", "clients"), [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("loss", [1.0, float("nan"), float("inf")])
def test_small_and_odd_histories_give_a_page(rounds: int, clients: int, loss: float, tmp_path: Path) -> None:
    history = odd_history(tmp_path / "h", rounds=rounds, clients=clients, losses=loss)
    facts = page_data(history)
    assert (facts["rounds"], len(facts["clients"])) == (rounds, clients if rounds else 0)
    losses = unpacked(facts["arrays"]["loss"])
    assert np.array_equal(losses, np.full(rounds, loss), equal_nan=True)
    assert write_page(tmp_path / "page.html", facts) == (tmp_path / "page.html").stat().st_size


def test_a_history_that_is_still_written(tmp_path: Path) -> None:
    trained = training(rounds=5, clients=3)
    history = History.create(tmp_path / "h", trained.initial_model, initial_loss=2.3)
    for r in trained.rounds:
        history.record(r)
    history.release()
    facts = page_data(History.open(tmp_path / "h"))
    assert not facts["closed"]
    assert facts["rounds"] == 5


def test_how_many_clients_fit() -> None:
    assert clients_that_fit([20] * 1000, 20) == 20
    assert clients_that_fit([100] * 100, 100) == 100
    many = clients_that_fit([1000] * 100, 1000)
    assert 100 < many < 130
    assert 100 * (many + 3) * (many + 4) // 2 <= MOST_NUMBERS
    assert clients_that_fit([1000] * 100_000, 1000) == 20


def test_those_who_moved_the_model_most_come_first(tmp_path: Path) -> None:
    trained = training(rounds=6, clients=9, attackers=2, kind="boosted", seed=4)
    history = record(trained, tmp_path / "h")
    assert set(by_influence(history)[:2]) == trained.malicious


def test_named_clients_are_marked_and_unknown_ones_refused(tmp_path: Path) -> None:
    history = record(training(rounds=4, clients=5), tmp_path / "h")
    assert page_data(history, ["3", "1"])["marked"] == ["3", "1"]
    with pytest.raises(ConfigError, match="no client 99"):
        page_data(history, ["99"])


def a_recovery(place: Path, of: History, **changes: Any) -> Path:
    """The files that `recover` leaves; a real one is read in the tests of recovery."""
    (place / "crab-hardened" / "steps").mkdir(parents=True)
    summary = {
        "method": "crab-hardened",
        "history": str(of.path),
        "history_head": of.contents.head,
        "malicious": ["1", "3"],
        "model_sha256": "0" * 64,
        "ta": 0.9,
        "asr": float("nan"),
        "client_rounds": 7,
        "poisoned": {"ta": 0.5, "asr": 0.9},
        **changes,
    }
    (place / "crab-hardened" / "summary.json").write_text(json.dumps(summary))
    for t in (2, 5):
        step = {"step": {"round": t, "asked": ["0", "2"][: t - 1]}}
        (place / "crab-hardened" / "steps" / f"{t:06}.json").write_text(json.dumps(step))
    lines = ['{"round": null, "ta": 0.1}', '{"round": 2, "ta": 0.4, "asr": 0.2}', '{"round": 5, "ta": 0.']
    (place / "crab-hardened" / "curve.jsonl").write_text("\n".join(lines))
    return place


def test_recoveries_are_read_and_their_clients_marked(tmp_path: Path) -> None:
    history = record(training(rounds=6, clients=5), tmp_path / "h")
    found, recovered = find(a_recovery(tmp_path / "r", history))
    facts = page_data(found, (), recovered)
    assert found.path == history.path
    assert facts["marked"] == ["1", "3"]
    assert facts["recoveries"]["poisoned"]["asr"] == 0.9
    (row,) = facts["recoveries"]["methods"]
    assert (row["ta"], row["asr"], row["client_rounds"], row["seconds"]) == (0.9, None, 7, None)
    assert row["curve"] == [[0, 0.1, None], [1, 0.4, 0.2]]
    assert row["decision"] == {}


def test_a_recovery_says_how_many_attackers_it_supposed(tmp_path: Path) -> None:
    history = record(training(rounds=6, clients=5), tmp_path / "h")
    decided = plan(history, {"1", "3"}, unfound=1).to_table()
    facts = page_data(history, (), a_recovery(tmp_path / "r", history, plan=decided))
    (row,) = facts["recoveries"]["methods"]
    assert row["decision"] == {"beta": 0.0, "evidence": "all", "rule": "prefix", "unfound": 1}


@pytest.mark.parametrize("wrong", [{"history_head": "0" * 64}, {"method": 3}, {"history": None}])
def test_recoveries_of_something_else_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    history = record(training(rounds=3, clients=4), tmp_path / "h")
    with pytest.raises(DamagedError):
        page_data(history, (), a_recovery(tmp_path / "r", history, **wrong))


def test_the_command(tmp_path: Path) -> None:
    record(training(rounds=4, clients=5), tmp_path / "h")

    def run(*arguments: str) -> CompletedProcess[str]:
        return fedcrab("report", *arguments, cwd=tmp_path)

    assert run("h", "-o", "page.html").returncode == 0
    told = json.loads(run("h", "-o", "page.html", "--malicious", "1,2", "--json").stdout)
    assert told == {"page": "page.html", "bytes": (tmp_path / "page.html").stat().st_size}
    for wrong in ("nowhere", "h --malicious 99", "h --malicious ,", "h --recovered h", "h -o no/x.html"):
        done = run(*wrong.split())
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "incident.html").exists()
