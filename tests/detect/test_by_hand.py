"""The parts of the detectors, against plain loops and by hand."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detect.gatherings import boosted, cloned, flipped, gathering, names, noisy
from fedcrab import ConfigError, Everything, HistoryError, Selective, Updates, detect
from fedcrab.detect import FLDetector, Suspicion, WatchedFleet, join, ledger
from fedcrab.detect.fldetector import gaps, two_means
from fedcrab.detect.ledger import ALARM, APART, HALF, reason
from fedcrab.detect.signals import gather, inverse_diagonal, leading_pair
from fedcrab.detect.split import divide, lowers_the_loss, separations, usual, weigh
from recover.scenes import Answering, Quadratics, record, scripted

numbers = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=9)


def inside(*groups: np.ndarray) -> float:
    return sum(float(((g - g.mean()) ** 2).sum()) for g in groups)


@settings(deadline=None)
@given(numbers)
def test_separations_are_those_of_every_cut(values: list[float]) -> None:
    x = np.sort(values)
    for k, found in enumerate(separations(x[None])[0], start=1):
        spread = np.sqrt(inside(x[:k], x[k:]) / (len(x) - 2))
        if spread > 1e-4 * np.ptp(x):
            assert found == pytest.approx((x[k:].mean() - x[:k].mean()) / spread, rel=1e-6)


@settings(deadline=None)
@given(numbers)
def test_two_means_has_the_least_squares_inside(values: list[float]) -> None:
    x = np.array(values)
    upper = two_means(x)
    assert upper.any()
    assert not upper.all()
    found = inside(x[upper], x[~upper])
    every = (set(c) for k in range(1, len(x)) for c in combinations(range(len(x)), k))
    least = min(
        inside(x[[i in c for i in range(len(x))]], x[[i not in c for i in range(len(x))]]) for c in every
    )
    assert found == pytest.approx(least, rel=1e-6, abs=1e-6)
    assert x[upper].min() >= x[~upper].max()


def test_the_gap_statistic_counts_groups() -> None:
    rng = np.random.default_rng(0)
    assert gaps(rng.random(30)).groups == 1
    assert gaps(np.concatenate([rng.normal(0, 1, 15), rng.normal(12, 1, 15)])).groups == 2
    assert gaps(np.ones(8)).groups == 1
    three = gaps(np.concatenate([rng.normal(m, 0.5, 12) for m in (0, 10, 20)]))
    assert int(np.argmax(three.gap)) + 1 == 3


def test_one_group_rarely_passes_for_two() -> None:
    rng = np.random.default_rng(1)
    for n in (6, 20, 80):
        rows = np.sort(rng.normal(size=(2000, n)), axis=1)
        assert ((separations(rows) / usual(n)).max(axis=1) > 1).mean() < 0.06


def test_a_division_is_weighed_over_all_signals() -> None:
    x = np.array([0.0, 1, 0, 1, 9, 10])
    group = np.array([False] * 4 + [True] * 2)
    spread = np.sqrt((4 * 0.25 + 2 * 0.25) / 4)
    expected = 9 / spread / usual(6)[1]
    found = weigh(group, {"a": x, "b": -x, "c": x}, {"a": 1, "b": 1, "c": 10})
    assert found.signals == pytest.approx({"a": expected, "b": -expected, "c": 0})
    assert found.weight == pytest.approx(np.sqrt(2) * expected)
    best = divide({"a": x, "b": -x}, {"a": 1, "b": 1}, most=3)
    assert best is not None
    np.testing.assert_array_equal(best.group, group)
    assert best.other_side().signals["a"] == pytest.approx(-expected)
    assert divide({"a": x}, {"a": 1}, most=0) is None
    assert divide({"a": x[:3]}, {"a": 1}, most=3) is None


def test_signals_are_those_of_the_vectors(tmp_path: Path) -> None:
    history = gathering(tmp_path / "h", boosted, frozenset({"c1"}), clients=6, rounds=3)
    clients = history.clients
    found = (gather(history.rounds[:1], clients) + gather(history.rounds[1:], clients)).signals()
    lengths, outsides, cosines = [], [], []
    for t in range(3):
        vectors = history.updates(t).vectors.astype(float)
        norms = np.linalg.norm(vectors, axis=1)
        rest = [
            row - others.T @ np.linalg.lstsq(others.T, row, rcond=None)[0]
            for i, row in enumerate(vectors)
            for others in [np.delete(vectors, i, axis=0)]
        ]
        outside = np.log(np.linalg.norm(rest, axis=1))
        lengths.append(np.log(norms) - np.median(np.log(norms)))
        outsides.append(outside - np.median(outside))
        between = vectors @ vectors.T / np.outer(norms, norms)
        cosines.append(between - between[~np.eye(6, dtype=bool)].mean())
    assert found.length == pytest.approx(np.mean(lengths, axis=0), abs=1e-6)
    assert found.outside == pytest.approx(np.mean(outsides, axis=0), abs=1e-5)
    off = ~np.eye(6, dtype=bool)
    assert found.cosines[off] == pytest.approx(np.mean(cosines, axis=0)[off], abs=1e-6)
    assert found.agreement[0] == pytest.approx(np.mean(cosines, axis=0)[0, 1:].mean(), abs=1e-6)


def correlated(rng: np.random.Generator, size: int) -> np.ndarray:
    vectors = rng.normal(size=(size, 2 * size)) + rng.normal(size=2 * size)
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    return unit @ unit.T


@pytest.mark.parametrize("size", [3, 40, 129, 300, 701])
def test_the_diagonal_of_an_inverse(size: int) -> None:
    matrix = correlated(np.random.default_rng(size), size) + 1e-9 * np.eye(size)
    np.testing.assert_allclose(inverse_diagonal(matrix), np.diagonal(np.linalg.inv(matrix)), rtol=1e-9)
    copies = np.ones((size, size)) + 1e-9 * np.eye(size)
    np.testing.assert_allclose(inverse_diagonal(copies), np.diagonal(np.linalg.inv(copies)), rtol=1e-4)


@pytest.mark.parametrize("kind", ["noise", "group", "nothing", "two alike"])
@pytest.mark.parametrize("size", [5, 201, 500])
def test_the_leading_pair_is_that_of_all_pairs(kind: str, size: int) -> None:
    noise, group = np.random.default_rng(size).normal(size=(size, size)), np.arange(size) < size // 5
    matrix = {
        "noise": noise + noise.T,
        "group": noise + noise.T + 20.0 * np.outer(group, group),
        "nothing": np.zeros((size, size)),
        "two alike": np.diag(np.where(np.arange(size) < 2, 3.0, 1.0)),
    }[kind]
    value, vector = leading_pair(matrix)
    assert value == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-9)
    assert np.linalg.norm(vector) == pytest.approx(1)
    np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-7 * max(value, 1))


def test_a_thousand_pairs_are_those_of_plain_loops(tmp_path: Path) -> None:
    rng, sent = np.random.default_rng(0), []
    for t in range(3):
        there = [c for c in names(60) if t == 0 or rng.random() < 0.8]
        sent.append({c: (rng.normal(size=90) * rng.integers(0, 4), 1 + rng.integers(9)) for c in there})
    history = scripted(tmp_path / "h", sent, Selective())
    found = gather(history.rounds, history.clients).signals()
    near, cosines = naive_pairs(sent, history.clients)
    np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)
    np.testing.assert_allclose(found.nearness, near, atol=1e-6)


def test_agreement_in_wide_rounds_needs_no_matrix_of_pairs(tmp_path: Path, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    sent = [{c: (rng.normal(size=40) * (c != "c3"), 5) for c in names(12)} for _ in range(2)]
    history = scripted(tmp_path / "h", sent, Selective(), gram_limit=4)
    assert history.rounds[0].coordinates.sketched
    by_pairs = gather(history.rounds, history.clients).signals()
    monkeypatch.setattr("fedcrab.detect.signals.MOST_PAIRED", 4)
    alone = gather(history.rounds, history.clients).signals()
    assert by_pairs.cosines.size
    assert not alone.cosines.size
    for name in ("examples", "length", "outside", "agreement"):
        np.testing.assert_allclose(getattr(alone, name), getattr(by_pairs, name), atol=1e-12)
    assert np.isfinite(alone.agreement).sum() == 11


def naive_pairs(sent: list[dict], clients: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The mean nearness and cosine of each pair, one by one."""
    near, cosines = ({pair: [] for pair in combinations(clients, 2)} for _ in range(2))
    for answers in sent:
        vectors = {c: np.asarray(v, np.float32).astype(float) for c, (v, _) in answers.items() if np.any(v)}
        now = {}
        for a, b in combinations(sorted(vectors), 2):
            one, other = vectors[a], vectors[b]
            distance = np.linalg.norm(one - other) / np.sqrt(one @ one + other @ other)
            now[a, b] = np.log10(max(distance, 1e-6)), one @ other / np.sqrt((one @ one) * (other @ other))
        usual_near, usual_cosine = (
            np.median([n for n, _ in now.values()]),
            np.mean([c for _, c in now.values()]),
        )
        for pair, (n, c) in now.items():
            near[pair].append(n - usual_near)
            cosines[pair].append(c - usual_cosine)
    return tuple(_matrix(found, clients) for found in (near, cosines))


