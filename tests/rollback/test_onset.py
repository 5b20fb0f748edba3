"""When attackers began: found where it is visible, not made up where it is not, and as plain loops say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcrab import History, Round, Selective, Updates
from fedcrab.rollback.onset import Onset, _groups, onset
from fedcrab.rollback.onset_signals import LEAST_PAST, Signals, _beside_past, measured, median_of_columns
from fedcrab.seeds import rng_for

CLIENTS, ROUNDS, SIZE, BAD = [f"c{i:02}" for i in range(16)], 30, 60, ("c03", "c09", "c11")
Sent = Callable[[int, np.random.Generator], np.ndarray]


def recorded(path: Path, poison: Sent, *, there: float = 1.0, spread: float = 0.0, seed: int = 0) -> History:
    """A shared direction, noise, a direction of each client's own, and what attackers add."""
    model = np.zeros(SIZE, np.float32)
    own = {c: spread * rng_for(seed, "own", c).normal(size=SIZE) for c in CLIENTS}
    with History.create(path, model, initial_loss=1.0, selection=Selective(), seed=seed) as history:
        for t in range(ROUNDS):
            shared, answers = 0.9**t * rng_for(seed, "shared", t).normal(size=SIZE), {}
            for client in CLIENTS:
                rng = rng_for(seed, t, client)
                if rng.random() >= there:
                    continue
                update = shared + own[client] + rng.normal(size=SIZE)
                update = update + (poison(t, rng) if client in BAD else 0)
                answers[client] = (update.astype(np.float32), float(rng.integers(50, 60)))
            updates = Updates.of(answers)
            history.record(Round(t, model, updates, updates.vectors.mean(axis=0), 0.95**t, 0.1))
    return History.open(path)


def push(since: int, size: float = 3.0, every: int = 1) -> Sent:
    direction = rng_for(1, "push").normal(size=SIZE) / SIZE**0.5
    return lambda t, _: (
        size * SIZE**0.5 * direction if t >= since and (t - since) % every == 0 else np.zeros(SIZE)
    )


@pytest.mark.parametrize("since", [0, 7, 18, 25])
@pytest.mark.parametrize("how", [{}, {"there": 0.6}, {"spread": 0.5}], ids=["all", "some", "own data"])
def test_who_begins_late_is_found_within_two_rounds(since: int, how: dict, tmp_path: Path) -> None:
    found = onset(recorded(tmp_path / "h", push(since), **how), BAD)
    assert found.round is not None
    assert abs(found.round - since) <= 2
    assert found.round <= found.certain


def test_who_acts_now_and_then_is_found_at_the_first_act(tmp_path: Path) -> None:
    assert abs(onset(recorded(tmp_path / "h", push(11, every=4)), BAD).round - 11) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_made_up(seed: int, tmp_path: Path) -> None:
    found = onset(recorded(tmp_path / "h", push(ROUNDS), spread=0.5, seed=seed), BAD)
    assert found == Onset(None, why="their updates do not visibly differ from those of the others")


def test_recovery_is_offered_from_two_rounds_earlier() -> None:
    assert [Onset(t, t).since for t in (None, 0, 1, 2, 3, 20)] == [None, 0, 0, 0, 1, 18]


