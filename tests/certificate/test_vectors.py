"""Bounds from vectors: the lemma, the ball by plain loops, what refutes the constants, what is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificate.test_soundness import distance, in_memory
from fedcrab import DamagedError, Everything, History, Round, Updates, plan
from fedcrab.certificate import SOUND, UNPROVABLE, Assumptions, certify, verify_certificate
from fedcrab.certificate.certificate import certify_folder
from fedcrab.recover import CRAB_PRESETS, AnswerFolder, Answers, RecordedFleet, ask_at, crab, retrain
from fedcrab.recover.folder import RecoveryFolder
from fedcrab.types import Layout
from trials.convex import Problem, Training, long_training, quadratics, random_training, softmax_regressions
from trials.recovered import recovered
from trials.tightness import ratios, trials

OLD = Path(__file__).parents[1] / "fixtures" / "certificate-1"


@given(st.integers(0, 10**6), st.sampled_from([quadratics, softmax_regressions]))
def test_local_training_is_affine_up_to_rho(seed: int, make) -> None:
    """‖T(x) - T(y) - C(x-y)‖ ≤ ρ‖x-y‖, with ρ as the sum that it is."""
    rng = np.random.default_rng(seed)
    problem: Problem = make(rng, 3)
    centre, rho = problem.assumptions().local_affine()
    low, high = problem.rate * problem.mu, problem.rate * problem.smoothness
    a, b, q = 1 - (high + low) / 2, (high - low) / 2, max(abs(1 - low), abs(1 - high))
    assert centre == pytest.approx(a**problem.steps)
    naive = b * sum(q ** (problem.steps - 1 - k) * abs(a) ** k for k in range(problem.steps))
    assert rho == pytest.approx(naive, abs=1e-12)
    x, y = rng.normal(size=(2, problem.size)) * rng.choice([0.01, 1, 30])
    for client in problem.clients:
        moved = x + problem.answer(x, client, 0) - y - problem.answer(y, client, 0)
        assert np.linalg.norm(moved - centre * (x - y)) <= rho * np.linalg.norm(x - y) * (1 + 1e-9) + 1e-9


@given(st.integers(1, 6), st.integers(0, 6), st.floats(-0.2, 1), st.floats(0.01, 2.2))
def test_clients_with_different_steps_share_one_centre(
    fewest: int, more: int, mu: float, rate: float
) -> None:
    known = {"convexity": mu, "smoothness": 1.0, "rate": rate}
    together = Assumptions(**known, fewest_steps=fewest, most_steps=fewest + more)
    centre, rho = together.local_affine()
    assert rho <= together.local_expansion() * (1 + 1e-12)
    for k in range(fewest, fewest + more + 1):
        own, spread = Assumptions(**known, fewest_steps=k, most_steps=k).local_affine()
        assert abs(own - centre) + spread <= rho * (1 + 1e-9) + 1e-12


def test_a_declared_expansion_alone_has_no_centre() -> None:
    assert Assumptions(expansion=0.7).local_affine() == (0.0, 0.7)
    assert Assumptions().local_affine() is None


def naive_ball(training: Training, models: list, answers: list[Answers]) -> tuple[np.ndarray, float]:
    """E in plain loops, without what replaces a ball: the nearest answer of every client, round by round."""
    problem, history = training.problem, training.history
    (centre, rho), kappa = problem.assumptions().local_affine(), problem.assumptions().local_expansion()
    m, radius = models[0].astype(float), 0.0
    for entry in history.rounds:
        honest = [c for c in entry.clients if c not in training.malicious]
        weights = np.array([problem.clients[c].examples for c in honest])
        moved, far = [], []
        for client in honest:
            known = [a for a in answers if client in a.updates.clients]
            a = min(known, key=lambda a: np.linalg.norm(m - a.model))
            u = a.updates.vectors[a.updates.clients.index(client)]
            moved.append(a.model + u + centre * (m - a.model))
            far.append(rho * np.linalg.norm(m - a.model))
        if honest:
            radius = kappa * radius + np.average(far, weights=weights)
            m = np.average(moved, axis=0, weights=weights)
    return m, radius


def test_the_ball_is_no_looser_than_plain_loops_and_holds_the_retraining() -> None:
    tried = 0
    with in_memory() as place:
        for seed in range(700, 730):
            training = random_training(seed, place / str(seed))
            if not (training.problem.convex and training.problem.full_batch):
                continue
            decided, kept = plan(training.history, training.malicious), []
            fleet = RecordedFleet(training.problem, kept.append)
            steps = list(crab(decided, fleet))
            ask_at(decided, fleet, steps[-1].model)
            answers = [a for a in (*kept, *training.sent) if a.updates.clients]
            given_ = training.problem.assumptions()
            terms = certify(decided, steps[-1].model, steps, assumptions=given_, answers=answers).terms
            m, radius = naive_ball(training, training.models, answers)
            scratch = list(retrain(decided, training.problem))[-1].model
            assert distance(m, scratch) <= radius + 1e-4 * (1 + np.linalg.norm(m))
            plain = distance(m, steps[-1].model) + radius
            assert terms["distance.enclosed"].value <= plain * (1 + 1e-3) + 1e-4
            tried += 1
    assert tried > 10


def test_the_ball_by_hand(tmp_path: Path) -> None:
    """One number, f = (w - 4)²/2, rate 1/2: T(x) = x/2 + 2, so C = 1/2, ρ = 0 and the ball is a point."""
    model = np.zeros(1, np.float32)
    with History.create(tmp_path / "h", model, initial_loss=1.0, selection=Everything()) as history:
        for t in range(3):
            updates = Updates.of({"a": (2 - model / 2, 1), "m": ([9.0], 1)})
            step = updates.vectors.mean(axis=0)
            history.record(Round(t, model, updates, step, 1.0, 0.1))
            model = model + step
    known = Assumptions(
        rate=0.5, fewest_steps=1, most_steps=1, convexity=1.0, smoothness=1.0, full_batch=True
    )
    decided = plan(History.open(tmp_path / "h"), {"m"})
    terms = certify(decided, np.array([3.0], np.float32), assumptions=known).terms
    # from 0 the retraining goes to 2, 3, 3.5; the model at 3 is 0.5 away
    assert terms["distance.enclosed"].value == pytest.approx(0.5, abs=1e-4)
    assert terms["poison.enclosed"].value == pytest.approx(abs(float(model[0]) - 3.5), abs=1e-4)


class Liar:
    """A fleet in which one client sends more than it should."""

    def __init__(self, problem: Problem, client: str, factor: float) -> None:
        self.problem, self.client, self.factor = problem, client, factor

    def train(self, model, clients, *, round, epochs=None) -> Updates:
        updates = self.problem.train(model, clients, round=round)
        factors = [self.factor if c == self.client else 1.0 for c in updates.clients]
        return Updates(updates.clients, updates.vectors * np.array(factors)[:, None], updates.weights)


@pytest.mark.parametrize("vectors", [False, True])
def test_answers_refute_a_liar_and_false_constants(vectors: bool) -> None:
    with in_memory() as place:
        training = long_training(4, place / "h")
        problem, decided = training.problem, plan(training.history, training.malicious)
        liar = decided.replay[1][1][0]
        for fleet, changes in (
            (problem, {}),
            (Liar(problem, liar, 30.0), {}),
            (problem, {"smoothness": problem.smoothness / 50, "convexity": 0.0, "full_batch": False}),
        ):
            kept: list[Answers] = []
            steps = list(crab(decided, RecordedFleet(fleet, kept.append), **CRAB_PRESETS["hardened"]))
            found = certify(
                decided,
                steps[-1].model,
                steps,
                crab=CRAB_PRESETS["hardened"],
                assumptions=problem.assumptions(**changes),
                answers=kept if vectors else (),
            )
            refuted = found.terms["answers.refute"].value > 1
            if fleet is problem and not changes:
                assert not refuted
                assert found.distance.flag == SOUND
            else:
                assert refuted
                assert found.distance.flag == found.poisoned.flag == UNPROVABLE
                assert "refuted by client" in found.terms["answers.refute"].assumes[0]
            if fleet is not problem:
                assert repr(liar) in found.terms["answers.refute"].assumes[0]


def test_the_conclusion_says_what_it_assumes_and_stands_beside_doing_nothing(tmp_path: Path) -> None:
    training, folder = recovered(tmp_path, seed=5)
    found = certify_folder(folder, training.history, assumptions=training.problem.assumptions())
    table = found.to_table()["conclusion"]
    assert "Ψ is a bound" not in str(found.to_table())
    assert any("honest" in words for words in table["assumes"])
    assert table["declared"]["rate"] == training.problem.rate
    assert table["poisoned"]["value"] == min(
        found.to_table()["terms"][name]["value"] for name in ("poison.whole", "poison.enclosed")
    )
    ranked = "recovered" if table["value"] < table["poisoned"]["value"] else "poisoned"
    assert table["nearer"] == ranked


def test_certificates_of_the_first_format_verify_for_ever(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    path, history = tmp_path / "old" / "out" / "crab-hardened" / "certificate.json", tmp_path / "old" / "h"
    assert json.loads(path.read_text())["format"] == "fedcrab certificate 1"
    assert verify_certificate(path, history=history) == []
    path.write_text(path.read_text().replace('"by": "distance.measured"', '"by": "distance.coupled"'))
    assert any("conclusion.by" in problem for problem in verify_certificate(path, history=history))


def test_answers_on_disk_are_those_that_passed(tmp_path: Path) -> None:
    training = random_training(3, tmp_path / "h", quadratics)
    decided, layout = plan(training.history, training.malicious), training.history.charter.layout
    kept, folder = [], AnswerFolder(tmp_path, layout)
    fleet = RecordedFleet(RecordedFleet(training.problem, kept.append, epochs=5), folder.save, epochs=5)
    steps = list(crab(decided, fleet, epochs=5))
    clients = ask_at(decided, fleet, steps[-1].model)
    fleet.train(steps[-1].model, clients[:1], round=0, epochs=3)  # another map
    read = folder.read()
    assert len(read) == len(kept) == len(steps) + 1
    for answers in read:
        same = [a for a in kept if a.round == answers.round and np.array_equal(a.model, answers.model)]
        assert any(np.array_equal(a.updates.vectors, answers.updates.vectors) for a in same)
    assert folder.has(steps[-1].model, clients)
    assert not folder.has(steps[-1].model + 1, clients)


@pytest.mark.parametrize("change", ["vectors", "record", "gone", "not json"])
def test_answers_that_were_changed_are_found(tmp_path: Path, change: str) -> None:
    layout, model = Layout.flat(2), np.zeros(2, np.float32)
    folder = AnswerFolder(tmp_path, layout)
    folder.save(Answers(1, model, Updates.of({"a": ([1, 2], 3)})))
    record = next((tmp_path / "answers").glob("*.json"))
    table = json.loads(record.read_text())
    vectors = tmp_path / "answers" / f"{table['updates']}.safetensors"
    if change == "vectors":
        vectors.write_bytes(vectors.read_bytes()[:-1] + b"\x01")
    elif change == "record":
        record.write_text(json.dumps({**table, "clients": ["b", "a"]}))
    elif change == "gone":
        vectors.unlink()
    else:
        record.write_text("{")
    with pytest.raises(DamagedError):
        folder.read()


def test_a_certificate_with_answers_verifies_and_names_what_changed(tmp_path: Path) -> None:
    training, folder = recovered(tmp_path, anchor=True)
    found = certify_folder(folder, training.history, assumptions=training.problem.assumptions())
    table = found.to_table()
    assert table["subject"]["answers"] is not None
    from fedcrab.certificate import write_certificate

    write_certificate(folder.path / "certificate.json", table)
    assert verify_certificate(folder.path / "certificate.json") == []
    records = sorted((folder.path / "answers").glob("*.json"))
    records[-1].unlink()
    assert any("subject.answers" in p for p in verify_certificate(folder.path / "certificate.json"))
    assert RecoveryFolder.open(folder.path).evidence(training.history, None).answers


def tightness(make, seeds: range, preset: str) -> tuple[float, float]:
    """Median of conclusion / distance, the share below the poisoned model's distance; none violated."""
    found = list(trials(make, seeds, preset))
    assert all(m.truth <= bound for m in found for bound in m.bounds.values())
    assert all(m.poisoned <= m.nothing for m in found)
    return ratios(found)[:2]


def test_how_tight_the_conclusions_are() -> None:
    """A quick look; the whole of it is slow, and benchmarks/certificate.py has the table."""
    middle, share = tightness(long_training, range(12), "hardened")
    assert (middle <= 3.5, share >= 0.42) == (True, True), (middle, share)
    middle, share = tightness(random_training, range(5000, 5020), "hardened")
    assert (middle <= 1.6, share >= 0.4) == (True, True), (middle, share)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["hardened", "paper"])
def test_conclusions_reach_their_figures(preset: str) -> None:
    middle, share = tightness(long_training, range(220), preset)
    assert (middle <= 3.5, share >= 0.42) == (True, True), (middle, share)
    middle, share = tightness(random_training, range(5000, 5400), preset)
    assert (middle <= 1.5, share >= 0.565) == (True, True), (middle, share)
