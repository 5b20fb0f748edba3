"""A deployment lets in whom the operator registered, over TLS with the right authority, and nobody else."""

import re
import time
from collections.abc import Iterator

import pytest
from credentials import authority, node_key
from deployment import AMPLE, Deployment, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Iterator[Deployment]:
    found = Deployment(tmp_path_factory.mktemp("closed") / "trial", 1)
    try:
        found.start_link()
        found.register()
        yield found
    finally:
        found.close()


def assert_refused(trial: Deployment, name: str, told: str) -> None:
    """It ends without ever having been let in, and says why."""
    end = time.monotonic() + AMPLE
    while time.monotonic() < end and trial.processes[name].poll() is None:
        time.sleep(0.2)
    assert trial.processes[name].poll() not in (None, 0), trial.log(name)
    assert "SuperNode ID" not in trial.log(name)
    assert "Failed to initialize the connection to the SuperLink" in trial.log(name)
    assert re.search(told, trial.log(name)), trial.log(name)


def test_a_registered_key_is_let_in(trial: Deployment) -> None:
    trial.start_node("site-0")
    trial.wait_for("site-0", "SuperNode ID")
    trial.kill("site-0")


def test_another_authority_is_refused(trial: Deployment) -> None:
    wrong = authority(trial.place / "wrong")
    options = ("--root-certificates", str(wrong), "--max-retries", "1")
    trial.start_node("wrong-ca", *options, key=trial.place / "site-0.key")
    assert_refused(trial, "wrong-ca", "CERTIFICATE_VERIFY_FAILED")


def test_a_key_that_was_not_registered_is_refused(trial: Deployment) -> None:
    node_key(trial.place / "stranger.key")
    trial.start_node("stranger")
    assert_refused(trial, "stranger", "No SuperNode|could not be activated|activat")


def test_no_key_at_all_is_refused(trial: Deployment) -> None:
    keyless(trial, "keyless", "--root-certificates", str(trial.ca))
    assert_refused(trial, "keyless", "must be registered via the CLI")


def test_plain_text_is_refused(trial: Deployment) -> None:
    keyless(trial, "plain", "--insecure")
    assert_refused(trial, "plain", "disconnected|reset by peer")  # as the timing has it


def test_a_key_is_not_sent_in_plain_text(trial: Deployment) -> None:
    trial.start_node("open", "--insecure", "--max-retries", "1", key=trial.place / "site-0.key")
    end = time.monotonic() + AMPLE
    while time.monotonic() < end and trial.processes["open"].poll() is None:
        time.sleep(0.2)
    assert trial.processes["open"].poll() not in (None, 0)
    assert "requires a secure TLS connection" in " ".join(trial.log("open").split())


def keyless(trial: Deployment, name: str, *security: str) -> None:
    where = ("--superlink", f"127.0.0.1:{trial.port}", "--port", str(free_port()), "--max-retries", "1")
    trial.start(name, "flower-supernode", *where, *security)