def _matrix(found: dict, clients: tuple[str, ...]) -> np.ndarray:
    full = np.full((len(clients), len(clients)), np.nan)
    for (a, b), values in found.items():
        i, j = clients.index(a), clients.index(b)
        full[i, j] = full[j, i] = np.mean(values) if values else np.nan
    return full


def test_copies_are_near_and_zeros_are_nobody(tmp_path: Path) -> None:
    one, two, none = np.array([1, 2, 3, 0]), np.array([3, 0, 1, 1]), np.zeros(4)
    rounds = [{"a": (one, 1), "b": (one, 9), "c": (two, 1), "d": (none, 1), "e": (none, 1)}] * 3
    history = scripted(tmp_path / "h", rounds, Selective())
    found = gather(history.rounds, history.clients).signals()
    assert found.nearness[0, 1] < -4
    assert found.nearness[0, 2] > -1
    assert np.isnan(found.nearness[3, 4])
    assert np.isnan(found.length[3])


def test_half_of_the_clients_backwards_are_told_by_the_loss(tmp_path: Path) -> None:
    bad = frozenset(names()[::2])
    for seed in range(3):
        history = gathering(tmp_path / str(seed), flipped, bad, seed=seed)
        assert lowers_the_loss(history, bad) < -3
        assert lowers_the_loss(history, set(names()) - bad) > 3
        assert 0.5 < ledger(history).confidence <= HALF
    short = gathering(tmp_path / "short", flipped, bad, rounds=2)
    assert lowers_the_loss(short, bad) == 0


