"""Where files come from: a folder, or a server that is not trusted."""

import functools
import gzip
import hashlib
import http.server
import io
import sys
import tarfile
import threading

import pytest

from fedcrab.errors import ConfigError
from fedcrab.simulate import data as fetch


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server with four small files, in place of the real ones, and an empty cache."""
    monkeypatch.delenv("FEDCRAB_DATA", raising=False)
    monkeypatch.setattr(fetch, "_cache", lambda: tmp_path / "cache")
    site = tmp_path / "site"
    site.mkdir()
    for name in fetch.IDX_FILES:
        (site / name).write_bytes(gzip.compress(name.encode(), mtime=0))
    sums = tuple(hashlib.sha256((site / name).read_bytes()).hexdigest() for name in fetch.IDX_FILES)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=site)
    ) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        monkeypatch.setitem(fetch.IDX_URLS, "mnist", f"http://127.0.0.1:{running.server_port}/")
        monkeypatch.setitem(fetch.IDX_SHA256, "mnist", sums)
        yield site
        running.shutdown()


def test_files_are_fetched_once_and_checked(server):
    pytest.importorskip("pooch", reason="downloads need pooch: pip install 'fedcrab[simulate]'")
    files = fetch.idx_files("mnist")
    assert [gzip.decompress(file.read_bytes()).decode() for file in files] == list(fetch.IDX_FILES)
    for name in fetch.IDX_FILES:
        (server / name).unlink()
    assert fetch.idx_files("mnist") == files


def test_a_file_with_another_sum_is_refused(server):
    pytest.importorskip("pooch", reason="downloads need pooch: pip install 'fedcrab[simulate]'")
    (server / fetch.IDX_FILES[2]).write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"t10k-images.*could not be fetched.*FEDCRAB_DATA"):
        fetch.idx_files("mnist")


@pytest.fixture
def batches(server, tmp_path, monkeypatch):
    """An archive of six small batches on the same server, and where it is unpacked to."""
    pytest.importorskip("pooch", reason="downloads need pooch: pip install 'fedcrab[simulate]'")
    packed = server / "cifar-10-binary.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for name in fetch.CIFAR_FILES:
            entry = tarfile.TarInfo(f"{fetch.CIFAR_FOLDER}/{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    sums = tuple(hashlib.sha256(name.encode()).hexdigest() for name in fetch.CIFAR_FILES)
    monkeypatch.setattr(fetch, "CIFAR_URL", fetch.IDX_URLS["mnist"] + packed.name)
    monkeypatch.setattr(fetch, "CIFAR_SHA256", hashlib.sha256(packed.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "CIFAR_FILES_SHA256", sums)
    return packed


def test_an_unpacked_file_that_was_changed_is_unpacked_again(batches):
    files = fetch.cifar_files()
    batches.unlink()  # the archive is in the cache
    for damage in (lambda f: f.write_bytes(b"poison"), lambda f: f.unlink()):
        damage(files[3])
        assert fetch.cifar_files() == files
        assert [file.read_text() for file in files] == list(fetch.CIFAR_FILES)


def test_an_archive_with_another_content_is_refused(batches, monkeypatch):
    sums = ("0" * 64, *fetch.CIFAR_FILES_SHA256[1:])
    monkeypatch.setattr(fetch, "CIFAR_FILES_SHA256", sums)
    with pytest.raises(ConfigError, match=r"data_batch_1\.bin is not the published file"):
        fetch.cifar_files()


def test_a_cached_file_that_was_changed_is_fetched_again(server):
    pytest.importorskip("pooch", reason="downloads need pooch: pip install 'fedcrab[simulate]'")
    files = fetch.idx_files("mnist")
    files[1].write_bytes(b"poison")
    assert gzip.decompress(fetch.idx_files("mnist")[1].read_bytes()).decode() == fetch.IDX_FILES[1]


def test_without_network_a_changed_file_is_named_and_nothing_is_deleted(server, batches, monkeypatch):
    cached, unpacked = fetch.idx_files("mnist"), fetch.cifar_files()
    for name in (*fetch.IDX_FILES, batches.name):
        (server / name).unlink()
    cached[1].write_bytes(b"poison")
    with pytest.raises(ConfigError, match=r"train-labels\S+ is not the published .*could not be fetched"):
        fetch.idx_files("mnist")
    (fetch._cache() / batches.name).unlink()
    unpacked[3].write_bytes(b"poison")
    with pytest.raises(ConfigError, match="could not be fetched"):
        fetch.cifar_files()
    assert [file.is_file() for file in (*cached, *unpacked)] == [True] * 10
    assert {path.name for path in fetch._cache().iterdir()} == {"mnist", fetch.CIFAR_UNPACKED}


def test_no_network_says_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("pooch", reason="downloads need pooch: pip install 'fedcrab[simulate]'")
    monkeypatch.delenv("FEDCRAB_DATA", raising=False)
    monkeypatch.setattr(fetch, "_cache", lambda: tmp_path)
    monkeypatch.setattr(fetch, "CIFAR_URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(ConfigError, match=r"'cifar10'.*connect to the network, or set FEDCRAB_DATA"):
        fetch.cifar_files()


@pytest.mark.parametrize("ask", [lambda: fetch.idx_files("mnist"), fetch.cifar_files])
def test_a_folder_without_the_files_names_them(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("FEDCRAB_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"has no .*(train-images|data_batch_1).*FEDCRAB_DATA"):
        ask()


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("FEDCRAB_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"needs pooch: pip install 'fedcrab\[simulate\]'"):
        fetch.idx_files("mnist")


def test_unpacked_files_do_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCRAB_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name in fetch.IDX_FILES:
        (tmp_path / "mnist" / name.removesuffix(".gz")).touch()
    assert [file.suffix for file in fetch.idx_files("mnist")] == [""] * 4
