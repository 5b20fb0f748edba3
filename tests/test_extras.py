"""Commands without the optional packages, and with paths that are attacks: one printable sentence."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedcrab as package
from fedcrab import History
from fedcrab.extras import EXTRAS, need_extra
from trials.command import fedcrab
from trials.recovered import certified
from trials.trainings import training

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "scipy": "scikit-learn",
    "mlflow": "mlflow-skinny",
}  # scipy comes along
BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
BARE = (
    BLOCKED
    + """
import contextlib, io, json
from fedcrab.cli import _run
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = _run(arguments)
    print(json.dumps([code, err.getvalue()]))
from fedcrab import simulate
for lazy in ("simulate.SimulatedFleet", "flower.Recorder", "nvflare.Recorder"):
    package, _, name = lazy.partition(".")
    try:
        getattr(__import__(f"fedcrab.{package}", fromlist=[name]), name)
    except ImportError as error:
        print(json.dumps([package, str(error)]))
"""
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bare")
    trained = training(rounds=6, clients=5)
    with History.create(place / "plain", trained.initial_model, initial_loss=2.3) as history:
        for r in trained.rounds:
            history.record(r)
    certified(place)
    (place / "key.pem").write_text("no key")
    return place


def test_without_extras_each_command_says_what_to_install(place: Path) -> None:
    wanted = {
        "train digits --history new": "simulate",
        "recover plain --malicious 3 --out new": "simulate",
        "evaluate out": "simulate",
        "bench suite.toml": "simulate",
        "reproduce": "simulate",
        "report plain --accuracy": "simulate",
        "certify out/crab-hardened --key key.pem": "sign",
        "demo --out demonstrated": None,
        "show plain": None,
        "detect plain": None,
        "plan plain --malicious 3": None,
        "verify plain": None,
        "certify out/crab-hardened": None,
        "verify out/crab-hardened": None,
        "report plain": None,
    }
    before = {path for path in place.rglob("*") if path.is_file()}
    given = json.dumps([command.split() for command in wanted])
    done = subprocess.run(
        [sys.executable, "-c", BARE], input=given, cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (command, extra), (code, said) in zip(wanted.items(), answers, strict=False):
        assert "mistake" not in said, (command, said)
        assert code == (0 if extra is None else 2), (command, said)
        if extra:
            assert f"pip install 'fedcrab[{extra}]'" in said, (command, said)
            assert len(said.splitlines()) == 1
    assert [extra for extra, _ in answers[len(wanted) :]] == ["simulate", "flower", "nvflare"]
    assert all(f"pip install 'fedcrab[{extra}]'" in said for extra, said in answers[len(wanted) :])
    new = {
        path.relative_to(place).parts[0] for path in place.rglob("*") if path.is_file() and path not in before
    }
    assert new <= {"demonstrated", "incident.html", "out"}


@pytest.mark.parametrize("package", ["nvflare", "flower"])
def test_a_package_run_without_its_engine_says_what_to_install(tmp_path: Path, package: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    done = subprocess.run(
        [sys.executable, "-m", f"fedcrab.{package}", "job", "--history", "h"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"pip install 'fedcrab[{package}]'" in done.stderr


def test_every_import_is_declared_or_optional() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, extra in EXTRAS.items():
        offered = [line.split(">")[0].split("[")[0] for line in project["optional-dependencies"][extra]]
        assert {name, DISTRIBUTIONS.get(name, name)} & set(offered), name
    declared = {line.split(">")[0] for line in project["dependencies"]} | {"click"}  # typer's own
    found = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    assert found - {"fedcrab"} - set(sys.stdlib_module_names) <= {*declared, *EXTRAS}


def test_an_extra_that_is_there_is_not_asked_for() -> None:
    need_extra("simulate", "this test")


ESCAPE = "\x1b]0;owned\x07\x1b[31mred\u202e"


def test_no_escape_sequence_of_a_path_reaches_the_terminal(place: Path) -> None:
    evil = place / f"evil{ESCAPE}"
    (place / "plain").rename(evil)
    try:
        for arguments in (
            ["show", str(evil)],
            ["detect", str(evil)],
            ["plan", str(evil), "--malicious", "3"],
            ["plan", str(evil), "--malicious", f"9{ESCAPE}"],
            ["verify", str(evil)],
            ["report", str(evil), "-o", str(place / f"page{ESCAPE}.html")],
            ["show", str(place / f"nowhere{ESCAPE}")],
            ["train", f"{ESCAPE}.toml", "--history", "x"],
            ["bench", f"{ESCAPE}.toml"],
            ["certify", f"out{ESCAPE}"],
        ):
            done = fedcrab(*arguments, cwd=place)
            assert done.stdout + done.stderr
            assert (done.stdout + done.stderr).replace("\n", "").isprintable(), arguments
    finally:
        evil.rename(place / "plain")


@pytest.mark.parametrize(
    "bad", ["x" * 5000, "y/" * 2500, "a\0b", "\ud800", ""], ids=["long", "deep", "nul", "half", "none"]
)
@pytest.mark.parametrize(
    "command", ["evaluate out", "report out", "plan out --malicious 3", "verify out/crab-hardened"]
)
def test_a_path_that_cannot_be_is_one_sentence(place: Path, bad: str, command: str) -> None:
    path = place / "out" / "crab-hardened" / "summary.json"
    whole = path.read_bytes()
    table = json.loads(whole)
    try:
        path.write_text(
            json.dumps(
                {**table, "history": bad, "history_head": "0" * 64, "malicious": [], "model_sha256": "0" * 64}
            )
        )
        (place / "out" / "retrain" / "summary.json").rename(place / "aside.json")
        done = fedcrab(*command.split(), cwd=place)
    finally:
        path.write_bytes(whole)
        (place / "aside.json").rename(place / "out" / "retrain" / "summary.json")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert "mistake" not in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize(
    "command",
    [
        "show",
        "plan --malicious 3",
        "verify",
        "detect",
        "report",
        "evaluate",
        "certify",
        "bench",
        "train --history h",
    ],
)
@pytest.mark.parametrize("path", ["x" * 5000, "x" * 300, "\udc80"], ids=["long", "name", "byte"])
def test_a_path_that_the_system_refuses_is_one_sentence(place: Path, command: str, path: str) -> None:
    done = fedcrab(command.split()[0], path, *command.split()[1:], cwd=place)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert "mistake" not in done.stderr
