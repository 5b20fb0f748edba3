"""The state of the incident: the headline, the address, paper, and what axe finds."""

import json
import re
import shlex
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedcrab import Compact, History
from fedcrab.detect import ledger
from fedcrab.detect.saved_audit import write_audit
from fedcrab.errors import ConfigError
from fedcrab.evaluate import best_recovery, why_best
from fedcrab.report.page import Incident, page_data, write_page
from report.in_browser import Opened, opened, written
from report.test_page import a_recovery
from rollback.test_against_naive import record
from trials.command import fedcrab
from trials.trainings import training

pytestmark = pytest.mark.long(12)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> History:
    trained = training(rounds=40, clients=20, attackers=3, kind="sybils", seed=2)
    return record(trained, tmp_path_factory.mktemp("incident") / "h")


def recovered(place: Path, history: History, **changes: Any) -> Path:
    """A recovery without the suspects, attack success 90 % before and 1 % after."""
    suspects = list(ledger(history).suspects)
    numbers = {"ta": 0.9, "asr": 0.01, "client_rounds": 50, "model_sha256": "2009ab" + "0" * 58}
    return a_recovery(place, history, **{"malicious": suspects, **numbers, **changes})


def test_suspected_then_decided(attacked: History, browser: Any, tmp_path: Path) -> None:
    suspects = ledger(attacked).suspects
    with opened(browser, written(attacked, tmp_path / "p.html")) as page:
        headline = page.text("#verdict")
        assert f"Suspected: clients {', '.join(suspects[:-1])} and {suspects[-1]}." in headline
        assert f"{ledger(attacked).confidence:.1%} sure" in headline
        assert page.text('#stages [aria-current="step"]').startswith("Suspected")
        assert "nobody marked yet" in page.text("#brief")
        page.page.click("#headline-take")
        assert page.text("#verdict-title").startswith("Decided: roll back to")
        assert page.text('#stages [aria-current="step"]').startswith("Decided")


def test_recovered_while_the_marks_are_those_of_the_recovery(
    attacked: History, browser: Any, tmp_path: Path
) -> None:
    path = written(attacked, tmp_path / "p.html", recovered=recovered(tmp_path / "r", attacked))
    other = next(client for client in attacked.clients if client not in ledger(attacked).suspects)
    with opened(browser, path) as page:
        assert page.text("#verdict-title") == "Recovered: attack success 90% → 1%. Deploy model 2009ab000000."
        assert str(tmp_path / "r" / "crab-hardened" / "model.safetensors") in page.text("#verdict")
        page.click_client(other)
        assert page.text("#verdict-title").startswith("Decided:")
        assert "excluded other clients" in page.text("#verdict")


def test_a_recovery_that_kept_the_backdoor_is_not_recommended(
    attacked: History, browser: Any, tmp_path: Path
) -> None:
    made = recovered(tmp_path / "r", attacked, asr=0.7)
    with opened(browser, written(attacked, tmp_path / "p.html", recovered=made)) as page:
        assert page.text("#verdict-title") == "Recovered: attack success 90% → 70%. Do not deploy it yet."


def until(page: Opened, condition: str) -> None:
    """Wait for the page, without the eval that its policy refuses."""
    for _ in range(6000):
        if page.page.evaluate(condition):
            return
        page.page.wait_for_timeout(50)
    raise AssertionError(f"never true: {condition}")


def row(method: str, ta: float | None, asr: float | None) -> dict[str, Any]:
    return {"method": method, "ta": ta, "asr": asr}


def test_the_model_to_deploy_has_the_least_attack_success_then_the_most_accuracy() -> None:
    rows = [row("finetune", 0.95, 0.8), row("federaser", 0.7, 0.0), row("crab-paper", 0.88, 0.005)]
    assert best_recovery(rows) == "crab-paper"
    assert best_recovery([*rows, row("replay", 0.9, 0.0)]) == "replay"
    assert best_recovery(rows[:1]) is None
    assert best_recovery([row("finetune", 0.9, 0.25), row("retrain", 0.9, 0.3)]) == "finetune"
    assert best_recovery([row("replay", None, None)]) == "replay"
    assert best_recovery([]) is None


