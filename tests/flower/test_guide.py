"""docs/flower.md as a new user would follow it: every block, in its order, on a copy of the example."""

import re
import shutil
import subprocess
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from deployment import BIN, Deployment, environment, free_port, quickly, simulated

from fedcrab.flower import recovery
from test_documents import BLOCK, assert_shown

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "flower.md").read_text()
FIRST, _, SECOND = GUIDE.partition("## On real machines")


def follow(text: str, app: Path, env: dict[str, str]) -> None:
    """Write the files that a block names, apply what is a difference, run what is a session."""
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            (app / block.partition("\n")[0].removeprefix("# ")).write_text(block)
        elif kind == "diff":
            reverse = ["patch", "-p1", "-R"]
            subprocess.run(reverse, input=block, text=True, cwd=app, check=True)
            assert "fedcrab" not in (app / "digits" / "server.py").read_text()
            subprocess.run(["patch", "-p1"], input=block, text=True, cwd=app, check=True)
        elif kind == "toml":
            config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
            assert tomllib.loads(block).items() <= config.items()
        else:
            assert kind == "console", f"a block of kind {kind} is run by nobody"
            session(block, app, env)


def session(block: str, app: Path, env: dict[str, str]) -> None:
    for part in block.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(["sh", "-c", command], cwd=app, env=env, timeout=900, **streams)
        logs = "".join(p.read_text(errors="replace")[-3000:] for p in app.glob("*.log"))
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{logs}"
        assert_shown(expected, done.stdout)


def copied(place: Path) -> Path:
    app = place / "my-app"
    shutil.copytree(ROOT / "examples" / "flower", app)
    return app


@pytest.mark.long(50)
@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_guide_in_simulation(forked: bool, tmp_path: Path) -> None:
    app = copied(tmp_path)
    made = Deployment(tmp_path / "trial", 0)
    imports = ("flwr.simulation.app", "ray", "torch", "sklearn.datasets")
    with quickly(made, *imports) if forked else nullcontext(), simulated(made) as trial:
        follow(FIRST, app, trial.environment)


@pytest.mark.slow
def test_the_guide_on_real_machines(tmp_path: Path) -> None:
    app = copied(tmp_path)
    trial = Deployment(tmp_path / "trial", 0)
    trial.home = app / "federation" / "flwr"
    env = {**environment(trial.home), "PORT": str(free_port())}
    try:
        follow(SECOND, app, env)
        assert not (app / "federation" / "pids").exists()
    finally:
        trial.close()


def test_every_key_of_a_recovery_is_declared() -> None:
    """Flower refuses a key that is not; `local-epochs` is the app's own."""
    rows = re.findall(r"^\| ([a-z, -]+) \| ", recovery.__doc__ or "", re.MULTILINE)
    keys = {key for row in rows for key in row.split(", ")} - {"key", "local-epochs"}
    (block,) = (text for kind, text in BLOCK.findall(GUIDE) if kind == "toml")
    assert keys == set(tomllib.loads(block))


def test_no_block_is_left_out() -> None:
    kinds = {kind for kind, _ in BLOCK.findall(GUIDE)}
    assert kinds == {"python", "diff", "console", "toml"}
    assert (BIN / "flwr").exists()
