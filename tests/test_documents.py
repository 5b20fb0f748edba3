"""Every code block of the README and of docs/ is run as it stands, or, where it cannot be, checked.

Fenced blocks are run: python, console and toml. Indented ones are for other machines and long runs: every
command in them must exist, with its options (test_commands_that_are_not_run_exist).
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedcrab
from trials.forked import forking

ROOT = Path(__file__).parent.parent
# Stories of their own, followed in tests/flower/test_guide.py and tests/nvflare/test_guide.py.
GUIDES = {ROOT / "docs" / name for name in ("flower.md", "nvflare.md")}
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - GUIDES)]
# These tell of one history, with the same commands: what one of them has run, the next finds.
STORY = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "commands"))]
ELSEWHERE = {"fedcrab demo --out shown"}  # followed by tests/test_cli.py, with everything else about the demo
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
GIVEN = re.compile(r"^<!-- given\n(.*?)^-->", re.MULTILINE | re.DOTALL)  # what the reader has already
INDENTED = re.compile(r"(?:^\n|\A)((?: {4}.*\n)+)", re.MULTILINE)


def blocks(document: Path, kind: str) -> list[str]:
    return [text for language, text in BLOCK.findall(document.read_text()) if language == kind]


def environment() -> dict[str, str]:
    """With the package and the commands of the interpreter that runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


SESSIONS = {d: len(blocks(d, "console")) for d in DOCUMENTS if d not in STORY and blocks(d, "console")}


def run(command: list[str], place: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=place, env=env, timeout=300, **streams)


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment whose commands start without importing the simulator again."""
    with forking(tmp_path_factory.mktemp("forked"), environment()) as env:
        yield env


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_python_blocks_run(document: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The README's in a Python of their own: its imports must not warn either."""
    program = "\n".join(blocks(document, "python"))
    if not program:
        return
    if document == ROOT / "README.md":
        done = run([sys.executable, "-W", "error", "-c", program], tmp_path, environment())
    else:
        env = request.getfixturevalue("forked")
        done = run(["sh", "-c", 'forked-python "$0"', program], tmp_path, env)
    assert done.returncode == 0, done.stdout


def test_a_program_that_fails_or_warns_is_noticed(tmp_path: Path, forked: dict[str, str]) -> None:
    for program in ("1 / 0", "import warnings; warnings.warn('x')", "raise SystemExit(3)"):
        assert run(["sh", "-c", 'forked-python "$0"', program], tmp_path, forked).returncode != 0
    assert run(["sh", "-c", "fedcrab show nowhere"], tmp_path, forked).returncode == 2


@pytest.mark.long(60)
def test_readme_tutorial_and_commands_show_what_the_commands_print(
    tmp_path: Path, forked: dict[str, str]
) -> None:
    done: dict[str, str] = {}
    for document in STORY:
        follow(document, tmp_path, forked, done)


@pytest.mark.long(30)
@pytest.mark.parametrize("document", sorted(SESSIONS, key=lambda d: -SESSIONS[d]), ids=lambda d: d.name)
def test_console_blocks_show_what_the_commands_print(
    document: Path, tmp_path: Path, forked: dict[str, str]
) -> None:
    follow(document, tmp_path, forked, {})


def follow(document: Path, place: Path, env: dict[str, str], done: dict[str, str]) -> None:
    """Run the commands of a document; those in ``done`` have been run in the same place."""
    for command, expected in sessions(document):
        if command in ELSEWHERE:
            continue
        if command not in done:
            done[command] = run(["sh", "-c", command], place, env).stdout
        assert_shown(expected, done[command])


def sessions(document: Path) -> Iterator[tuple[str, str]]:
    """Each command of a document and what the document shows of its output, what is given first."""
    for block in [*GIVEN.findall(document.read_text()), *blocks(document, "console")]:
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = session.partition("\n")
            yield command, expected


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_commands_that_are_not_run_exist(document: Path) -> None:
    """In indented blocks: fedcrab's commands parse, scripts and their options are there, extras are known."""
    for line in commands_not_run(document):
        words = shlex.split(line, comments=True)
        problem = CHECKS[words[0]](words[1:]) if words[0] in CHECKS else None
        assert problem is None, f"{document.name}: {line}: {problem}"


