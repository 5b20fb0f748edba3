"""The commands as people and programs call them."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import typer
from click.shell_completion import ShellComplete
from rich.cells import cell_len

from detect.gatherings import cloned, gathering, noisy
from fedcrab import History, Round, Updates
from fedcrab.cli import COMMANDS, app, load_command
from fedcrab.demo import run_demo
from fedcrab.demo.small import record_and_plan
from test_documents import ELSEWHERE, ROOT, assert_shown, sessions
from trials.command import fedcrab
from trials.trainings import training

pytestmark = pytest.mark.long(15)

BAD = frozenset({"c2", "c5", "c11"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli")
    trained = training(rounds=12, clients=11)
    with History.create(place / "h", trained.initial_model, initial_loss=2.3) as history:
        for r in trained.rounds:
            history.record(r)
    with History.create(place / "empty", trained.initial_model, initial_loss=2.3):
        pass
    (place / "nothing").mkdir()
    (place / "damaged").mkdir()
    for path in (place / "h").iterdir():
        if path.is_file():
            (place / "damaged" / path.name).write_bytes(path.read_bytes()[:-100])
    return place


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attacked")
    gathering(place / "h", noisy, BAD)
    gathering(place / "fine")
    return place


def test_as_a_process_it_prints_and_ends_as_when_called(place: Path) -> None:
    for arguments in ("plan h --malicious 3,7 --json", "plan h --malicious 99", "show --help"):
        command = [sys.executable, "-m", "fedcrab", *arguments.split()]
        alone = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600, check=False)
        called = fedcrab(*arguments.split(), cwd=place)
        assert (alone.returncode, alone.stderr) == (called.returncode, called.stderr)
        assert alone.stdout == called.stdout


def test_show_as_json(place: Path) -> None:
    shown = json.loads(fedcrab("show", "h", "--json", cwd=place).stdout)
    assert shown["clients"] == sorted(str(i) for i in range(11))
    assert len(shown["rounds"]) == 12
    names = {"index", "window", "state", "loss", "divergence", "participants", "selected", "rejected"}
    assert set(shown["rounds"][0]) == names | {"began", "ended"}
    assert {r["state"] for r in shown["rounds"]} == {"kept", "dropped"}
    assert shown["bytes"]["total"] == sum(p.stat().st_size for p in (place / "h").rglob("*") if p.is_file())


def test_show_for_people(place: Path) -> None:
    done = fedcrab("show", "h", cwd=place)
    assert done.returncode == 0
    assert "12 rounds" in done.stdout
    assert "dropped" in done.stdout


def test_plan_as_json(place: Path) -> None:
    shown = json.loads(fedcrab("plan", "h", "--malicious", "3,7", "--json", cwd=place).stdout)
    promised = "malicious beta evidence rule index rollback_round sensitivity threshold replay cost warnings"
    assert set(promised.split()) <= set(shown)
    assert shown["malicious"] == ["3", "7"]
    assert set(shown["presets"]) == {"paper", "hardened"}
    assert shown["sensitivity"] == shown["presets"]["hardened"]["sensitivity"]


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["people", "json"])
def test_suspects_are_piped_into_a_plan(form: list[str], attacked: Path) -> None:
    found = fedcrab("detect", "h", *form, cwd=attacked)
    assert found.returncode == 0
    planned = fedcrab("plan", "h", "--malicious", "-", "--json", cwd=attacked, given=found.stdout)
    assert set(json.loads(planned.stdout)["malicious"]) == BAD
    none = fedcrab("detect", "fine", *form, cwd=attacked)
    planned = fedcrab("plan", "h", "--malicious", "-", cwd=attacked, given=none.stdout)
    assert planned.returncode == 2
    assert "no sign of attack" in planned.stderr


def test_detect_shows_scores_as_bars(attacked: Path) -> None:
    shown = fedcrab("detect", "h", "--detector", "fldetector", cwd=attacked).stdout
    bars = {
        line.split("│")[1].strip(): line.count("█") for line in shown.splitlines() if line.startswith("│")
    }
    assert min(bars[c] for c in BAD) > max(count for c, count in bars.items() if c not in BAD)
    assert "sure" in shown
    fine = fedcrab("detect", "fine", cwd=attacked).stdout
    assert re.search(
        r"No sign of attack \(all, 14 rounds; strongest signal: \d\d?% of the alarm threshold", fine
    )


def test_many_suspects_stay_on_one_line(tmp_path: Path) -> None:
    bad = frozenset(f"c{i}" for i in range(40))
    gathering(tmp_path / "h", cloned, bad, clients=90, rounds=3)
    found = fedcrab("detect", "h", cwd=tmp_path).stdout
    line = next(line for line in found.splitlines() if line.startswith("Suspects:"))
    assert set(line.removeprefix("Suspects:").replace(",", " ").split()) == bad
    assert "60 of 90" in found


def test_plan_with_settings_of_ones_own(place: Path) -> None:
    own = ["--beta", "9", "--evidence", "stored", "--rule", "last", "--curves"]
    done = fedcrab("plan", "h", "--malicious", "3", *own, cwd=place)
    assert done.returncode == 0
    assert "stored, last, 9" in done.stdout
    shown = json.loads(fedcrab("plan", "h", "--malicious", "3", *own, "--json", cwd=place).stdout)
    assert (shown["beta"], shown["evidence"], shown["rule"]) == (9, "stored", "last")


def test_plan_for_attackers_not_found(place: Path) -> None:
    plain, hedged = (
        json.loads(fedcrab("plan", "h", "--malicious", "3", *more, "--json", cwd=place).stdout)
        for more in ((), ("--undetected", "20%"))
    )
    assert "unfound" not in plain
    assert hedged["unfound"] == 3
    assert all(s >= t for s, t in zip(hedged["sensitivity"], plain["sensitivity"], strict=True))
    assert hedged["presets"]["hardened"] == plain["presets"]["hardened"]
    told = fedcrab("plan", "h", "--malicious", "3", "--undetected", "3", cwd=place)
    assert "undetected attackers" in told.stdout
    earlier = fedcrab("plan", "h", "--malicious", "3", "--unfound=3", cwd=place)
    assert earlier.stdout == told.stdout
    wrong = fedcrab("plan", "h", "--malicious", "3", "--undetected", "10", cwd=place)
    assert (wrong.returncode, len(wrong.stderr.strip().splitlines())) == (2, 1)
    assert "--unfound" not in fedcrab("plan", "--help", cwd=place).stdout


def test_verify(place: Path) -> None:
    whole = json.loads(fedcrab("verify", "h", "--json", cwd=place).stdout)
    assert (whole["ok"], whole["problems"]) == (True, [])
    done = fedcrab("verify", "damaged", "--json", cwd=place)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert "ledger" in found["problems"][0]


def test_demo_and_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run once: what it prints is what docs/commands.md shows, and what --json prints holds."""
    pytest.importorskip("torch")
    results: list[Any] = []

    @contextmanager
    def watched(*given: Any) -> Iterator[Any]:
        with run_demo(*given) as result:
            results.append(result.to_table())
            yield result

    monkeypatch.setattr("fedcrab.cli.demo.run_demo", watched)
    (command, expected) = next(s for s in sessions(ROOT / "docs" / "commands.md") if s[0] in ELSEWHERE)
    assert_shown(expected, fedcrab(*command.split()[1:], cwd=tmp_path).stdout)
    shown = json.loads(json.dumps(results[0], allow_nan=False))
    rows = {row["method"]: row for row in shown["methods"]}
    names = ["poisoned", "retrain", "retrain-few", "finetune", "subtract-and-distil", "federaser"]
    names += ["fedrecover", "replay", "crab-paper", "crab-hardened"]
    assert list(rows) == names
    assert rows["poisoned"]["asr"] > 0.8
    assert all(rows[name]["asr"] < 0.05 for name in names[1:] if name != "finetune")
    assert rows["finetune"]["asr"] > 0.5  # honest examples do not speak against a backdoor
    assert all(row["contact_rounds"] <= row["rounds"] for row in rows.values())
    before, after = shown["training"][19], shown["training"][39]  # attackers begin in round 20
    assert before["asr"] < 0.05 < 0.8 < after["asr"]
    assert sorted(shown["suspects"]) == sorted(shown["plans"]["hardened"]["malicious"])
    assert abs(shown["onset"]["round"] - 20) <= 2
    assert rows["replay"]["ta"] > rows["retrain"]["ta"] - 0.03
    assert rows["replay"]["client_rounds"] <= 0.15 * rows["retrain"]["client_rounds"]
    assert rows["replay"]["contact_rounds"] <= 0.3 * rows["retrain"]["contact_rounds"]
    assert rows["crab-hardened"]["ta"] > rows["retrain"]["ta"] - 0.02
    assert rows["crab-hardened"]["client_rounds"] <= rows["retrain"]["client_rounds"] / 2
    assert (tmp_path / "shown" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "shown" / "incident.html").read_text().startswith("<!doctype html>")
    for name in ("selective", "every", "everything"):
        assert History.verify(tmp_path / "shown" / name) == []


