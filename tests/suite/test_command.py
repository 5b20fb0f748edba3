"""`fedcrab bench` over real trainings: cached, killed, gone on with, damaged."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcrab import ConfigError, DamagedError
from fedcrab.experiment.run_suite import BenchResult, bench_command
from trials.command import fedcrab

pytestmark = pytest.mark.long(20)

SUITE = """
base = "digits"
fractions = [0.25]
methods = ["crab-paper", {method = "crab-hardened", beta = 0.1}]
seeds = [0, 1]
measures = ["ta", "asr", "rollback_round", "bytes", "distance"]
[set]
rounds = 4
"clients.count" = 8
"""
MEASURES = ("ta", "asr", "distance", "client_rounds", "rollback_round", "bytes")


def bench(place: Path, text: str = SUITE, *, run: bool = True) -> BenchResult:
    (place / "suite.toml").write_text(text)
    return bench_command(place / "suite.toml", place / "results", jobs=2, run=run)


def cells(place: Path) -> dict[str, bytes]:
    path = place / "results" / "suite.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return {json.loads(line)["key"]: line for line in lines}


def measured(place: Path) -> dict[str, dict[str, object]]:
    found = {key: json.loads(content)["measures"] for key, content in cells(place).items()}
    return {key: {name: row[name] for name in MEASURES} for key, row in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite run from beginning to end."""
    place = tmp_path_factory.mktemp("whole")
    done = bench(place)
    assert (done.cells, len(done.rows), done.failed) == (8, 8, {})
    return place


def test_everything_is_written(whole: Path) -> None:
    place = whole / "results" / "suite"
    names = ["results.csv", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in place.iterdir()) == names
    rows = list(csv.DictReader((place / "results.csv").read_text().splitlines()))
    assert {(row["method"], row["seed"]) for row in rows} == {
        (method, seed)
        for method in ("poisoned", "retrain", "crab-paper", "crab-hardened beta=0.1")
        for seed in ("0", "1")
    }
    assert {row["key"] for row in rows} <= set(cells(whole))
    assert all(float(row["distance"]) > 0 for row in rows if row["method"] != "retrain")
    assert all(len(content) < 10_000 for content in cells(whole).values())
    assert not list((whole / "results" / ".work").rglob("ledger.sqlite"))  # the large things are gone


def test_pandas_opens_it(whole: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(whole / "results" / "suite" / "results.csv")
    assert frame.groupby("method")["ta"].count().to_dict()["retrain"] == 2


def test_what_is_there_is_not_computed_again(whole: Path) -> None:
    before = (whole / "results" / "suite.jsonl").stat()
    assert len(bench(whole).rows) == 8
    assert (whole / "results" / "suite.jsonl").stat().st_mtime_ns == before.st_mtime_ns


def test_the_command_shows_it(whole: Path) -> None:
    shown = json.loads(fedcrab("bench", "suite.toml", "--no-run", "--json", cwd=whole).stdout)
    assert (shown["cells"], shown["finished"], shown["failed"]) == (8, 8, {})
    assert shown["rows"][0]["method"] == "poisoned"


def test_a_changed_setting_reruns_only_its_cells(whole: Path) -> None:
    before = cells(whole)
    bench(whole, SUITE.replace("beta = 0.1", "beta = 0.9").replace("[0, 1]", "[1]"))
    after = cells(whole)
    assert {key: after[key] for key in before} == before
    fresh = [json.loads(after[key])["cell"] for key in after.keys() - before.keys()]
    assert [(c["method"]["plan"]["beta"], c["training"]["seed"]) for c in fresh] == [(0.9, 1)]


def test_a_damaged_cell_is_refused_or_computed_again(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = bench(whole).rows[2]["key"]
    path, before = whole / "results" / "suite.jsonl", json.loads(cells(whole)[key])
    line = cells(whole)[key]
    path.write_bytes(path.read_bytes().replace(line, line.replace(b'"ta": 0.', b'"ta": 1.')))
    with pytest.raises(DamagedError, match="changed since it was written"):
        bench(whole, run=False)
    bench(whole)
    assert re.search(r"suite.jsonl, line \d+: changed since it was written", capsys.readouterr().err)
    assert json.loads(cells(whole)[key])["measures"]["ta"] == before["measures"]["ta"]
    assert len(bench(whole, run=False).rows) == 8


def test_killed_in_the_middle_it_goes_on_to_the_same_numbers(whole: Path, tmp_path: Path) -> None:
    text = SUITE.replace("[0, 1]", "[1]")
    (tmp_path / "suite.toml").write_text(text)
    command = [sys.executable, "-m", "fedcrab", "bench", "suite.toml", "--jobs", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not cells(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.002)  # polling for a state of the disk; nothing signals it
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = cells(tmp_path)
    assert len(bench(tmp_path, text).rows) == 4
    after = cells(tmp_path)
    assert {key: after[key] for key in left} == left
    assert measured(tmp_path) == {key: row for key, row in measured(whole).items() if key in after}


def test_what_cannot_be_computed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="moons"):
        bench(tmp_path, 'datasets = ["moons"]')
    assert not (tmp_path / "results" / "suite").exists()
    with pytest.raises(ConfigError, match="no cell of"):
        bench(tmp_path, run=False)
    with pytest.raises(ConfigError, match="jobs must be 1 or more"):
        bench_command(tmp_path / "suite.toml", tmp_path / "results", jobs=0)
