"""What every detector must do."""

import json
from pathlib import Path

import numpy as np
import pytest

from detect.gatherings import ATTACKS, gathering, names, noisy
from fedcrab import History, HistoryError, Round, Updates, detect
from fedcrab.cli.detect import DETECTOR_NAMES
from fedcrab.detect import DETECTORS, Detection

EVERY = pytest.mark.parametrize("detector", DETECTORS)
BAD = frozenset({"c2", "c5", "c11", "c19"})


def judged(detector: str, history: History) -> Detection:
    return DETECTORS[detector](history)


def files(place: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@EVERY
def test_nobody_is_accused_without_attack(detector: str, tmp_path: Path) -> None:
    for seed in range(4):
        found = judged(detector, gathering(tmp_path / str(seed), seed=seed))
        assert (found.suspects, found.attack, found.confidence) == ((), False, 0.0)
        assert found.strength < 1


@EVERY
def test_noise_is_found_whoever_makes_it(detector: str, tmp_path: Path) -> None:
    found = judged(detector, gathering(tmp_path / "h", noisy, BAD))
    assert set(found.suspects) == BAD
    assert found.strength >= 1
    assert 0.8 < found.confidence <= 1
    honest = [found.scores[c] for c in names() if c not in BAD]
    assert min(found.scores[c] for c in BAD) > max(honest)


@EVERY
def test_every_client_has_a_score_and_the_history_stays(detector: str, tmp_path: Path) -> None:
    history = gathering(tmp_path / "h", noisy, BAD, share=0.7)
    before = files(tmp_path)
    found = judged(detector, history)
    assert files(tmp_path) == before
    assert set(found.scores) == set(history.clients)
    assert all(np.isfinite(s) and s >= 0 for s in found.scores.values())
    assert found.rounds == len(history.rounds)
    assert judged(detector, History.open(tmp_path / "h")) == found


@EVERY
def test_the_json_says_the_same(detector: str, tmp_path: Path) -> None:
    found = judged(detector, gathering(tmp_path / "h", noisy, BAD))
    table = json.loads(json.dumps(found.to_table(), allow_nan=False))
    assert table["suspects"] == list(found.suspects)
    assert {row["client"]: row["suspect"] for row in table["clients"]} == {c: c in BAD for c in names()}
    assert all(bool(row["reason"]) == row["suspect"] for row in table["clients"])


@EVERY
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_little_to_go_by_is_no_accident(detector: str, rounds: int, clients: int, tmp_path: Path) -> None:
    found = judged(detector, gathering(tmp_path / "h", clients=clients, rounds=rounds))
    assert set(found.scores) == set(names(clients))
    assert found.suspects == ()


@EVERY
def test_an_empty_history_is_refused(detector: str, tmp_path: Path) -> None:
    History.create(tmp_path / "h", np.zeros(3, np.float32), initial_loss=1.0).close()
    with pytest.raises(HistoryError, match="no round has been recorded"):
        judged(detector, History.open(tmp_path / "h"))


def test_a_history_in_which_nobody_took_part_is_refused(tmp_path: Path) -> None:
    nobody, still = Updates((), np.zeros((0, 3), np.float32), np.zeros(0)), np.zeros(3, np.float32)
    with History.create(tmp_path / "h", still, initial_loss=1.0) as history:
        history.record(Round(0, still, nobody, still, loss=1.0, divergence=0.0))
    with pytest.raises(HistoryError, match="no client took part"):
        detect.ledger(History.open(tmp_path / "h"))


def test_the_command_knows_every_detector() -> None:
    assert ("all", *DETECTORS, "taught") == DETECTOR_NAMES
    assert detect.ledger is DETECTORS["ledger"]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("count", [2, 5, 10])
def test_the_ledger_finds_each_kind_of_attack(attack: str, count: int, tmp_path: Path) -> None:
    bad = frozenset(np.random.default_rng(count).permutation(names())[:count].tolist())
    found = detect.ledger(gathering(tmp_path / "h", ATTACKS[attack], bad, seed=count))
    assert set(found.suspects) == bad