def test_the_retrained_model_is_preferred_where_it_is_as_good() -> None:
    """It is there, so its work is done, and nothing of the excluded clients can be in it."""
    rows = [row("replay", 0.905, 0.0), row("crab-paper", 0.93, 0.3)]
    assert best_recovery([*rows, row("retrain", 0.9, 0.004)]) == "retrain"
    assert best_recovery([*rows, row("retrain", 0.89, 0.0)]) == "replay"
    assert best_recovery([*rows, row("retrain", 0.91, 0.02)]) == "replay"
    assert best_recovery([row("replay", None, None), row("retrain", None, None)]) == "retrain"
    assert "from scratch" in why_best("retrain", rows)
    assert "most accurate" in why_best("replay", rows)
    assert why_best("replay", rows[:1]) == ""


def test_the_address_keeps_the_view(attacked: History, browser: Any, tmp_path: Path) -> None:
    path = written(attacked, tmp_path / "p.html")
    with opened(browser, path) as page:
        assert "#" not in page.page.url
        page.click_client("4")
        page.page.select_option("#sort", "id")
        page.page.fill("#beta-number", "0.25")
        page.choose("rule", "last")
        page.page.locator("#sections a", has_text="Cost").click()
        until(page, "location.hash.includes('at=cost')")
        before = page.answer()["plan"]
        assert page.page.url.endswith("#marked=4&beta=0.25&rule=last&sort=id&at=cost")
        page.page.reload()
        assert page.answer()["plan"] == before
        assert page.page.input_value("#beta-number") == "0.25"
        page.page.evaluate("location.hash = '#marked=5,nobody,%zz&beta=-3&view=__proto__&at=x'")
        until(page, "window.answer.plan.malicious.join() === '5'")
        assert page.answer()["plan"]["beta"] == 0
        page.requests[:] = page.requests[:1]  # the reload asked for the same file again


def test_hostile_names_survive_the_address(browser: Any, tmp_path: Path) -> None:
    from report.histories import HOSTILE, hostile_history

    path = written(hostile_history(tmp_path / "h"), tmp_path / "p.html")
    with opened(browser, path) as page:
        for client in HOSTILE[:6]:
            page.click_client(client)
        until(page, f"location.hash.split(',').length === {len(HOSTILE[:6])}")
        page.page.reload()
        assert set(page.answer()["plan"]["malicious"]) == set(HOSTILE[:6])
        page.requests[:] = page.requests[:1]


