"""Settings out of range and histories that do not suffice are refused at the call, in one sentence."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from fedcrab import PRESETS, ConfigError, Every, Everything, HistoryError, Plan, Selective, plan
from fedcrab.recover import CRAB_PRESETS, crab, federaser, fedrecover, replay, retrain, subtract_and_distil
from fedcrab.recover.calibrate import calibrate, calibrated
from fedcrab.recover.federaser import fewer_epochs
from fedcrab.recover.step import RoundUpdates
from fedcrab.types import Field, Layout, Updates
from recover.scenes import Answering, scripted


def decided(path: Path, selection: object) -> Plan:
    sent = [{"a": ([1, 0], 1), "m": ([0, 1], 1)}] * 4
    return plan(scripted(path / "h", sent, selection), {"m"})


FLEET = Answering(lambda *_: ([1, 0], 1))


@pytest.mark.parametrize(
    ("method", "wrong", "word"),
    [
        (crab, {"cap": 0}, "cap must be"),
        (crab, {"cap": float("nan")}, "cap must be"),
        (crab, {"cap": True}, "cap must be"),
        (crab, {"settle": -1}, "settle must be"),
        (crab, {"settle": 1.5}, "settle must be"),
        (crab, {"epochs": 0}, "epochs must be"),
        (retrain, {"epochs": 2.5}, "epochs must be"),
        (federaser, {"epochs": 5, "ratio": 0}, "ratio must be"),
        (federaser, {"epochs": 5, "ratio": 1.5}, "ratio must be"),
        (federaser, {"epochs": 5, "every": 0}, "every must be"),
        (federaser, {}, "give epochs"),
        (subtract_and_distil, {"passes": 0}, "passes must be"),
        (subtract_and_distil, {"temperature": 0}, "temperature must be a number above 0"),
        (subtract_and_distil, {"rate": float("nan")}, "rate must be a number above 0"),
        (fedrecover, {"pairs": 0}, "pairs must be"),
        (fedrecover, {"rollback": 1}, "rollback must be true or false"),
        (fedrecover, {"warm_up": 2}, "warm_up must be a whole number of 3 or more"),
        (fedrecover, {"correct_every": 0}, "correct_every must be"),
        (fedrecover, {"tune": -1}, "tune must be"),
        (replay, {"every": 0}, "every must be"),
        (replay, {"asked": True}, "asked must be"),
        (replay, {"asked": 2.5}, "asked must be"),
        (replay, {"settle": -1}, "settle must be"),
        (replay, {"trust": 1}, "trust must be"),
        (replay, {"epochs": 0}, "epochs must be"),
        (fedrecover, {"tolerance": 1}, "tolerance must be"),
        (fedrecover, {"tolerance": float("nan")}, "tolerance must be"),
    ],
)
def test_settings_out_of_range(method, wrong: dict, word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=word) as error:
        method(decided(tmp_path, Everything()), FLEET, **wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "selection", "word"),
    [
        (federaser, Selective(), r"round 0 keeps no update vectors.* Every\(n\) or Everything\(\)"),
        (fedrecover, Selective(), r"round 0 keeps no update vectors, which fedrecover needs"),
        (fedrecover, Every(1), r"round 1 keeps no update vectors, which fedrecover needs"),
        (
            replay,
            Selective(),
            r"round 0 keeps no update vectors, which replay needs.* Compact\(\) or Everything",
        ),
        (replay, Every(1), r"round 1 keeps no update vectors, which replay needs"),
        (
            subtract_and_distil,
            Selective(),
            r"round 0 keeps no update vectors, which subtract-and-distil needs",
        ),
    ],
)
def test_a_history_that_does_not_suffice(method, selection: object, word: str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=word):
        method(decided(tmp_path, selection), FLEET, epochs=5)


@pytest.mark.parametrize("selection", [Selective(), Every(2), Everything()])
def test_crab_and_retrain_need_no_particular_history(selection: object, tmp_path: Path) -> None:
    found = decided(tmp_path, selection)
    assert len(list(crab(found, FLEET))) == len(found.replay)
    assert len(list(retrain(found, FLEET))) == 4


def test_the_defaults_of_crab_are_its_hardened_preset() -> None:
    own = inspect.signature(crab).parameters
    assert {name: own[name].default for name in CRAB_PRESETS["hardened"]} == CRAB_PRESETS["hardened"]
    assert set(CRAB_PRESETS) == set(PRESETS)


def test_a_share_of_the_epochs() -> None:
    given = [(5, 0.5), (1, 0.5), (4, 0.5), (30, 0.1), (7, 1.0), (None, 1.0)]
    assert [fewer_epochs(*one) for one in given] == [3, 1, 2, 3, 7, None]


def test_calibration_scales_what_is_trained() -> None:
    """(3, 4) of length 5 to length 10, its buffers as they were."""
    fresh = np.array([7, 3, 4, 8], np.float32)
    assert calibrate(fresh, 2.0, (slice(1, 3),)).tolist() == [7, 6, 8, 8]
    assert fresh.tolist() == [7, 3, 4, 8]


def test_a_renewal_without_a_direction_is_dropped_whatever_its_buffers_do() -> None:
    layout = Layout((Field("weight", (2,)), Field("mean", (1,), trained=False)))
    sent = Updates.of({"a": ([0, 0, 5], 1), "b": ([1e-40, 0, 5], 1), "c": ([3, 4, 5], 1)})
    harvest = calibrated(RoundUpdates(sent), {"a": 1, "b": 1, "c": 0}, cap=100, layout=layout)
    assert harvest.updates.clients == ("b", "c")
    assert [r.client for r in harvest.dropped] == ["a"]
    assert harvest.dropped[0].reason == "the renewed update is zero"
    assert [c.client for c in harvest.capped] == ["b"]
    assert harvest.updates.vectors[1].tolist() == [0, 0, 5]  # of no length in the history: of none again
