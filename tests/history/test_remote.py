"""Snapshots at a URL: moved there as they settle, read from there, checked; on S3 by moto's server."""

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fedcrab
from fedcrab import ConfigError, DamagedError, History, HistoryError
from fedcrab.history.remote_store import as_url
from trials.command import fedcrab as command

pytest.importorskip("fsspec")

SIZE, ROUNDS = 300, 8
KEYS = {
    "AWS_ACCESS_KEY_ID": "trial",
    "AWS_SECRET_ACCESS_KEY": "trial",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}


def recorded(history: History, rounds: range = range(ROUNDS), size: int = SIZE) -> None:
    rng = np.random.default_rng(3)
    model = np.zeros(size, np.float32)
    for t in range(rounds.stop):
        vectors = {c: (rng.standard_normal(size).astype(np.float32), 10) for c in "abc"}
        updates = fedcrab.Updates.of(vectors)
        step = updates.vectors.mean(0)
        if t in rounds:
            history.record(fedcrab.Round(t, model, updates, step, loss=1.0 / (t + 1), divergence=0.1 * t))
        model = model + step


def made(place: Path, remote: str | None = None, size: int = SIZE) -> Path:
    initial = np.zeros(size, np.float32)
    history = History.create(
        place, initial, initial_loss=2.0, selection=fedcrab.Compact(), seed=5, remote=remote, clock=None
    )
    recorded(history, size=size)
    history.close()
    return place


