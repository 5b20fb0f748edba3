"""Every code block of the README and of docs/ is run as it stands."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedcrab
from trials.forked import forking

ROOT = Path(__file__).parent.parent
# Stories of their own, followed in tests/flower/test_guide.py and tests/nvflare/test_guide.py.
GUIDES = {ROOT / "docs" / name for name in ("flower.md", "nvflare.md")}
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - GUIDES)]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(document: Path, kind: str) -> list[str]:
    return [text for language, text in BLOCK.findall(document.read_text()) if language == kind]


def environment() -> dict[str, str]:
    """With the package and the commands of the interpreter that runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


SESSIONS = {d: len(blocks(d, "console")) for d in DOCUMENTS[1:] if blocks(d, "console")}


def run(command: list[str], place: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=place, env=env, timeout=300, **streams)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_python_blocks_run(document: Path, tmp_path: Path) -> None:
    program = "\n".join(blocks(document, "python"))
    done = run([sys.executable, "-W", "error", "-c", program], tmp_path, environment())
    assert done.returncode == 0, done.stdout


@pytest.mark.long(30)
def test_the_readme_shows_what_the_commands_print(tmp_path: Path) -> None:
    """As on a user's machine, with worker processes."""
    env = {name: value for name, value in environment().items() if name != "FEDCRAB_WORKERS"}
    follow(ROOT / "README.md", tmp_path, env)


@pytest.mark.long(60)
@pytest.mark.parametrize("document", sorted(SESSIONS, key=lambda d: -SESSIONS[d]), ids=lambda d: d.name)
def test_console_blocks_show_what_the_commands_print(
    document: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with forking(tmp_path_factory.mktemp("forked"), environment()) as env:
        follow(document, tmp_path, env)


def follow(document: Path, place: Path, env: dict[str, str]) -> None:
    for block in blocks(document, "console"):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = session.partition("\n")
            assert_shown(expected, run(["sh", "-c", command], place, env).stdout)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_toml_blocks_are_configurations_or_suites(document: Path) -> None:
    from fedcrab.experiment.config import Config
    from fedcrab.experiment.matrix import expand
    from fedcrab.experiment.rehearsal import check_config, rehearse
    from fedcrab.experiment.suite import Suite

    for block in blocks(document, "toml"):
        table = tomllib.loads(block)
        if "base" in table:
            rehearse(expand(Suite.model_validate(table)))
        else:
            check_config(Config.model_validate(table))


def assert_shown(expected: str, printed: str) -> None:
    """Each line shown is printed, in this order; a line of three dots stands for any lines."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    for line in (line.rstrip() for line in expected.splitlines()):
        found = line in ("", "...") or any(shown(line, other) for other in lines)
        assert found, f"not printed, or not in this order: {line!r}\n{printed}"


def shown(line: str, printed: str) -> bool:
    """Whether a line is the printed one; three dots at its end stand for the rest."""
    return printed.startswith(line.removesuffix("...")) if line.endswith("...") else line == printed


def test_every_command_is_documented() -> None:
    from fedcrab.cli import COMMANDS, load_command

    text = (ROOT / "docs" / "commands.md").read_text()
    assert len(COMMANDS) > 10
    for name in COMMANDS:
        command = load_command(name)
        assert f"## `{name}" in text, f"docs/commands.md does not describe {name}"
        assert command.epilog, f"{name} --help has no example"


def test_the_version_stands_in_one_place_and_has_its_part_of_the_changelog() -> None:
    """A wheel takes its version from ``fedcrab.__version__``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/fedcrab/__init__.py"
    releases = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert fedcrab.__version__ in releases
