"""Theorem 1 of the paper: violated as printed, by arithmetic and by crab itself; not violated as mended."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedcrab import History, Round, Selective, Updates, plan
from fedcrab.aggregate import fedavg
from fedcrab.certificate import SOUND, UNPROVABLE, Assumptions, certify
from fedcrab.certificate.theorem_1 import mended_recovery, mended_retraining, printed
from fedcrab.recover import CRAB_PRESETS, crab, retrain

HEIGHT = 10.0  # how far the slopes reach to either side; so F0 - F*


def slope(x: float, L: float, top: float) -> float:
    """F' of a roof with its ridge at ``top``: rounded to curvature L there, and flat from the eaves on."""
    ridge = np.clip(L * (top - x), -1, 1)
    return float(ridge * np.clip(1 - L * (abs(x) - HEIGHT), 0, 1))


def test_by_arithmetic() -> None:
    """L = 100, G = 1, η = 0.01: the first sampled gradient is ±1, unbiased, and then it is downhill."""
    L, G, rate, rounds = 100.0, 1.0, 0.01, 1000
    ends = []
    for first in (-1.0, 1.0):  # F'(0) = 0 is the mean of the two
        x = -rate * first
        for _ in range(rounds - 1):
            x -= rate * slope(x, L, 0.0)
        ends.append(x)
    distance = abs(ends[0] - ends[1])
    known = {"rate": rate, "L": L, "G": G, "gap": HEIGHT}
    bound = printed(**known, r=rounds, tau=rounds, ratios=float(rounds))
    mended = mended_recovery(**known, r=rounds, ratios=float(rounds)) + mended_retraining(**known, tau=rounds)
    assert bound == pytest.approx(15.8, abs=0.05)
    assert distance == pytest.approx(20.0, abs=0.05)
    assert distance > bound
    assert distance < mended == pytest.approx(24.5, abs=0.05)


class Roofs:
    """Two honest clients on a roof of their own each: at 0, a slides to the right and b to the left.

    m pulls the first model to the left, where the selection then leaves a out, and after that holds it there.
    """

    def __init__(self, L: float, rate: float) -> None:
        self.L, self.rate = L, rate
        self.examples = {"a": 60, "b": 40, "m": 100}

    def train(self, model, clients: Sequence[str], *, round: int, epochs=None) -> Updates:
        x = float(model[0])
        tops = {"a": -1 / self.L, "b": 1 / self.L}
        sent = {c: [-self.rate * slope(x, self.L, tops[c])] for c in clients if c != "m"}
        if "m" in clients:
            honest = sum(self.examples[c] * sent[c][0] for c in ("a", "b")) / 100
            sent["m"] = [-2.0 if round == 0 else -honest]
        return Updates.of({c: (u, self.examples[c]) for c, u in sent.items()})


def record(path: Path, fleet: Roofs, rounds: int) -> History:
    model = np.zeros(1, np.float32)
    keep = Selective(rounds=1.0, clients=0.7)
    with History.create(path, model, initial_loss=HEIGHT, selection=keep, seed=0) as history:
        for t in range(rounds):
            updates = fleet.train(model, ["a", "b", "m"], round=t)
            step = fedavg()(updates.vectors, updates.weights)
            history.record(Round(t, model, updates, step, HEIGHT, 0.1))
            model = model + step
    return History.open(path)


def test_by_crab_itself(tmp_path: Path) -> None:
    """Every client's loss is L-smooth with gradients of at most G, and every step is a full-batch one."""
    L, rate, rounds = 20.0, 0.1, 100
    fleet = Roofs(L, rate)
    decided = plan(record(tmp_path / "h", fleet, rounds), {"m"}, beta=0.0)
    assert decided.rollback_round == 0
    steps, again = list(crab(decided, fleet, **CRAB_PRESETS["paper"])), list(retrain(decided, fleet))
    distance = abs(float(steps[-1].model[0] - again[-1].model[0]))
    known = {"rate": rate, "fewest_steps": 1, "most_steps": 1, "smoothness": L, "gradient": 1.0}
    given = Assumptions(**known, full_batch=True, initial_gap=HEIGHT, rollback_gap=HEIGHT)
    terms = certify(
        decided, steps[-1].model, steps, crab=CRAB_PRESETS["paper"], assumptions=given, retrained_steps=again
    ).terms
    assert distance > 19.5
    assert terms["theorem1.printed"].value < 17.5
    assert terms["theorem1.printed"].flag == UNPROVABLE
    assert terms["theorem1.mended"].value > distance
    assert terms["theorem1.retraining"].flag == SOUND
    assert terms["distance.parts"].flag == SOUND
    assert terms["distance.parts"].value > distance


def test_sampling_needs_a_term_of_its_own() -> None:
    """F = 0 with sampled gradients of ±1: the theorem's second term is 0, and the model walks."""
    rng, tau = np.random.default_rng(0), 400
    known = {"rate": 0.1, "L": 0.0, "G": 1.0, "gap": 0.0, "tau": tau}
    walks = np.abs(0.1 * rng.choice([-1.0, 1.0], (1000, tau)).sum(axis=1)).mean()
    assert mended_retraining(**known) == 0 < walks
    assert walks < mended_retraining(**known, sampled=True) == pytest.approx(2.0)


def test_calibrated_updates_are_no_gradients(tmp_path: Path) -> None:
    """Why the mended first term is no theorem either: crab climbs where the honest loss falls."""
    fleet = Roofs(20.0, 0.1)
    decided = plan(record(tmp_path / "h", fleet, 3), {"m"}, beta=0.0)
    up = next(iter(crab(decided, fleet, **CRAB_PRESETS["paper"]))).model[0]
    down = next(iter(retrain(decided, fleet))).model[0]
    assert up < 0 < down
