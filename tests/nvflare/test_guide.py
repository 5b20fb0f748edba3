"""docs/nvflare.md as a new user would follow it: every block, in its order, on a copy of the example."""

import os
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from flare_processes import ROOT, end_all, environment

from test_documents import BLOCK, assert_shown
from trials.forked import forking

# What a user would start are forks of a process that has imported FLARE. It must not have imported
# `nvflare.recipe`, which takes its options from the command line when it is imported.
COMMANDS = ("python", "nvflare", "fedcrab")
IMPORTS = (
    "fedcrab.nvflare",
    "nvflare.private.fed.app.simulator.simulator_worker",
    "sklearn.datasets",
)
GUIDE = (ROOT / "docs" / "nvflare.md").read_text()


@pytest.mark.long(40)
@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_guide_in_the_simulator(forked: bool, tmp_path: Path) -> None:
    app = tmp_path / "my-app"
    shutil.copytree(ROOT / "examples" / "nvflare", app)
    env = environment(tmp_path)
    env["PYTHONPATH"] = os.pathsep.join([env["SIMULATOR"], env["WITHOUT_TORCH"], env["PYTHONPATH"]])
    try:
        with forking(tmp_path / "forked", env, COMMANDS, IMPORTS) if forked else nullcontext(env) as env:
            follow(app, env)
    finally:
        end_all(tmp_path)


def follow(app: Path, env: dict[str, str]) -> None:
    for kind, block in BLOCK.findall(GUIDE):
        if kind == "python":
            (app / block.partition("\n")[0].removeprefix("# ")).write_text(block)
        elif kind == "diff":
            subprocess.run(["patch", "-p1", "-R"], input=block, text=True, cwd=app, check=True)
            assert "fedcrab.nvflare" not in (app / "job.py").read_text()
            subprocess.run(["patch", "-p1"], input=block, text=True, cwd=app, check=True)
        else:
            assert kind == "console", f"a block of kind {kind} is run by nobody"
            session(block, app, env)


def session(block: str, app: Path, env: dict[str, str]) -> None:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            ["sh", "-c", command], cwd=app, env=env, text=True, capture_output=True, timeout=600
        )
        logs = "".join(p.read_text(errors="replace")[-3000:] for p in app.glob("*.log"))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{logs}"
        assert_shown(expected, done.stdout + done.stderr)
