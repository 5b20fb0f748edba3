"""What each client does to the classes that the server knows."""

import numpy as np
import pytest

from audit.conftest import SPREAD, Training, trained
from fedcrab.audit import lessons
from fedcrab.audit.lessons import CLEAR, GAIN, NET, UNLEARNS, spare
from fedcrab.detect import Detection, Suspicion
from fedcrab.detect.ledger import COPIES
from fedcrab.errors import HistoryError

UNEVEN = SPREAD.replace("0.5", "0.1")


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A quarter sends its updates turned around, and every client has data of its own."""
    attack = ("attack.name=sign-flip", "attack.settings={}", "attack.start=0", UNEVEN)
    return trained(tmp_path_factory.mktemp("flipped") / "h", *attack)


def of(training: Training):
    return lessons(training.history, training.flat, training.x, training.y, classes=10)


def test_who_turns_its_updates_around_is_named_and_nobody_else(flipped: Training) -> None:
    found = of(flipped)
    assert set(found.unlearners) == flipped.bad
    assert not {*found.teachers} & flipped.bad
    detection = found.detection()
    assert set(detection.suspects) == flipped.bad
    assert detection.strength >= 1
    assert "unlearn" in detection.suspicions[detection.suspects[0]].reason
    assert min(detection.scores[c] for c in flipped.bad) > max(
        score for c, score in detection.scores.items() if c not in flipped.bad
    )


def test_nobody_is_named_where_nobody_attacks_or_only_a_trigger_is_taught(
    clean: Training, planted: Training
) -> None:
    for training in (clean, planted):
        found = of(training)
        assert found.unlearners == ()
        assert found.detection().strength < 1
        assert len(found.teachers) >= 0.9 * len(found.clients)


def test_it_is_the_mean_over_rounds_written_out(clean: Training) -> None:
    """Against plain loops, for one client: cosines with the descent of each class's loss."""
    found, client = of(clean), clean.history.clients[3]
    rounds = np.unique(np.linspace(0, 15, 16).round().astype(int))
    balances, nets, gains = [], [], []
    for t in rounds:
        updates, model = clean.history.updates(int(t)), clean.history.model(int(t))
        u = updates.vectors[updates.clients.index(client)].astype(float)
        effects = []
        for k in range(10):
            rows = [i for i in range(len(clean.y)) if clean.y[i] == k][:40]
            g = clean.flat.gradient(model, clean.x[rows], clean.y[rows])
            effects.append(-float(g @ u) / (np.linalg.norm(g) * np.linalg.norm(u)))
        balances.append((max(effects) + min(effects)) / max(abs(e) for e in effects))
        gains.append(max(effects))
        nets.append(max(effects) + min(effects))
    for told, values in ((found.balance, balances), (found.net, nets), (found.gain, gains)):
        assert told[3] == pytest.approx(min(np.mean(values[:8]), np.mean(values[8:])), rel=1e-5)


def test_without_a_class_or_without_updates_nothing_is_said(planted: Training, tmp_path) -> None:
    some = planted.y != 4
    assert lessons(planted.history, planted.flat, planted.x[some], planted.y[some], classes=10) is None
    bare = trained(tmp_path / "h", "rounds=3", "attack.start=0", "history={name='selective'}")
    with pytest.raises(HistoryError, match="keeps no update vectors"):
        of(bare)


def test_those_who_teach_are_spared_where_the_sign_is_not_clear(clean: Training) -> None:
    teachers = of(clean).teachers
    one, two, three = teachers[:3]
    why = {one: Suspicion("longer updates", 0.9), two: Suspicion(COPIES, 0.9), "x": Suspicion("longer", 0.9)}
    found = Detection("ledger", 5, dict.fromkeys((*teachers, "x"), 1.0), why, 1.2)
    spared = spare(found, teachers)
    assert spared.suspects == tuple(sorted((two, "x")))
    assert spared.apart == {one: "longer updates"}
    assert f"not named: {one} (longer updates)" in spared.notes[0]
    alone = Detection("ledger", 5, {three: 1.0}, {three: Suspicion("longer updates", 0.9)}, 1.2)
    assert (spare(alone, teachers).attack, spare(alone, teachers).strength < 1) == (False, True)
    clear = Detection("ledger", 5, found.scores, why, CLEAR)
    assert spare(clear, teachers) is clear
    assert spare(found, ()) is found
    assert spare(found, teachers, [two]) is found  # of the group somebody is named by another detector
    assert spare(found, teachers, ["y"]) == spared
    assert max(UNLEARNS, NET) < 0 < GAIN