def test_it_is_the_same_every_time_and_whoever_asks_first(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", push(12))
    assert onset(history, BAD) == onset(History.open(history.path), tuple(reversed(BAD)))


def test_too_few_others_and_nobody_there(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", push(12))
    assert "too few other clients" in onset(history, CLIENTS[:-3]).why
    assert "took part in no round" in onset(history, ["stranger"]).why


def once(at: int, size: float = 3.0) -> Sent:
    act = push(0, size)
    return lambda t, rng: act(t, rng) if t == at else np.zeros(SIZE)


@pytest.mark.parametrize("at", [1, 6, 22, ROUNDS - 1])
@pytest.mark.parametrize("how", [{}, {"there": 0.7}, {"spread": 1.5}], ids=["all", "some", "own data"])
def test_a_single_act_is_enough(at: int, how: dict, tmp_path: Path) -> None:
    found = onset(recorded(tmp_path / "h", once(at, 6.0), **how), BAD)
    if found.round is None:  # with few there, the named ones may have been away
        assert "there" in how
    else:
        assert (found.round, found.certain) == (at, at)


def test_who_sends_less_than_before_is_seen_too(tmp_path: Path) -> None:
    def nothing(t: int, rng: np.random.Generator) -> np.ndarray:  # of its own, from round 15 on
        return push(0, 8.0)(t, rng) if t < 15 else np.zeros(SIZE)

    history = recorded(tmp_path / "h", nothing)
    jumps = Signals.of(history.rounds, _groups(history, frozenset(BAD))).jumps(
        _groups(history, frozenset(BAD))
    )
    assert jumps[15, 0] > 10 > jumps[5:15, 0].max()


def test_signals_are_those_of_the_vectors(tmp_path: Path) -> None:
    model, rng = np.zeros(SIZE, np.float32), np.random.default_rng(3)
    rows = rng.normal(size=(len(CLIENTS), SIZE)).astype(np.float32)
    updates = Updates(tuple(CLIENTS), rows, rng.integers(1, 9, len(CLIENTS)).astype(float))
    with History.create(tmp_path / "h", model, initial_loss=1.0) as history:
        history.record(Round(0, model, updates, rows.mean(axis=0), 1.0, 0.1))
    groups = _groups(history, frozenset(BAD))
    ratios, lengths, distances = measured(history.rounds[0], groups)
    others = [c for c in CLIENTS if c not in BAD]
    picked = [[c for c, inside in zip(others, row, strict=True) if inside] for row in groups.member]
    naive = [plain_ratio(updates, list(BAD), others)]
    naive += [plain_ratio(updates, p, [c for c in others if c not in p], others) for p in picked]
    assert ratios == pytest.approx(np.log(naive), rel=1e-6)
    assert all(len(p) == len(BAD) for p in picked)
    vectors = dict(zip(CLIENTS, rows.astype(float), strict=True))
    weights = dict(zip(CLIENTS, updates.weights, strict=True))
    columns = [*others, *BAD]
    far = {}
    for client in columns:
        rest = [c for c in others if c != client]
        middle = sum(weights[c] * vectors[c] for c in rest) / sum(weights[c] for c in rest)
        far[client] = float(np.log(np.linalg.norm(vectors[client] - middle)))
    long = {c: float(np.log(np.linalg.norm(vectors[c]))) for c in columns}
    for found, plain in ((lengths, long), (distances, far)):
        usual = float(np.median([plain[c] for c in others]))
        assert found == pytest.approx([plain[c] - usual for c in columns], rel=1e-6, abs=1e-9)


def test_a_number_beside_its_past_is_as_plain_loops_say() -> None:
    rng = np.random.default_rng(5)
    table = np.where(rng.random((14, 5)) < 0.8, rng.normal(size=(14, 5)), np.nan)
    found, has_past = _beside_past(table, slice(0, 3))
    for t in range(len(table)):
        for column in range(5):
            past = [table[s, column] for s in range(t) if np.isfinite(table[s, column])]
            assert has_past[t, column] == (len(past) >= LEAST_PAST)
            if len(past) < LEAST_PAST or not np.isfinite(table[t, column]):
                continue
            usual = []
            for other in range(3):
                own = table[:t, other][np.isfinite(table[:t, other])]
                if len(own) >= LEAST_PAST:
                    usual.append(1.4826 * np.median(np.abs(own - np.median(own))))
            own = 1.4826 * np.median(np.abs(np.array(past) - np.median(past)))
            scale = np.hypot(own, np.median(usual) if usual else 0.0)
            assert found[t, column] == pytest.approx((table[t, column] - np.median(past)) / scale)


def test_the_median_of_columns_leaves_out_who_was_away() -> None:
    table = np.array([[1.0, np.nan, 5.0], [3.0, 4.0, np.nan], [2.0, 8.0, np.nan]])
    assert median_of_columns(table).tolist() == [2.0, 6.0, 5.0]
    assert np.isnan(median_of_columns(np.full((2, 1), np.nan))).all()


def plain_ratio(
    updates: Updates, inner: list[str], outer: list[str], usual: list[str] | None = None
) -> float:
    """r by plain loops."""
    vectors = dict(zip(updates.clients, updates.vectors.astype(float), strict=True))
    weights = dict(zip(updates.clients, updates.weights, strict=True))

    def mean(clients: list[str]) -> np.ndarray:
        return sum(weights[c] * vectors[c] for c in clients) / sum(weights[c] for c in clients)

    def squares(clients: list[str]) -> float:
        return sum(weights[c] ** 2 for c in clients) / sum(weights[c] for c in clients) ** 2

    honest = usual or outer
    middle = mean(honest)
    spread = sum(np.sum((vectors[c] - middle) ** 2) for c in honest) / (len(honest) - 1)
    return np.sum((mean(inner) - mean(outer)) ** 2) / (spread * (squares(inner) + squares(outer)))
