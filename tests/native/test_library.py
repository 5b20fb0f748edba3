"""Which compiled kernels are loaded."""

import shutil
import subprocess
import sys

import pytest

from fedcrab import native
from fedcrab.errors import ConfigError


@pytest.fixture
def chosen(monkeypatch):
    """Choose by FEDCRAB_NATIVE; what was loaded before is loaded again afterwards."""

    def choose(level):
        monkeypatch.setenv("FEDCRAB_NATIVE", level)
        native._found.cache_clear()
        return native.level()

    yield choose
    native._found.cache_clear()


def test_the_best_that_the_processor_runs(chosen):
    runs = [name for name in native.LEVELS if native.load(name)]
    assert chosen("") == (runs[0] if runs else "none")


@pytest.mark.parametrize("level", native.LEVELS)
def test_one_level(chosen, level):
    assert chosen(level) == (level if native.load(level) else "none")


def test_none(chosen):
    assert chosen("none") == "none"
    assert native.library() is None


def test_a_level_that_does_not_exist(chosen):
    with pytest.raises(ConfigError, match="FEDCRAB_NATIVE must be none, avx512, avx2, portable or empty"):
        chosen("sse")


def test_a_library_of_other_sources_is_not_loaded(tmp_path, monkeypatch):
    built = [name for name in native.LEVELS if native.load(name)]
    if not built:
        pytest.skip("the package was built without a C compiler")
    for path in [*native.FOLDER.glob("*.[ch]"), native.FOLDER / f"{built[0]}.so"]:
        shutil.copy(path, tmp_path)
    (tmp_path / "mlp.c").write_text("/* other arguments */")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.warns(UserWarning, match="older than its sources"):
        assert native.load(built[0]) is None


def test_the_command_says_which(monkeypatch):
    monkeypatch.setenv("FEDCRAB_NATIVE", "none")
    command = [sys.executable, "-m", "fedcrab", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.endswith("(compiled kernels: none)\n")


def test_a_wrong_level_is_one_sentence(monkeypatch):
    monkeypatch.setenv("FEDCRAB_NATIVE", "sse")
    done = subprocess.run([sys.executable, "-m", "fedcrab", "--version"], capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
