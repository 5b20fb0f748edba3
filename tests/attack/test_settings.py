"""What an attack refuses, and in which words."""

import pytest

from attack.tiny import random_fleet
from fedcrab.attack import (
    Attackers,
    Trigger,
    backdoor,
    boosted,
    dba,
    evade,
    fang_krum,
    ipm,
    label_flip,
    lie,
    min_max,
    min_sum,
    noise_trim,
)
from fedcrab.errors import ConfigError

SMALL = Trigger(size=2)
FLEET = random_fleet()
EVIL = frozenset("bf")


@pytest.mark.parametrize(
    ("attack", "settings", "message"),
    [
        (backdoor, {"poisoned": 0.0}, r"poisoned must be .* got 0\.0"),
        (backdoor, {"labels": "clean"}, "labels must be one of fixed, random, all-of-one-class, got 'clean'"),
        (backdoor, {"labels": "random"}, "needs classes, 2 or more, got None"),
        (backdoor, {"labels": "all-of-one-class", "source": 0}, "source other than target 0, got 0"),
        (backdoor, {"boost": 0.0, "trigger": SMALL}, r"boost must be more than 0, got 0\.0"),
        (backdoor, {"trigger": Trigger(size=5)}, "size 5 does not fit images of 4×4"),
        (dba, {"poisoned": 1.5}, r"poisoned must be .* got 1\.5"),
        (dba, {"parts": 17}, "16 pixels can have 1 to 16 parts, got 17"),
        (label_flip, {"classes": 1}, "classes must be 2 or more, got 1"),
        (label_flip, {"classes": 2}, "client b: labels must be from 0 to 1, got 0 to 2"),
        (noise_trim, {"mode": "drop"}, "mode must be one of add, replace, got 'drop'"),
        (noise_trim, {"fraction": 0.0}, r"fraction must be .* got 0\.0"),
        (noise_trim, {"scale": -1.0}, r"scale must be 0 or more, got -1\.0"),
        (fang_krum, {"byzantine": -1}, "byzantine must be 0 or more.*got -1"),
        (lie, {"z": float("inf")}, "z must be finite.*got inf"),
        (min_max, {"direction": "up"}, "direction must be one of unit, deviation, sign, got 'up'"),
        (min_sum, {"direction": "up"}, "direction must be one of unit, deviation, sign, got 'up'"),
        (ipm, {"scale": 0.0}, r"scale must be more than 0, got 0\.0"),
        (evade, {"norm": -2.0}, r"norm must be more than 0.*got -2\.0"),
        (boosted, {"factor": float("nan")}, "boost must be more than 0, got nan"),
    ],
)
def test_settings_are_checked_where_they_enter(attack, settings, message):
    with pytest.raises(ConfigError, match=message):
        attack(FLEET, Attackers(EVIL), **settings)