def test_rounds_have_times(attacked: History, browser: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    began = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    trained = training(rounds=12, clients=5)
    with History.create(tmp_path / "h", trained.initial_model, initial_loss=2.3) as history:
        for t, made in enumerate(trained.rounds):
            times = {"began": began + timedelta(hours=t), "ended": began + timedelta(hours=t + 1)}
            history.record(replace(made, **times))
    with opened(browser, written(History.open(tmp_path / "h"), tmp_path / "p.html", "2")) as page:
        assert "Trained 1 May 2026, 12:00 to 2 May 2026, 00:00 UTC" in page.text("#about")
        assert "12:00" in page.page.locator("#loss-chart .clock").first.text_content()
        assert "1 May 2026 – 2 May 2026" in page.page.locator("#loss-chart .axis").text_content()
        page.page.locator("#loss-chart svg[tabindex]").focus()
        page.page.keyboard.press("End")
        assert "Round 11 (1 May 2026, 23:00 UTC)" in page.text("#loss-chart .readout")
    assert page_data(attacked)["arrays"]["began"]["kind"] == "f64"


def test_title_owner_and_status(attacked: History, browser: Any, tmp_path: Path) -> None:
    told = ("--title", "Backdoor <b>", "--owner", "A. Rao", "--status", "contained")
    done = fedcrab("report", str(attacked.path), "-o", "p.html", *told, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with opened(browser, tmp_path / "p.html") as page:
        assert page.text("#title") == "Backdoor <b>"
        assert "contained" in page.text("#people")
        assert "A. Rao" in page.text("#people")
    wrong = fedcrab("report", str(attacked.path), "-o", "q.html", "--title", "a\nb", cwd=tmp_path)
    assert wrong.returncode == 2
    assert not (tmp_path / "q.html").exists()
    with pytest.raises(ConfigError, match="at most 200"):
        Incident(owner="x" * 201)


def test_the_map_shows_suspects_first_and_says_what_it_hides(browser: Any, tmp_path: Path) -> None:
    history = record(training(rounds=20, clients=60, attackers=6, kind="sybils", seed=3), tmp_path / "h")
    suspects = set(ledger(history).suspects)
    assert suspects
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        titles = page.page.locator("#map-clients button").evaluate_all("all => all.map((b) => b.title)")
        assert {title.removesuffix(", suspect") for title in titles[: len(suspects)]} == suspects
        assert len(titles) == 40
        assert "40 clients of 60 shown; the other 20" in page.text("#map-hides")
        page.page.click("#all-rows")
        assert page.page.locator("#map-clients button").count() == 60
        assert "All 60 clients" in page.text("#map-hides")
        assert page.page.locator('input[name="view"]:checked').get_attribute("value") == "likeness"


def recorded_on(engine: dict[str, Any], place: Path) -> History:
    """A history with the notes of an engine."""
    trained = training(rounds=4, clients=5)
    with History.create(
        place, trained.initial_model, initial_loss=2.3, notes=json.dumps(engine), selection=Compact()
    ) as history:
        for made in trained.rounds:
            history.record(made)
    return History.open(place)


def test_commands_for_a_history_of_flower(browser: Any, tmp_path: Path) -> None:
    """The history by its absolute path: Flower's server app runs in another folder."""
    history = recorded_on({"flower": {"identity": "registration"}}, tmp_path / "h")
    with chdir(tmp_path):
        place = written(History.open("h"), tmp_path / "p.html", "2", "3")
    with opened(browser, place) as page:
        told = page.page.locator("#commands code").nth(1).inner_text()
        words = shlex.split(told)
        assert words[:4] == ["flwr", "run", ".", "--run-config"]
        assert f"mode='recover' malicious='2,3' history='{history.path}'" in words[4]
        assert "fedcrab recover" not in page.text("#commands")
        page.page.check("input[name=preset][value=paper]", force=True)
        assert "method='crab-paper' history=" in page.page.locator("#commands code").nth(1).inner_text()
        page.page.check("input[name=rule][value=prefix]", force=True)
        assert "choose a preset" in page.text("#commands")


def test_commands_for_a_history_of_flare(browser: Any, tmp_path: Path) -> None:
    """The command parses as `python -m fedcrab.nvflare` reads it; tests/nvflare runs it."""
    history = recorded_on({"nvflare": {"dtypes": {}}}, tmp_path / "h")
    write_page(tmp_path / "p.html", page_data(history, ["2", "3"], since={"3": 2}))
    with opened(browser, tmp_path / "p.html") as page:
        told = page.page.locator("#commands code").nth(1).inner_text()
        assert page.page.locator("#commands code").nth(2).inner_text() == "nvflare job submit -j recovery-job"
        page.page.check("input[name=evidence][value=stored]", force=True)
        changed = shlex.split(page.page.locator("#commands code").nth(1).inner_text())
    words = shlex.split(told)
    assert words[:4] == ["python", "-m", "fedcrab.nvflare", "TRAINING"]
    assert f"--history {history.path} --malicious=2,3 --since 3@2 --recovered recovered" in told
    setting = changed[changed.index("--set") + 1]
    assert json.loads(setting.removeprefix("planned=")) == {"beta": 0, "evidence": "stored", "rule": "prefix"}


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


def test_it_prints_on_four_pages_with_everything(attacked: History, browser: Any, tmp_path: Path) -> None:
    path = written(attacked, tmp_path / "p.html", recovered=recovered(tmp_path / "r", attacked))
    with opened(browser, path, color_scheme="dark") as page:
        page.page.evaluate(
            "addEventListener('beforeprint', () => { window.printed = {"
            " rows: document.querySelectorAll('details[open] tbody tr').length,"
            " map: document.getElementById('map-canvas').offsetWidth,"
            " theme: document.documentElement.dataset.theme }; })"
        )
        assert 2 <= pages_of(page.page.pdf(format="A4", print_background=True)) <= 4
        seen = page.page.evaluate("window.printed")
        assert seen["rows"] > 20
        assert 500 < seen["map"] <= 700
        assert seen["theme"] == "light"
        assert page.page.locator("details[open]").count() == 0
        assert page.page.evaluate("document.documentElement.dataset.theme ?? 'none'") == "none"


def test_a_summary_is_one_page(attacked: History, browser: Any, tmp_path: Path) -> None:
    path = written(attacked, tmp_path / "p.html", recovered=recovered(tmp_path / "r", attacked))
    with opened(browser, path) as page:
        page.page.evaluate("window.print = () => {}")
        page.page.click("#print-summary")
        assert pages_of(page.page.pdf(format="A4")) == 1
        summary = page.page.locator("#summary").text_content()
        assert "2009ab" in summary
        assert "Attack success 90.0% before, 1.0% after" in summary


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing(width: int, scheme: str, attacked: History, browser: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    path = written(attacked, tmp_path / "p.html", recovered=recovered(tmp_path / "r", attacked))
    context = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": True}
    with opened(browser, path, **context) as page:
        for unmark in (False, True):
            if unmark:
                page.page.click("#clear")
            found = axe.run(page.page).response["violations"]
            assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in found] == []


def test_distances_are_told_beside_known_ones(attacked: History, tmp_path: Path) -> None:
    facts = page_data(attacked, (), recovered(tmp_path / "r", attacked))
    assert facts["recoveries"]["distances"].keys() == {"training"}
    assert facts["recoveries"]["distances"]["training"] > 0
    assert write_page(tmp_path / "p.html", facts) < 1_000_000


def an_audit(head: str, clients: tuple[str, ...], named: set[str]) -> dict[str, Any]:
    picture = {"width": 2, "height": 2, "channels": 1, "base64": "AAD//w=="}
    numbers = dict.fromkeys(("ratio", "alarm", "confidence", "success", "lift"), 0.9)
    model = {"model": "final", "sha256": "", "planted": True, "class": 4, "sizes": [1.0], **numbers}
    taught = [
        {
            "client": client,
            "part": float(client in named),
            "score": 1.0,
            "named": client in named,
            "since": 3 if client in named else None,
        }
        for client in sorted(clients, key=lambda client: client not in named)
    ]
    about = {"about": "trigger", "class": 4, "rounds": 40, "strength": 2.0, "notes": [], "clients": taught}
    return {
        "history": head,
        "notes": [],
        "models": [model],
        "pictures": dict.fromkeys(("mask", "trigger", "example", "stamped"), picture),
        "timeline": {"planted": 5, "rounds": [0, 5, 40], "lifts": [0.0, 0.4, 0.9]},
        "taught": [about],
    }


def test_the_trigger_is_shown_and_those_who_taught_it_are_marked_by_one_click(
    browser: Any, tmp_path: Path
) -> None:
    history = record(training(rounds=40, clients=20), tmp_path / "h")
    named = {"3", "7"}
    write_audit(history.path, an_audit(history.contents.head, history.clients, named))
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        told = page.text("#trigger")
        assert "90% of the examples of other classes are classified as class 4" in told
        assert "has worked since the model before round 5" in told
        assert page.page.locator("#trigger-pictures canvas").count() == 4
        colours = page.page.evaluate(
            "[...document.querySelector('#trigger-pictures canvas').getContext('2d')"
            ".getImageData(0, 0, 2, 2).data].filter((_, i) => i % 4 === 0)"
        )
        assert colours == [0, 0, 255, 255]
        page.click_client("5")
        page.page.click("#take-teachers")
        assert set(page.answer()["plan"]["malicious"]) == {"3", "5", "7"}
        assert 2 <= pages_of(page.page.pdf(format="A4", print_background=True)) <= 4
    other = record(training(rounds=5, clients=4), tmp_path / "other")
    write_audit(other.path, an_audit(history.contents.head, other.clients, {"1"}))
    assert page_data(other)["trigger"] is None
