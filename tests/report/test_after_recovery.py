"""The page of a recovery that the commands made: accuracy of kept models, the certificate in words."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from certificate.test_tampering import make_keys
from fedcrab import History
from fedcrab.cli.certify import certify_recovery
from fedcrab.errors import ConfigError, DamagedError, FedcrabError
from fedcrab.report.page import find, page_data, write_page
from fedcrab.report.page_recoveries import certificate_data
from report.in_browser import opened
from trials import command

SMALL = ("--set", "rounds=6", "--set", "clients.count=8", "--set", "attack.settings.boost=2.0")
HERE = ("--workers", "0")


def fedcrab(*arguments: str, cwd: Path) -> str:
    done = command.fedcrab(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("after")
    trained = fedcrab("train", "digits", "--history", "h", *SMALL, *HERE, cwd=place)
    attackers = re.findall("would not know\\): (.*)", trained)[0].replace(" ", "")
    for method in ("crab-hardened", "retrain"):
        asked = ("--malicious", attackers, "--method", method, "--out", "out", *HERE)
        fedcrab("recover", "h", *asked, cwd=place)
    fedcrab("certify", "out/crab-hardened", "--retrained", "out/retrain", cwd=place)
    return place


@pytest.fixture(scope="module")
def facts(place: Path) -> dict[str, Any]:
    history, recovered = find(place / "out")
    return page_data(history, (), recovered, accuracy=True)


def poisoned(place: Path) -> dict[str, Any]:
    summary = json.loads((place / "out" / "crab-hardened" / "summary.json").read_text())
    return dict(summary["poisoned"])


def test_the_last_model_is_judged_as_recover_judges_it(place: Path, facts: dict[str, Any]) -> None:
    kept = [*History.open(place / "h").kept, 6]
    assert [point[0] for point in facts["accuracy"]] == kept
    assert facts["accuracy"][-1][1:] == [poisoned(place)["ta"], poisoned(place)["asr"]]


def test_signed_is_said_only_of_what_was_checked_by_a_key(place: Path, tmp_path: Path) -> None:
    private, public = make_keys(tmp_path)
    (tmp_path / "other").mkdir()
    other = make_keys(tmp_path / "other")[1]
    folder = tmp_path / "out" / "crab-hardened"
    shutil.copytree(place / "out" / "crab-hardened", folder)
    head = History.open(place / "h").contents.head

    def said(key: Path | None) -> tuple[bool, str]:
        found = certificate_data(folder, head, key)
        assert found is not None
        return found["signed"], found["signature"]

    assert said(None) == (False, "is not signed")
    assert "missing, but a key was given" in said(public)[1]
    certify_recovery(folder, key=private)
    assert said(None) == (False, "has a signature that was not checked (report --key does)")
    assert said(public)[0]
    assert said(other)[1].startswith(
        f"is not signed by the key in {other} (signature.public_key: not the key"
    )
    text = (folder / "certificate.json").read_text()
    (folder / "certificate.json").write_text(text.replace('"rounds": 6', '"rounds": 5'))
    assert said(public)[0] is False


def test_a_key_that_is_none_is_refused_also_where_nothing_is_signed(place: Path, tmp_path: Path) -> None:
    with History.open(place / "h") as history:
        with pytest.raises(FedcrabError, match=r"none\.pem"):
            page_data(history, key=tmp_path / "none.pem")
        with pytest.raises(ConfigError, match="public key in PEM"):
            page_data(history, key=make_keys(tmp_path)[0])


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
        page_data(History.open(place / "h"), (), tmp_path / "out")


def test_accuracy_is_drawn_and_read(place: Path, facts: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", facts)
    with opened(browser, tmp_path / "p.html") as page:
        assert page.page.locator("#accuracy-part").is_visible()
        page.page.locator("#accuracy-chart svg[tabindex]").focus()
        page.page.keyboard.press("End")
        read, last = page.text("#accuracy-chart .readout"), poisoned(place)
        assert "Model before round 6 (" in read
        assert f"UTC): accuracy {100 * last['ta']:.1f}%" in read
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
    write_page(tmp_path / "p.html", page_data(History.open(place / "h")))
    with opened(browser, tmp_path / "p.html") as page:
        assert page.page.locator("#accuracy-part").is_hidden()
        assert page.page.locator("#certificate").is_hidden()
        assert page.page.locator("#recovered").is_hidden()
