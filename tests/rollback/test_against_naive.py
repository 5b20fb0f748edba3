"""The decision from the ledger equals the decision by plain loops over all vectors."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcrab import History, Plan, plan
from fedcrab.types import natural
from trials import naive
from trials.trainings import Training, trainings

CRITERIA = [(e, r) for e in ("all", "stored") for r in ("prefix", "last")]


def record(training: Training, path: Path, **settings: object) -> History:
    settings = {"selection": training.selection, **settings}
    history = History.create(path, training.initial_model, initial_loss=training.initial_loss, **settings)
    for r in training.rounds:
        history.record(r)
    history.close()
    return History.open(path)


def close_call(sensitivity: list[float], threshold: list[float], scale: float) -> bool:
    """Whether S and Φ are the same number somewhere up to rounding, which then decides."""
    pairs = [(s, p) for s, p in zip(sensitivity, threshold, strict=True) if s or p]
    return any(abs(s - p) <= max(1e-9 * max(s, p), scale) for s, p in pairs)


def check(training: Training, beta: float, late: int = 0) -> None:
    with tempfile.TemporaryDirectory() as place:
        history = record(training, Path(place) / "h")
        windows, kept = naive.keep_rounds(training)
        assert [list(range(w.first, w.last + 1)) for w in history.contents.windows] == windows
        assert list(history.kept) == kept
        for entry, expected in zip(history.rounds, naive.select_clients(training), strict=True):
            assert [c for c, s in zip(entry.clients, entry.selected, strict=True) if s] == expected.selected
        if training.malicious >= set(history.clients):
            return
        bad = training.malicious & set(history.clients)
        rounds = len(history.rounds)
        since = {c: (late * (place + 1)) % rounds for place, c in enumerate(sorted(bad))} if late else {}
        for evidence, rule in CRITERIA if bad else []:
            ours = plan(history, bad, beta, evidence, rule, since=since)
            _, sensitivity, threshold, index = naive.decide(training, beta, evidence, rule, since)
            scale = 1e-13 * max(naive_scale(training), 1e-30)
            assert ours.sensitivity == pytest.approx(sensitivity, rel=1e-6, abs=scale)
            assert ours.threshold == pytest.approx(threshold, rel=1e-6, abs=scale)
            assert ours.index == index or close_call(sensitivity, threshold, scale)
            assert sum(ours.shares.values()) == pytest.approx(1.0 if any_influence(ours) else 0.0)
            check_nothing_is_left_unsaid(training, ours, since, scale)


def check_nothing_is_left_unsaid(training: Training, ours: Plan, since: dict[str, int], scale: float) -> None:
    """The share of movement by evidence ``all`` that stays in, by plain loops; and `hardened` leaves none."""
    kept, poison, _, clean = naive.decide(training, 0.0, "all", "prefix", since)
    _, _, honest, _ = naive.decide(training, 1.0, "all", "prefix", since)
    left = poison[ours.index]
    if ours.beta == 0 and (ours.evidence, ours.rule) == ("all", "prefix"):
        assert left <= scale * len(training.rounds)
        assert ours.sensitivity[ours.index] == ours.poison_left == 0
    if left > scale * len(training.rounds):
        assert ours.poison_left == pytest.approx(left / (left + honest[ours.index]), rel=1e-6)
        (said,) = (w for w in ours.warnings if w.startswith("Poison stays"))
        assert f"before round {ours.rollback_round}:" in said
        before = training.rounds[: ours.rollback_round]
        theirs = {c for r in before for c in r.updates.clients if ours.is_malicious(c, r.index)}
        assert f"came from {', '.join(sorted(theirs, key=natural))}," in said
        assert (
            f"to round {kept[clean]} (beta 0" in said or 0 < min((p for p in poison if p), default=0) < scale
        )


def naive_scale(training: Training) -> float:
    """The longest update: what rounding errors are small against."""
    return max((float(abs(r.updates.vectors).max(initial=0)) for r in training.rounds), default=0.0) * 30


def any_influence(ours: object) -> bool:
    return any(ours.shares.values())


relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.long(15)
@settings(relaxed, max_examples=50)
@given(trainings(), st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_decisions_equal_the_naive_ones(training: Training, beta: float) -> None:
    check(training, beta)


@settings(relaxed, max_examples=30)
@given(trainings(), st.sampled_from([0.0, 0.3]), st.integers(1, 9))
def test_what_was_sent_before_since_counts_as_honest(training: Training, beta: float, late: int) -> None:
    check(training, beta, late)


@pytest.mark.slow
@settings(relaxed, max_examples=2000)
@given(trainings(), st.floats(0, 3))
def test_decisions_equal_the_naive_ones_many_times(training: Training, beta: float) -> None:
    check(training, beta)