def test_more_than_half_copies_are_still_copies(tmp_path: Path) -> None:
    bad = frozenset(names()[:12])
    assert set(detect.ledger(gathering(tmp_path / "h", cloned, bad)).suspects) == bad


def test_who_was_hardly_there_is_not_judged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rounds = [{c: (rng.normal(size=40), 1) for c in names(8)} for _ in range(12)]
    rounds[5]["guest"] = (100 * rng.normal(size=40), 1)
    found = detect.ledger(scripted(tmp_path / "h", rounds, Selective()))
    assert found.scores["guest"] == 0
    assert "guest" not in found.suspects
    assert any("too rarely" in note for note in found.notes)


def test_reasons_are_words() -> None:
    said = reason({"length, later": 2.0, "length": 1.9, "agreement": -1.5, "apart": 0.1})
    assert said == "longer updates in the later rounds; less agreement with the others"


def test_fldetector_by_hand() -> None:
    # One number, H = -1/2 exactly: the honest halve their distance to 8, so û = u; m sends 3 and then 5.
    detector, model = FLDetector(window=4), np.zeros(1, np.float32)
    for t in range(4):
        answers = {"a": ([4 - model[0] / 2], 1), "b": ([4 - model[0] / 2], 1), "m": ([3.0 + t], 1)}
        detector.see(model, Updates.of(answers))
        model = model + np.float32(4 - model[0] / 2)
    # round 1 has no pair yet, so the last update is the prediction: misses 2, 2, 1; then 0, 0 and 1 + Δ/2
    found = detector.detection().scores
    assert found["a"] == found["b"] == pytest.approx((3 * 2 / 5 + 0 + 0) / 3, abs=1e-5)
    assert found["m"] == pytest.approx((3 * 1 / 5 + 3 + 3) / 3, abs=1e-5)