def snapshots(place: Path) -> list[Path]:
    return list((place / "snapshots").glob("*.safetensors"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCRAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file://{tmp_path}/far"


def assert_same(one: History, other: History) -> None:
    assert one.contents.head == other.contents.head
    for t in range(len(one.rounds)):
        np.testing.assert_array_equal(one.updates(t).vectors, other.updates(t).vectors)
        np.testing.assert_array_equal(one.model(t), other.model(t))
    np.testing.assert_array_equal(one.final_model(), other.final_model())


def test_a_history_is_moved_as_it_settles_and_reads_as_one_that_stayed(tmp_path: Path, place: str) -> None:
    stayed, moved = made(tmp_path / "stayed"), made(tmp_path / "moved", place)
    assert snapshots(moved) == []
    assert len(snapshots(tmp_path / "far")) == len(snapshots(stayed))
    assert_same(History.open(stayed), History.open(place))
    assert_same(History.open(stayed), History.open(moved))
    assert History.verify(place) == History.verify(moved) == []
    with pytest.raises(HistoryError, match="for reading"):
        recorded(History.open(place))


def test_a_snapshot_is_fetched_when_it_is_read(tmp_path: Path, place: str) -> None:
    made(tmp_path / "h", place)
    history = History.open(place)
    assert fedcrab.plan(history, {"a"}).rollback_round == 0
    assert snapshots(history.path) == []  # the ledger says it all
    history.updates(2)
    assert len(snapshots(history.path)) == 1


def test_a_killed_training_resumes_with_half_of_it_elsewhere(tmp_path: Path, place: str) -> None:
    whole = made(tmp_path / "whole")
    settings = {"initial_loss": 2.0, "selection": fedcrab.Compact(), "seed": 5, "clock": None}
    history = History.create(tmp_path / "h", np.zeros(SIZE, np.float32), remote=place, **settings)
    recorded(history, range(5))
    history.release()
    assert len(snapshots(tmp_path / "far")) > 0
    with pytest.raises(HistoryError, match="no closed history found there"):
        History.open(place)
    history = History.resume(tmp_path / "h", clock=None)
    recorded(history, range(5, ROUNDS))
    history.close()
    assert_same(History.open(whole), History.open(place))


def test_bytes_that_changed_there_are_found_and_not_kept(tmp_path: Path, place: str) -> None:
    made(tmp_path / "h", place)
    history = History.open(place)
    name = history.rounds[3].updates
    far = tmp_path / "far" / "snapshots" / f"{name}.safetensors"
    content = bytearray(far.read_bytes())
    content[-1] ^= 1
    far.write_bytes(content)
    with pytest.raises(DamagedError, match="sha256 differs"):
        history.updates(3)
    assert snapshots(history.path) == []
    assert any("sha256 differs" in problem for problem in History.verify(place))
    far.unlink()
    with pytest.raises(DamagedError, match="missing"):
        history.updates(3)


def test_an_upload_goes_on_with_what_is_missing(tmp_path: Path, place: str) -> None:
    history = History.open(made(tmp_path / "h"))
    first = history.upload(place)
    assert first[-1] == "ledger.head"
    assert history.upload(place) == []
    gone = snapshots(tmp_path / "far")[0]
    gone.unlink()
    assert history.upload(place) == [f"snapshots/{gone.name}"]
    assert snapshots(tmp_path / "h")
    history.upload(place, keep=False)
    assert snapshots(tmp_path / "h") == []
    assert History.verify(tmp_path / "h") == []
    with pytest.raises(HistoryError, match="contains another history"):
        History.open(made(tmp_path / "other", size=10)).upload(place)


def test_a_place_that_cannot_be_is_refused_before_the_first_round(tmp_path: Path, place: str) -> None:
    made(tmp_path / "h", place)
    for remote, kind, told in (
        (place, HistoryError, "is not empty"),
        ("ftp://somewhere/h", ConfigError, "not a supported URL"),
        ("just/a/path", ConfigError, "not a URL"),
    ):
        with pytest.raises(kind, match=told):
            made(tmp_path / "new", remote)
        assert not (tmp_path / "new").exists()


def test_a_url_is_no_place_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("s3://bucket/h", "gs://bucket/h"):
        with pytest.raises(ConfigError, match=f"{place}: a history is written to a local directory"):
            History.create(place, np.zeros(2, np.float32))
        with pytest.raises(ConfigError, match="local directory"):
            History.resume(place)
    for words in ("recover h --malicious 1 --out", "report h -o", "demo --out", "reproduce --out"):
        done = command(*words.split(), "s3://bucket/out", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert "s3://bucket/out: results are written to local paths" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_url_survives_a_path() -> None:
    for url in ("s3://bucket/a/b", "file:///srv/h", "gs://bucket"):
        assert as_url(Path(url)) == as_url(url) == url
    assert as_url("/srv/h") is None
    assert as_url("C/odd:name") is None


def test_a_history_that_names_a_strange_store_is_damaged(tmp_path: Path) -> None:
    place = made(tmp_path / "h")
    shutil.rmtree(place / "snapshots")
    (place / "snapshots").mkdir()
    for text in ('{"url": "http://evil/"}', '{"url": 3}', "[]", '{"url": "s3:bucket"}'):
        (place / "remote.json").write_text(text)
        with pytest.raises((DamagedError, ConfigError)):
            History.open(place).final_model()


def test_commands_take_a_url(tmp_path: Path, place: str) -> None:
    made(tmp_path / "h", place)
    shown = command("show", place, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "8 rounds" in " ".join(shown.stdout.split())  # the line is broken where the path is long
    assert shown.stdout.startswith(place)
    assert f"Next: fedcrab detect {place}\n" in shown.stdout
    assert command("verify", place, cwd=tmp_path).returncode == 0
    assert command("plan", place, "--malicious", "a", cwd=tmp_path).returncode == 0


class Cut:
    """A line to a server that can be cut: after so many bytes sent, every connection is closed."""

    def __init__(self, port: int) -> None:
        self._target, self.left = port, 10**12
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while self.left > 0 and (piece := source.recv(65536)):
                self.left -= len(piece) if counted else 0
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """moto's S3 on loopback, behind a line that can be cut; gives what sets after how many bytes."""
    pytest.importorskip("s3fs", reason="pip install 'fedcrab[s3]'")
    server = pytest.importorskip("moto.server", reason="pip install 'moto[server]'")
    import boto3
    import fsspec

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    line = Cut(port)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"}.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="trial")
    store = fsspec.get_filesystem_class("s3")
    store.clear_instance_cache()
    monkeypatch.setattr(store, "retries", 1)  # a line that is cut stays cut
    try:
        yield lambda left: setattr(line, "left", left)
    finally:
        line.close()
        running.stop()
        store.clear_instance_cache()


@pytest.mark.long(30)
@pytest.mark.filterwarnings("default")
def test_on_s3_with_real_multipart_uploads_and_the_connection_cut(
    tmp_path: Path, s3: Callable[[int], None]
) -> None:
    large = 5 * 2**20  # numbers: 20 MB of a model, in parts of 8 MB
    history = History.create(tmp_path / "h", np.zeros(large, np.float32), initial_loss=2.0, seed=5)
    recorded(history, range(2), large)
    history.close()
    s3(30 * 2**20)  # the line is cut in the second model
    with pytest.raises(HistoryError, match="continues with what is missing"):
        history.upload("s3://trial/h")
    with pytest.raises(HistoryError):
        History.open("s3://trial/h")
    s3(10**12)
    missing = history.upload("s3://trial/h")
    assert missing[-1] == "ledger.head"
    files = len(snapshots(tmp_path / "h"))
    assert 0 < len([name for name in missing if "snapshots" in name]) < files
    far = History.open("s3://trial/h")
    assert far.contents.head == history.contents.head
    s3(0)
    with pytest.raises(HistoryError, match="was not fetched"):
        far.final_model()
    assert snapshots(far.path) == []
    s3(10**12)
    np.testing.assert_array_equal(far.final_model(), history.final_model())
    assert History.verify("s3://trial/h") == []
    etag = os.environ["AWS_ENDPOINT_URL"]
    import boto3

    client = boto3.client("s3", endpoint_url=etag)
    tags = [o["ETag"] for o in client.list_objects_v2(Bucket="trial", Prefix="h/snapshots/")["Contents"]]
    assert any("-3" in tag for tag in tags)  # of three parts


@pytest.mark.filterwarnings("default")
def test_a_training_goes_on_while_the_line_is_down(tmp_path: Path, s3: Callable[[int], None]) -> None:
    whole = made(tmp_path / "whole")
    settings = {"initial_loss": 2.0, "selection": fedcrab.Compact(), "seed": 5, "clock": None}
    history = History.create(tmp_path / "h", np.zeros(SIZE, np.float32), remote="s3://trial/t", **settings)
    s3(0)
    recorded(history)
    with pytest.raises(HistoryError, match="continues with what is missing"):
        history.close()
    assert History.verify(tmp_path / "h") == []  # closed and whole here
    s3(10**12)
    History.open(tmp_path / "h").upload()
    assert_same(History.open(whole), History.open("s3://trial/t"))


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of Google's storage, emulated on loopback."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="pip install gcp-storage-emulator")
    import fsspec

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it asks for the bucket by gRPC else
    pytest.importorskip("gcsfs", reason="pip install gcsfs")  # reads its settings when it is imported
    running = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="trial")
    running.start()
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "project": "trial"})
    try:
        yield "gs://trial/h"
    finally:
        running.stop()


@pytest.mark.filterwarnings("default")
def test_on_google_storage(tmp_path: Path, gs: str) -> None:
    stayed, moved = made(tmp_path / "stayed"), made(tmp_path / "moved", gs)
    assert snapshots(moved) == []
    assert_same(History.open(stayed), History.open(gs))
    assert History.verify(gs) == []
