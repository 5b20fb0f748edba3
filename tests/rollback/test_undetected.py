"""Attackers whom nobody named: the bounds against every choice of so many others, one by one."""

import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcrab import ConfigError, History, Plan, Round, Selective, Updates, plan
from fedcrab.rollback.undetected import largest_mean_shift
from trials.trainings import Training, trainings

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))
SETTINGS = {
    "evidence": st.sampled_from(["all", "stored"]),
    "rule": st.sampled_from(["prefix", "last"]),
    "beta": st.sampled_from([0.0, 0.3, 1.0, 3.0]),
}


def record(training: Training, path: Path) -> History:
    with History.create(
        path, training.initial_model, initial_loss=2.3, selection=training.selection
    ) as history:
        for r in training.rounds:
            history.record(r)
    return History.open(path)


def check(training: Training, unfound: int, asked: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as place:
        history = record(training, Path(place) / "h")
        bad = training.malicious & set(history.clients)
        others = sorted(set(history.clients) - bad)
        if not bad or not 0 < unfound < len(others):
            return
        hedge = plan(history, bad, unfound=unfound, **asked)
        assert hedge.unfound == unfound
        for count in range(unfound + 1):
            for more in combinations(others, count):
                covers(hedge, plan(history, bad | {*more}, **asked))


def covers(hedge: Plan, named: Plan) -> None:
    """The hedge goes at least as far back as if these had been named; its S and Φ are bounds of theirs."""
    assert hedge.rollback_round <= named.rollback_round
    assert all(s <= bound for s, bound in zip(named.sensitivity, hedge.sensitivity, strict=True))
    scale = max(named.threshold)
    pairs = zip(named.threshold, hedge.threshold, strict=True)
    assert all(phi >= bound - 1e-12 * scale for phi, bound in pairs)


@settings(relaxed, max_examples=25)
@given(trainings(), st.integers(1, 3), st.fixed_dictionaries(SETTINGS))
def test_no_choice_of_others_is_worse(training: Training, unfound: int, asked: dict[str, object]) -> None:
    check(training, unfound, asked)


@pytest.mark.slow
@settings(relaxed, max_examples=1000)
@given(trainings(), st.integers(1, 4), st.fixed_dictionaries(SETTINGS))
def test_no_choice_of_others_is_worse_many_times(
    training: Training, unfound: int, asked: dict[str, object]
) -> None:
    check(training, unfound, asked)


@settings(relaxed)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 7))
def test_the_mean_moves_no_farther(seed: int, clients: int, unfound: int) -> None:
    """And for one client it moves just so far, where all have the same weight."""
    unfound, rng = min(unfound, clients - 1), np.random.default_rng(seed)
    rows, weights = rng.normal(size=(clients, 3)), rng.integers(1, 9, clients).astype(float)
    shares = weights / weights.sum()
    bound, moves = largest_mean_shift(rows, shares, unfound), []
    for gone in combinations(range(clients), unfound):
        left = [c for c in range(clients) if c not in gone]
        moves.append(np.linalg.norm(shares @ rows - weights[left] @ rows[left] / weights[left].sum()))
    assert max(moves) <= bound * (1 + 1e-9)
    even = np.full(clients, 1 / clients)
    far = max(np.linalg.norm(rows - rows.mean(axis=0), axis=1)) / (clients - 1)
    assert largest_mean_shift(rows, even, 1) == pytest.approx(far)


def two_groups(path: Path) -> History:
    """Ten clients; 0, 1 and 2 push aside together, the others send about the same."""
    rng, model = np.random.default_rng(0), np.zeros(50, np.float32)
    aside, along = np.eye(50)[0], np.eye(50)[1]
    with History.create(path, model, initial_loss=1.0, selection=Selective(rounds=1.0)) as history:
        for t in range(8):
            noise = 0.02 * rng.normal(size=(10, 50))
            push = 4.0 if t >= 4 else 0.0
            sent = {str(c): (along + (push * aside if c < 3 else 0) + noise[c], 1) for c in range(10)}
            updates = Updates.of(sent)
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 0.9**t, 0.1))
            model = model + step
    return History.open(path)


def test_a_hedge_goes_back_for_accomplices_who_were_not_named(tmp_path: Path) -> None:
    history = two_groups(tmp_path / "h")
    alone, hedge = plan(history, {"0"}, beta=0.3), plan(history, {"0"}, beta=0.3, unfound=2)
    assert alone.rollback_round == 7
    assert 4 <= hedge.rollback_round <= plan(history, {"0", "1", "2"}, beta=0.3).rollback_round < 7
    assert hedge.shares == alone.shares
    assert all("1" in clients for _, clients in hedge.replay)  # nobody knows that 1 is one of them


def test_none_unfound_is_the_plan_as_ever(tmp_path: Path) -> None:
    history = two_groups(tmp_path / "h")
    assert plan(history, {"0"}, unfound=0) == plan(history, {"0"})
    assert "unfound" not in plan(history, {"0"}).to_table()


@pytest.mark.parametrize("unfound", [2, 2.0, 0.2, 0.15, "2", "0.2", "20%", "11 %"])
def test_a_count_or_a_share_rounded_up(tmp_path: Path, unfound: object) -> None:
    assert plan(two_groups(tmp_path / "h"), {"0"}, unfound=unfound).to_table()["unfound"] == 2


WRONG = [-1, 9, 9.0, 0.95, 1.5, float("nan"), float("inf"), 10**400, True, None]


@pytest.mark.parametrize("unfound", [*WRONG, "some", "-20%", "100%", "150%", "nan", "inf", "1e400"])
def test_a_number_that_cannot_be_is_refused(tmp_path: Path, unfound: object) -> None:
    with pytest.raises(ConfigError, match="unfound"):
        plan(two_groups(tmp_path / "h"), {"0"}, unfound=unfound)
