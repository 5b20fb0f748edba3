"""The page of a recovery that the commands made: accuracy of kept models, the certificate in words."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedcrab import History
from fedcrab.errors import DamagedError
from fedcrab.report.page.build import find, page_facts, write_page
from report.in_browser import opened

SMALL = ("--set", "rounds=6", "--set", "clients.count=8", "--set", "attack.settings.boost=2.0")


def fedcrab(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedcrab", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("after")
    trained = fedcrab("train", "digits", "--history", "h", *SMALL, cwd=place)
    attackers = trained.strip().rpartition(": ")[2].replace(" ", "")
    for method in ("crab-hardened", "retrain"):
        fedcrab("recover", "h", "--malicious", attackers, "--method", method, "--out", "out", cwd=place)
    fedcrab("certify", "out/crab-hardened", "--retrained", "out/retrain", cwd=place)
    return place


@pytest.fixture(scope="module")
def facts(place: Path) -> dict[str, Any]:
    history, recovered = find(place / "out")
    return page_facts(history, (), recovered, accuracy=True)


def poisoned(place: Path) -> dict[str, Any]:
    summary = json.loads((place / "out" / "crab-hardened" / "summary.json").read_text())
    return dict(summary["poisoned"])


def test_the_last_model_is_judged_as_recover_judges_it(place: Path, facts: dict[str, Any]) -> None:
    kept = [*History.open(place / "h").kept, 6]
    assert [point[0] for point in facts["accuracy"]] == kept
    assert facts["accuracy"][-1][1:] == [poisoned(place)["ta"], poisoned(place)["asr"]]


def test_a_certificate_of_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "out" / "crab-hardened"
    other.mkdir(parents=True)
    for path in (place / "out" / "crab-hardened").iterdir():
        if path.is_file():
            (other / path.name).write_bytes(path.read_bytes())
    told = json.loads((other / "certificate.json").read_text())
    told["subject"]["history"] = "0" * 64
    (other / "certificate.json").write_text(json.dumps(told))
    with pytest.raises(DamagedError, match="certificate"):
        page_facts(History.open(place / "h"), (), tmp_path / "out")


def test_accuracy_is_drawn_and_read(place: Path, facts: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", facts)
    with opened(browser, tmp_path / "p.html") as page:
        assert page.page.locator("#accuracy-part").is_visible()
        page.page.locator("#accuracy-chart svg[tabindex]").focus()
        page.page.keyboard.press("End")
        read, last = page.text("#accuracy-chart .readout"), poisoned(place)
        assert f"before round 6: accuracy {100 * last['ta']:.1f}%" in read
        assert f"attack success {100 * last['asr']:.1f}%" in read


def test_the_certificate_is_in_words(
    place: Path, facts: dict[str, Any], browser: Any, tmp_path: Path
) -> None:
    write_page(tmp_path / "p.html", facts)
    told = json.loads((place / "out" / "crab-hardened" / "certificate.json").read_text())
    with opened(browser, tmp_path / "p.html") as page:
        assert "What this does not prove" in page.text("#certificate-words")
        article = page.page.locator("#certificate-words article").filter(has_text="Crab, hardened")
        words = article.inner_text()
        assert "The certificate is not signed." in words
        assert f"{told['conclusion']['value']:.2g}"[:3] in words
        article.locator("summary").click()
        stated = [name for name, term in told["terms"].items() if term["value"] is not None]
        rows = article.locator("tbody tr").all_inner_texts()
        assert [row.split("\t")[0] for row in rows] == stated
        command = shlex.split(article.locator("code").first.inner_text())
    fedcrab(*command[1:], "--retrained", "out/retrain", cwd=place)


def test_without_them_there_is_no_section(place: Path, browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", page_facts(History.open(place / "h")))
    with opened(browser, tmp_path / "p.html") as page:
        assert page.page.locator("#accuracy-part").is_hidden()
        assert page.page.locator("#certificate").is_hidden()
        assert page.page.locator("#recovered").is_hidden()