def test_fldetector_finds_whom_it_cannot_predict(tmp_path: Path) -> None:
    clients, bad = [str(i) for i in range(12)], {"3", "7"}
    honest = Quadratics(30)
    rng = np.random.default_rng(0)

    def answer(model, client, t, epochs):
        update, weight = honest.answer(model, client, t)
        return (update + rng.normal(size=30), weight) if client in bad else (update, weight)

    watch = FLDetector()
    fleet = WatchedFleet(Answering(answer), watch)
    history = record(tmp_path / "h", fleet, clients, 14, Everything(), model=np.zeros(30, np.float32))
    assert set(watch.detection().suspects) == bad
    assert detect.fldetector(history) == watch.detection()


def test_fldetector_says_what_it_needs(tmp_path: Path) -> None:
    history = gathering(tmp_path / "h", selection=Selective(), rounds=2)
    with pytest.raises(HistoryError, match=r"use the detector ledger, or record with Everything"):
        detect.fldetector(history)
    with pytest.raises(ConfigError, match="window must be"):
        FLDetector(window=0)


def test_who_stands_apart_a_little_is_mentioned_and_not_named(tmp_path: Path) -> None:
    bad = frozenset({"c2", "c5", "c11", "c19"})
    history = gathering(tmp_path / "h", lambda rng, own, honest: 1.2 * own, bad)
    found = detect.ledger(history)
    assert (found.suspects, found.attack, found.confidence) == ((), False, 0.0)
    assert APART / ALARM <= found.strength < 1
    assert found.apart == dict.fromkeys(bad, "longer updates")
    assert "not named: c2, c5, c11, c19 (longer updates)" in found.notes[0]
    table = found.to_table()
    assert [row["client"] for row in table["apart"]] == ["c2", "c5", "c11", "c19"]
    assert not any(row["suspect"] for row in table["clients"])
    joined = join([found, replace(found, apart={}, suspicions={"c2": Suspicion("taught it", 0.9)})])
    assert joined.suspects == ("c2",)
    assert {*joined.apart} == bad - {"c2"}


def test_nobody_stands_apart_without_attack_or_with_a_clear_one(tmp_path: Path) -> None:
    assert not detect.ledger(gathering(tmp_path / "clean")).apart
    assert not detect.ledger(gathering(tmp_path / "noisy", noisy, frozenset({"c2", "c5"}))).apart


def test_who_has_one_example_is_not_judged_unless_it_moves_the_mean(tmp_path: Path) -> None:
    """One example's updates differ from those of hundreds; claimed for long updates, that is no excuse."""
    few = {"sizes": {"c3": 1}}
    found = detect.ledger(gathering(tmp_path / "few", boosted, frozenset({"c3"}), **few))
    assert found.suspects == ()
    assert "little effect on the model: c3" in found.notes[0]

    def hidden(rng: np.random.Generator, own: np.ndarray, honest: np.ndarray) -> np.ndarray:
        return 70 * own

    assert detect.ledger(gathering(tmp_path / "long", hidden, frozenset({"c3"}), **few)).suspects == ("c3",)
    copies = detect.ledger(gathering(tmp_path / "copies", cloned, frozenset({"c3", "c4"}), **few))
    assert copies.suspects == ("c3", "c4")