def commands_not_run(document: Path) -> list[str]:
    """The lines of indented blocks that begin with a program we know."""
    text = BLOCK.sub("", document.read_text())
    lines = [line[4:] for block in INDENTED.findall(text) for line in block.splitlines()]
    return [line for line in lines if line.split(" ")[0] in CHECKS]


def fedcrab_problem(words: list[str]) -> str | None:
    """Why a command line of fedcrab does not parse; nothing is run."""
    import click

    from fedcrab.cli import COMMANDS, load_command

    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    try:
        load_command(words[0]).make_context(words[0], words[1:])
    except click.UsageError as error:
        return error.format_message()
    return None


def script_problem(words: list[str]) -> str | None:
    """Why `python SCRIPT --option ...` cannot be what it says."""
    if words[0].startswith("-"):  # python -m venv, python -c ...
        return None
    path = ROOT / words[0]
    if not path.is_file():
        return "no such file"
    missing = [word for word in words[1:] if word.startswith("--") and word not in path.read_text()]
    return f"no option {missing}" if missing else None


def install_problem(words: list[str]) -> str | None:
    """Why `pip install 'fedcrab[extra]'` would not install what it says."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for word in words for part in re.findall(r"\[(.*?)\]", word) for name in part.split(",")]
    unknown = [name for name in named if name not in extras]
    return f"no extra {unknown}" if unknown else None


def dask_problem(words: list[str]) -> str | None:
    """Why `dask worker --option ...` is not a command of Dask."""
    module = pytest.importorskip(f"distributed.cli.dask_{words[0]}")
    known = {name for parameter in module.main.params for name in parameter.opts}
    unknown = [word for word in words[1:] if word.startswith("--") and word not in known]
    return f"no option {unknown}" if unknown else None


def make_problem(words: list[str]) -> str | None:
    """Why there is nothing to make."""
    text = (ROOT / "Makefile").read_text()
    return None if re.search(rf"^{words[0]}:", text, re.MULTILINE) else f"no target {words[0]}"


CHECKS = {
    "fedcrab": fedcrab_problem,
    "python": script_problem,
    "sh": script_problem,
    "pip": install_problem,
    "make": make_problem,
    "dask": dask_problem,
}


def test_the_checks_of_commands_find_mistakes() -> None:
    assert fedcrab_problem(["plan", "h", "--malicios", "3"])
    assert fedcrab_problem(["plane", "h"])
    assert fedcrab_problem(["plan", "h", "--malicious", "3"]) is None
    assert script_problem(["benchmarks/none.py"])
    assert script_problem(["benchmarks/page.py", "--clocks", "3"])
    assert install_problem(["install", "fedcrab[simulat]"])
    assert make_problem(["tests"])
    assert dask_problem(["worker", "--workers", "8"])
    assert len(commands_not_run(ROOT / "docs" / "cluster.md")) > 3


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


def test_the_table_of_scale_is_what_its_command_prints() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/scale.py", "--table"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) > 20
    assert done.stdout.strip() in (ROOT / "docs" / "scale.md").read_text()


def test_the_figures_of_the_readme_are_those_of_the_documents() -> None:
    """Recovery by its defaults, and the simulator beside its peers."""
    told = (ROOT / "README.md").read_text()
    row = next(line for line in told.splitlines() if line.startswith("| recovery with the defaults"))
    measured = row.split(" | ")[1].replace(" %", "")
    whole = next(
        line for line in (ROOT / "docs" / "recovery.md").read_text().splitlines() if "| all |" in line
    )
    for figure in re.findall(r"\d+(?:\.\d+)?", measured):
        assert re.search(rf"[| (]{re.escape(figure)}[ |)]", whole), f"{figure} is not in {whole}"
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    for figure in re.findall(r"(?:MLP|CNN) (\d\.\d) times", told):
        wall = [float(x) for x in re.findall(r"\| (\d+\.\d+)× \([^|]*\) \|", benchmarks)]
        assert float(figure) in [round(x, 1) for x in wall]


def test_the_version_stands_in_one_place_and_has_its_part_of_the_changelog() -> None:
    """A wheel takes its version from ``fedcrab.__version__``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/fedcrab/__init__.py"
    releases = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert fedcrab.__version__ in releases
