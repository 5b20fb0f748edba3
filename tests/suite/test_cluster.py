"""A suite on a real Dask cluster of two workers on this machine."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcrab import ConfigError
from fedcrab.experiment.cell_cache import CellCache
from fedcrab.experiment.compute import compute
from fedcrab.experiment.matrix import expand
from fedcrab.experiment.processes import IMPORTED
from fedcrab.experiment.run_suite import bench_command
from fedcrab.experiment.scheduler import run_jobs, trainings
from fedcrab.experiment.suite import load_suite

dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
pytestmark = pytest.mark.long(15)

SUITE = """
base = "digits"
fractions = [0.25]
seeds = [0, 1, 2]
set = {rounds = 4, "clients.count" = 6}
"""
MEASURES = ("ta", "asr", "distance", "client_rounds", "bytes")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Its workers are forks of a process that has imported what they need: a new one is there soon."""
    place = tmp_path_factory.mktemp("dask")
    method = {"distributed.worker.multiprocessing-method": "forkserver"}
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with dask.config.set(method):
        distributed.utils.get_mp_context().set_forkserver_preload([*IMPORTED, "distributed"])
        with distributed.LocalCluster(**options, local_directory=place, silence_logs=50) as cluster:
            yield cluster


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path / "suite.toml"


def test_a_worker_dies_in_the_middle(cluster: object, suite: Path, tmp_path: Path) -> None:
    """Its training begins again on another, and the results are those of this machine, bit by bit."""
    cells, store = expand(load_suite(suite)), CellCache(tmp_path / "results", "suite")
    with distributed.Client(cluster, set_as_default=False) as client:
        pids = client.run(os.getpid)
    killed, finished, ended = False, set(), 0
    for event in run_jobs(cells, store, cluster=cluster.scheduler_address):
        assert "failed" not in event.table
        if "doing" in event.table and not killed:
            busy = [w.address for w in cluster.scheduler.workers.values() if w.processing]
            os.kill(pids[busy[0]], signal.SIGKILL)
            killed = True
        finished |= {event.table["finished"]} if "finished" in event.table else set()
        ended += "ended" in event.table
    assert killed
    assert (finished, ended) == ({cell.key for cell in cells}, 3)
    here = CellCache(tmp_path / "here")
    for group in trainings(cells).values():
        compute(group, here, lambda _: None, workers=0)
    for cell in cells:
        ours, theirs = here.find(cell.key), store.find(cell.key)
        assert [ours.measures[name] for name in MEASURES] == [theirs.measures[name] for name in MEASURES]
        assert ours.curve == theirs.curve
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["suite.jsonl"]


def test_the_command_computes_only_what_is_missing(cluster: object, suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE.replace("[0, 1, 2]", "[5]"))
    results = tmp_path / "results"
    assert len(bench_command(suite, results, cluster=cluster.scheduler_address).rows) == 2
    lines = (results / "suite.jsonl").read_bytes()
    (results / "suite.jsonl").write_bytes(lines.splitlines(keepends=True)[0])
    done = bench_command(suite, results, cluster=cluster.scheduler_address)
    assert (len(done.rows), done.failed) == (2, {})
    assert len((results / "suite.jsonl").read_bytes().splitlines()) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere://x", "127.0.0.1:port"])
def test_no_cluster_is_one_sentence(
    address: str, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcrab.experiment.scheduler.TIMEOUT", 1)
    with pytest.raises(ConfigError, match="no Dask scheduler answers at"):
        bench_command(suite, tmp_path / "results", cluster=address)
    assert not (tmp_path / "results").exists()


def test_options_of_this_machine_are_refused(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave them out"):
        bench_command(suite, tmp_path / "results", cluster="127.0.0.1:9", jobs=2)
