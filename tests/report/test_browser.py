"""The page in a real browser: what it answers is what `plan` says, whatever is clicked."""

import random
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrab import PRESETS, History, Round, Updates, plan
from fedcrab.detect import ledger
from fedcrab.recover.cost import planned_costs
from fedcrab.recover.methods import default_method
from fedcrab.rollback.malicious import listed
from fedcrab.rollback.onset import onset
from report.histories import HOSTILE, hostile_history, odd_history
from report.in_browser import Opened, opened, written
from report.test_page import a_recovery
from rollback.test_against_naive import record
from rollback.test_onset import push, recorded
from trials.trainings import training

pytestmark = pytest.mark.long(15)

NAMELESS = """() => [...document.querySelectorAll("button, input, select, a, canvas, svg[role=img]")]
  .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length))
  .map((e) => e.outerHTML)"""


def plan_of(history: History, malicious: list[str], **settings: Any) -> dict[str, Any]:
    return {**plan(history, malicious, **settings).to_table()}


def same(page: dict[str, Any], table: dict[str, Any]) -> None:
    shares = page["shares"], table["shares"]
    assert {**page, "shares": 0} == {"since": {}, **table, "shares": 0}
    assert shares[0] == pytest.approx(shares[1], abs=1e-9)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    trained = training(rounds=24, clients=9, attackers=2, seed=11, taking_part=0.9)
    return record(trained, tmp_path_factory.mktemp("page") / "h")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clicks_and_settings_answer_as_plan_does(seed: int, browser: Any, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kind = rng.choice(["spread", "boosted", "sybils", "close"])
    history = record(training(rounds=18, clients=8, seed=seed, kind=kind, taking_part=0.8), tmp_path / "h")
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        marked: set[str] = set()
        settings: dict[str, Any] = {"beta": 0, "evidence": "all", "rule": "prefix"}
        for _ in range(12):
            _change(page, rng, history, marked, settings)
            if marked and not marked >= set(history.clients):
                same(page.answer()["plan"], plan_of(history, list(marked), **settings))
            else:
                assert page.answer()["refused"]


def _change(
    page: Opened, rng: random.Random, history: History, marked: set[str], settings: dict[str, Any]
) -> None:
    what = rng.choice(["client", "client", "client", "evidence", "rule", "beta", "slider"])
    if what == "client":
        client = rng.choice(history.clients)
        page.click_client(client)
        marked ^= {client}
    elif what == "beta":
        settings["beta"] = rng.choice([0, 0.05, 0.123456789, 1.7])
        page.page.fill("#beta-number", str(settings["beta"]))
    elif what == "slider":
        settings["beta"] = rng.choice([0.07, 0.3, 0.29, 1.0])
        page.page.locator("#beta").fill(str(settings["beta"]))
    else:
        options = {"evidence": ["all", "stored"], "rule": ["prefix", "last"]}[what]
        settings[what] = rng.choice(options)
        page.choose(what, settings[what])


def test_both_presets_are_answered(history: History, browser: Any, tmp_path: Path) -> None:
    with opened(browser, written(history, tmp_path / "p.html", "2", "5")) as page:
        answer = page.answer()
        same(answer["paper"], plan_of(history, ["2", "5"], **PRESETS["paper"]))
        same(answer["hardened"], plan_of(history, ["2", "5"]))
        page.choose("preset", "paper")
        same(page.answer()["plan"], plan_of(history, ["2", "5"], **PRESETS["paper"]))


def test_what_is_said_is_what_is_computed(history: History, browser: Any, tmp_path: Path) -> None:
    told = plan(history, ["2", "5"])
    with opened(browser, written(history, tmp_path / "p.html", "2", "5")) as page:
        verdict, cost = page.text("#verdict"), planned_costs(told, told)[default_method(history)[0]]
        assert f"before round {told.rollback_round}" in verdict or told.rollback_round == 0
        assert str(cost.client_rounds) in page.text("#figures")
        assert f"{cost.share_of_retrain:.0%} of retraining" in page.text("#brief")
        assert page.page.locator("#warnings li").all_inner_texts() == list(told.warnings)
        page.page.locator("#records-table summary").click()
        page.page.locator("#records-table tbody tr").first.wait_for()
        assert page.page.locator("#records-table tbody tr").count() == len(told.candidates)
        page.page.locator("#replay-table summary").click()
        page.page.locator("#replay-table tbody tr").first.wait_for()
        rows = page.page.locator("#replay-table tbody tr").all_inner_texts()
        assert [row.split("\t")[2] for row in rows] == [", ".join(c) or rows[0] for _, c in told.replay]
        arguments = shlex.split(page.page.locator("#commands code").first.inner_text())
        assert arguments == ["fedcrab", "plan", str(history.path), "--malicious=2,5"]


def test_nothing_marked_says_what_to_do(history: History, browser: Any, tmp_path: Path) -> None:
    with opened(browser, written(history, tmp_path / "p.html", "2")) as page:
        page.page.click("#clear")
        assert page.answer()["refused"] == "Nobody is marked yet."
        assert "No sign of an attack" in page.text("#verdict")
        assert "mark them" in page.text("#verdict")
        page.page.fill("#beta-number", "-1")
        page.click_client("3")
        assert "β must be" in page.text("#verdict")


def test_by_keyboard_alone(history: History, browser: Any, tmp_path: Path) -> None:
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        page.page.select_option("#sort", "id")
        page.page.locator("#map-clients button").first.focus()
        page.page.keyboard.press("Tab")
        page.page.keyboard.press("Space")
        assert page.answer()["plan"]["malicious"] == ["1"]
        assert page.page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        page.page.locator("#map-canvas").focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
            page.page.keyboard.press(key)
        assert page.text("#map-readout").startswith("Client 2, round 1 (")
        assert page.answer()["plan"]["malicious"] == ["1", "2"]
        page.page.locator("#reach-chart svg[tabindex]").focus()
        page.page.keyboard.press("End")
        assert f"before round {history.kept[-1]} (" in page.text("#reach-chart .readout")  # and when
        page.page.fill("#since", "7")
        assert page.answer()["plan"]["since"] == {"1": 7, "2": 7}
        same(page.answer()["plan"], plan_of(history, ["1", "2"], since=7))
        assert "--since 7" in page.text("#commands")
        page.page.fill("#since", "99")
        assert "malicious since round 0 to" in page.answer()["refused"]
        page.page.fill("#since", "")
        page.page.locator("#beta").focus()
        page.page.keyboard.press("ArrowRight")
        assert page.answer()["plan"]["beta"] == 0.01


def test_the_onset_is_offered_with_what_it_saves_and_never_applied(browser: Any, tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", push(12, size=9.0))
    suspects = ledger(history).suspects
    began, before = onset(history, suspects), plan(history, suspects)
    assert (began.round, began.since) == (12, 10)
    saving = plan(history, suspects, since=began.since)
    shares = [planned_costs(p, p)[default_method(history)[0]].share_of_retrain for p in (saving, before)]
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        assert page.text("#onset") == ""
        page.page.click("#headline-take")
        assert f"before round 12, and a clear one by round {began.certain}" in page.text("#onset")
        cost = f"{shares[0]:.0%} of full retraining instead of {shares[1]:.0%}"
        assert "enter 10, 2 rounds earlier" in page.text("#onset")
        assert f"back to round {saving.rollback_round}, {cost}" in page.text("#onset")
        same(page.answer()["plan"], plan_of(history, list(suspects)))
        page.page.fill("#since", "10")
        assert page.text("#onset").startswith("The suspects differ visibly")
        page.page.fill("#since", "20")
        assert "count as honest until later" in page.text("#onset")
        page.click_client(next(c for c in history.clients if c not in suspects))
        assert page.text("#onset") == ""


def test_hostile_names_stay_names(browser: Any, tmp_path: Path) -> None:
    history = hostile_history(tmp_path / "h")
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        for client in HOSTILE[:-1]:
            page.click_client(client)
        page.page.locator("#clients-table summary").click()
        assert page.page.locator("script").count() == 2
        assert page.page.locator("img, main script, #map-clients b, #warnings b").count() == 0
        titles = page.page.locator("#map-clients button").evaluate_all("all => all.map((b) => b.title)")
        assert set(HOSTILE) <= set(titles)
        same(page.answer()["plan"], plan_of(history, HOSTILE[:-1]))
        arguments = shlex.split(page.page.locator("#commands code").first.inner_text())
        assert arguments[3].startswith("--malicious=")
        assert set(listed(arguments[3].partition("=")[2])) == set(HOSTILE[:-1])
        python = page.page.locator("#commands code").last.inner_text().splitlines()[2]
        told: dict[str, Any] = {}
        exec(f"def plan_of(history, malicious, **_): return malicious\nfound = {_call(python)}", told)
        assert told["found"] == set(HOSTILE[:-1])


def _call(line: str) -> str:
    return line.replace("plan = fedcrab.plan(history", "plan_of(None", 1)


@pytest.mark.parametrize("loss", [1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize(("rounds", "clients"), [(0, 0), (1, 0), (1, 1), (5, 1), (4, 2)])
def test_odd_histories_open(rounds: int, clients: int, loss: float, browser: Any, tmp_path: Path) -> None:
    history = odd_history(tmp_path / "h", rounds=rounds, clients=clients, losses=loss)
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        for button in page.page.locator("#map-clients button").all():
            button.click()
        assert bool(page.answer()["refused"]) == bool(clients < 2 or page.answer()["plan"] is None)
        assert page.text("#verdict-title")
        assert bool(page.page.locator("#sections a").count()) == bool(
            rounds
        )  # nothing to show without a round
        assert page.page.locator("#loss-chart svg").count() == bool(rounds and loss == 1.0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_it_fits_every_screen(
    scheme: str, width: int, history: History, browser: Any, tmp_path: Path
) -> None:
    path = written(history, tmp_path / "p.html", "2", "5", recovered=a_recovery(tmp_path / "r", history))
    with opened(browser, path, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert dark == (scheme == "dark")
        page.page.click("#theme")
        assert page.page.evaluate("getComputedStyle(document.documentElement).colorScheme") != scheme


def test_everything_that_can_be_pressed_has_a_name(history: History, browser: Any, tmp_path: Path) -> None:
    path = written(history, tmp_path / "p.html", "2", recovered=a_recovery(tmp_path / "r", history))
    with opened(browser, path) as page:
        nameless = page.page.evaluate(NAMELESS)
        assert nameless == []
        assert page.page.locator("h1").count() == 1
        assert page.page.locator("section h2").count() == page.page.locator("section").count()


def test_a_recovery_that_supposed_more_attackers_says_so(
    history: History, browser: Any, tmp_path: Path
) -> None:
    told = {}
    for count in (0, 2):
        decided = plan(history, {"1", "3"}, unfound=count).to_table()
        made = a_recovery(tmp_path / f"r{count}", history, plan=decided)
        with opened(browser, written(history, tmp_path / "p.html", recovered=made)) as page:
            told[count] = page.page.locator("#recovered-lead").inner_text()
            assert "plan --undetected" in page.page.locator("#reach").inner_text()
    assert "up to 2 undetected attackers beyond those named" in told[2]
    assert "beyond those named" not in told[0]


def test_recoveries_are_shown(history: History, browser: Any, tmp_path: Path) -> None:
    path = written(history, tmp_path / "p.html", recovered=a_recovery(tmp_path / "r", history))
    with opened(browser, path) as page:
        assert page.page.locator("#recovered").is_visible()
        assert "90.0%" in page.text("#outcomes")
        assert "50.0%" in page.text("#outcomes .bad")
        assert sorted(page.answer()["plan"]["malicious"]) == ["1", "3"]


def test_a_command_is_copied(history: History, browser: Any, tmp_path: Path) -> None:
    path = written(history, tmp_path / "p.html", "2")
    with opened(browser, path, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.page.locator("#commands button").first.click()
        page.page.locator("#commands .told:not(:empty)").wait_for()
        copied = page.page.evaluate("navigator.clipboard.readText()")
        assert copied == page.page.locator("#commands code").first.inner_text()


def test_suspects_are_taken_over_by_one_click(browser: Any, tmp_path: Path) -> None:
    trained = training(rounds=20, clients=12, attackers=3, kind="sybils", seed=2)
    history = record(trained, tmp_path / "h")
    suspects = set(ledger(history).suspects)
    assert suspects
    other = next(client for client in history.clients if client not in suspects)
    with opened(browser, written(history, tmp_path / "p.html")) as page:
        page.click_client(other)
        page.page.click("#take-suspects")
        assert set(page.answer()["plan"]["malicious"]) == {*suspects, other}
        page.click_client(other)
        assert set(page.answer()["plan"]["malicious"]) == suspects
        assert page.page.locator("#suspects .meter").count() == len(suspects)
        assert page.page.locator("#take-suspects").is_disabled()
        page.page.select_option("#sort", "signal")
        assert page.page.locator("#map-clients button .flag").count() == len(suspects)


def test_five_thousand_clients_with_a_thousand_marked(browser: Any, tmp_path: Path) -> None:
    rng, model = np.random.default_rng(7), np.zeros(6, np.float32)
    names, bad = tuple(sorted(f"c{n}" for n in range(5000))), [f"c{n}" for n in range(1000)]
    with History.create(tmp_path / "h", model, initial_loss=2.3) as history:
        for t in range(4):
            vectors = rng.normal(size=(5000, 6)).astype(np.float32)
            updates, step = Updates(names, vectors, np.ones(5000)), vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 2.0 - 0.1 * t, 0.1))
            model = model + step
    history = History.open(tmp_path / "h")
    theirs = plan(history, bad).to_table()
    path = written(history, tmp_path / "page.html", *bad)
    assert path.stat().st_size < 16_000_000
    with opened(browser, path) as page:
        ours = page.answer()["hardened"]
        assert sorted(ours["malicious"]) == theirs["malicious"]
        assert ours["sensitivity"] == pytest.approx(theirs["sensitivity"], rel=1e-6)
        assert ours["cost"] == theirs["cost"]
        assert "1,000 of 5,000 clients" in " ".join(page.text("#figures").split())
        assert "more marked clients are not shown one by one" in page.text("#reduced")
        told = page.page.locator("#commands").text_content()
        assert {*bad} <= {*re.findall(r"c\d+", told)}