def test_the_small_demo_needs_no_simulator(tmp_path: Path) -> None:
    with record_and_plan(tmp_path / "kept") as recorded:
        shown, people = recorded.to_table(), recorded.tables()
    assert shown["plans"]["hardened"]["malicious"] == ["4", "7", "9"]
    assert shown["bytes"]["everything"] > 8 * shown["bytes"]["selective"]
    assert shown["plans"]["hardened"]["rollback_round"] == 8
    assert people
    rows = {row["method"]: row for row in shown["methods"]}
    assert rows["poisoned"]["ta"] < rows["replay"]["ta"] - 0.05
    assert rows["replay"]["ta"] > rows["retrain"]["ta"] - 0.03
    assert rows["replay"]["client_rounds"] < 0.3 * rows["retrain"]["client_rounds"]
    assert History.verify(tmp_path / "kept") == []


@pytest.mark.parametrize(
    "arguments",
    [
        "plan h --malicious 99",
        "plan h --malicious ,",
        "plan h --malicious",
        "plan h",
        "plan h --malicious 0,1,2,3,4,5,6,7,8,9,10",
        "plan h --malicious 1 --beta -1",
        "plan h --malicious 1 --beta nan",
        "plan h --malicious 1 --beta much",
        "plan h --malicious 1 --evidence rumour",
        "plan h --malicious 1 --preset soft",
        "plan empty --malicious 1",
        "plan nothing --malicious 1",
        "plan damaged --malicious 1",
        "plan h --malicious -",
        "detect empty",
        "detect nothing",
        "detect damaged",
        "detect h --detector rumour",
        "detect h --detector fldetector",
        "show nothing",
        "show nowhere",
        "show damaged",
        "show h/ledger.sqlite",
        "verify nothing",
        "verify nowhere",
        "verify damaged",
        "demo --out h",
        "dance",
        "show h --backwards",
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = fedcrab(*arguments.split(), cwd=place)
    assert done.returncode == 2
    said = done.stderr if not arguments.startswith("verify damaged") else done.stdout
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert sorted(place.rglob("*")) == before


OUT_OF_RANGE = version("click") >= "8.5" and version("typer") < "0.21"


@pytest.mark.skipif(OUT_OF_RANGE, reason="this click loses help texts, and pyproject.toml excludes it")
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_explains_every_argument_and_option(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 300)
    done = fedcrab(*([name] if name else []), "--help", cwd=tmp_path)
    shown = " ".join(done.stdout.replace("│", " ").split())
    command = load_command(name) if name else typer.main.get_command(app)
    assert done.returncode == 0
    assert f"Example: fedcrab {name}" in shown or not name
    for asked in command.params:
        assert asked.help, f"{name} {asked.name} has no help text"
        assert " ".join(asked.help.split()) in shown, f"{name} {asked.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_listed_with_the_first_sentence_of_their_help(name: str) -> None:
    told = load_command(name).help.split("\n\n")[0]
    assert COMMANDS[name] == " ".join(told.split())


def offered(*words: str) -> list[str]:
    """What a shell is offered behind these words, the last of which is begun."""
    shell = ShellComplete(typer.main.get_command(app), {}, "fedcrab", "_FEDCRAB_COMPLETE")
    return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]


def test_a_shell_completes_commands_choices_and_clients(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert offered("re") == ["recover", "report", "reproduce"]
    assert offered("recover", "h", "--method", "crab") == ["crab-paper", "crab-hardened"]
    assert offered("reproduce", "--scale", "") == ["smoke", "laptop", "full"]
    assert offered("detect", "h", "--detector", "l") == ["ledger"]
    assert offered("plan", "h", "--malicious", "") == [str(c) for c in range(11)]
    assert offered("recover", "h", "--malicious", "10,1") == ["10,1"]
    assert offered("report", "h", "--malicious", "1") == ["1", "10"]
    assert offered("plan", "nothing", "--malicious", "") == []
    assert offered("plan", "--malicious", "") == []


def test_a_shell_asks_the_program(place: Path) -> None:
    asked = {"_FEDCRAB_COMPLETE": "complete_bash", "COMP_WORDS": "fedcrab plan h --malicious 1"}
    environment = {**os.environ, **asked, "COMP_CWORD": "4"}
    command = [sys.executable, "-c", "from fedcrab.cli import main; main()"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["1", "10"]


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["tables", "json"])
def test_a_closed_pipe_ends_a_command_quietly(place: Path, more: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "fedcrab", "show", "h", *more]
    done = subprocess.run(command, cwd=place, stdout=theirs, stderr=subprocess.PIPE, timeout=600)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plann", "h"), "no command 'plann'; did you mean 'plan'?"),
        (("dance",), "no command 'dance'; there are demo, train, show"),
        (("plan", "h"), "Missing option '--malicious'; 'fedcrab plan --help' has an example"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(arguments: tuple[str, ...], told: str, place: Path) -> None:
    done = fedcrab(*arguments, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize(("history", "code"), [("h", 1), ("fine", 0)])
def test_a_script_asks_detect_for_an_exit_code(history: str, code: int, attacked: Path) -> None:
    more = ("--detector", "ledger")
    assert fedcrab("detect", history, *more, "--exit-code", cwd=attacked).returncode == code
    assert fedcrab("detect", history, *more, "--exit-code", "--json", cwd=attacked).returncode == code
    assert fedcrab("detect", history, *more, cwd=attacked).returncode == 0


def lines_of(done: CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_output_fits_and_ends_with_the_next_command(
    width: int, attacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that needs no simulator; the others are in experiment/test_output.py."""
    monkeypatch.setenv("COLUMNS", str(width))
    shown = lines_of(fedcrab("show", "h", cwd=attacked))
    found = lines_of(fedcrab("detect", "h", "--detector", "ledger", cwd=attacked))
    ids = found[-1].split()[-1]
    assert set(ids.split(",")) == BAD
    planned = lines_of(fedcrab(*found[-1].split()[2:], "--curves", cwd=attacked))
    verified = lines_of(fedcrab("verify", "h", cwd=attacked))
    written = lines_of(fedcrab("report", "h", "--malicious", ids, "-o", "page.html", cwd=attacked))
    assert shown[-1] == verified[-1] == "Next: fedcrab detect h"
    assert found[-1] == f"Next: fedcrab plan h --malicious {ids}"
    assert planned[-1].startswith("Next, in Python: fedcrab.recover('h', fleet, malicious={")
    assert written[-1] == "Next: python -m webbrowser page.html"
    in_one_piece = ("Next", "head ", "Suspects: ")
    for line in (*shown, *found, *planned, *verified, *written):
        assert cell_len(line) <= width or line.startswith(in_one_piece), line
    assert all(any(client in line.replace("│", " ").split() for line in found) for client in BAD)


def test_the_next_command_is_quoted_for_the_shell(tmp_path: Path) -> None:
    names = frozenset({"CN=a b,O=c", "it's me"})
    honest = [f"client {i}" for i in range(9)]
    rng, model = np.random.default_rng(0), np.zeros(30, np.float32)
    with History.create(tmp_path / "my history", model, initial_loss=2.0, notes='{"clients": {}}') as history:
        for t in range(8):
            answers = {c: (rng.normal(size=30) + 9 * (c in names), 1) for c in (*honest, *names)}
            updates = Updates.of(answers)
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 2.0 / (t + 2), 0.1))
            model = model + step
    last = lines_of(fedcrab("detect", "my history", "--detector", "ledger", cwd=tmp_path))[-1]
    words = shlex.split(last.removeprefix("Next: "))
    planned = fedcrab(*words[1:], "--since", "3", cwd=tmp_path)
    again = shlex.split(lines_of(planned)[-1].removeprefix("Next: "))
    assert again[1:3] == ["recover", "my history"]
    asked = json.loads(fedcrab("plan", *again[2:-2], "--json", cwd=tmp_path).stdout)
    assert set(asked["malicious"]) == names
    assert asked["since"] == dict.fromkeys(names, 3)


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ('{"flower": {}}', "Next: flwr run . --run-config \"mode='recover' malicious='a@1' history='"),
        ('{"nvflare": {}}', "Next: python -m fedcrab.nvflare TRAINING-JOB-FOLDER --history "),
        ("", "Next, in Python: fedcrab.recover("),
        ("three sites, learning rate 0.1", "Next, in Python: fedcrab.recover("),
        ('{"clients": {}}', "Next: fedcrab recover h --malicious a --since a@1 --out recovered"),
    ],
)
def test_a_plan_says_how_to_recover_where_the_clients_are(notes: str, told: str, tmp_path: Path) -> None:
    with History.create(tmp_path / "h", np.zeros(2, np.float32), notes=notes) as history:
        for _ in range(2):
            history.record({c: (history.final_model() + 1, 1) for c in "abc"})
    last = lines_of(fedcrab("plan", "h", "--malicious", "a@1", cwd=tmp_path))[-1]
    assert last.startswith(told)


@pytest.mark.parametrize(
    ("engine", "told"),
    [("flower", "unfound='10%'"), ("nvflare", """--set 'planned={"unfound": "10%"}'""")],
)
def test_a_plan_hands_undetected_attackers_on_to_the_engine(engine: str, told: str, tmp_path: Path) -> None:
    with History.create(tmp_path / "h", np.zeros(2, np.float32), notes=json.dumps({engine: {}})) as history:
        for _ in range(2):
            history.record({str(c): (history.final_model() + 1, 1) for c in range(10)})
    last = lines_of(fedcrab("plan", "h", "--malicious", "3", "--undetected", "10%", cwd=tmp_path))[-1]
    assert told in last


def test_the_version(tmp_path: Path) -> None:
    assert fedcrab("--version", cwd=tmp_path).stdout.startswith("fedcrab ")
