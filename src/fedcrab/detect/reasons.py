"""Signals in words."""

from __future__ import annotations

from collections.abc import Mapping

COPIES = "sends copies of other clients' updates"
WORDS = {
    ("length", True): "longer updates",
    ("length", False): "shorter updates",
    ("outside", True): "more in its updates that no other has",
    ("outside", False): "less in its updates that no other has",
    ("agreement", True): "more agreement with all others",
    ("agreement", False): "less agreement with the others",
    ("apart", True): "in a group that agrees with itself, less with the others",
}
LOOKS = {"": "", "later": " in the later rounds", "change": " as training went on"}
CLEAR = 0.6  # of the strongest signal


def reason(signals: Mapping[str, float]) -> str:
    """The strongest signals of a division, at most three, each kind once."""
    ranked = sorted(signals, key=lambda name: -abs(signals[name]))
    said: dict[str, str] = {}
    for name in ranked:
        if abs(signals[name]) >= CLEAR * abs(signals[ranked[0]]):
            kind, _, when = name.partition(", ")
            above = kind == "apart" or signals[name] > 0
            said.setdefault(kind, WORDS[kind, above] + LOOKS[when])
    return "; ".join(list(said.values())[:3])
