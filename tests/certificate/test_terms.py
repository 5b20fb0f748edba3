"""What each term is by hand, and when it claims nothing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedcrab import ConfigError, Everything, History, Round, Selective, Updates, certify, plan
from fedcrab.aggregate import clipped_mean, fedavg, geometric_median, krum, median, multi_krum, trimmed_mean
from fedcrab.certificate import HEURISTIC, SOUND, UNPROVABLE, Assumptions
from fedcrab.certificate.path_length import REACHES
from fedcrab.certificate.term import Term, rounded_up, total
from fedcrab.recover import CRAB_PRESETS, crab

RULES = {
    "fedavg": fedavg(),
    "clipped-mean": clipped_mean(limit=1.0),
    "krum": krum(byzantine=1),
    "multi-krum": multi_krum(byzantine=1, keep=3),
    "geometric-median": geometric_median(),
    "median": median(),
    "trimmed-mean": trimmed_mean(trim=2),
}
numbers = st.floats(-10, 10, width=32)


@pytest.mark.parametrize("rule", RULES)
@given(
    arrays.arrays(np.float32, (7, 5), elements=numbers), arrays.arrays(float, 7, elements=st.floats(0.5, 9))
)
def test_no_rule_goes_further_than_its_reach(rule: str, updates: np.ndarray, weights: np.ndarray) -> None:
    lengths = np.linalg.norm(updates.astype(float), axis=1)
    gone = np.linalg.norm(RULES[rule](updates, weights).astype(float))
    assert gone <= REACHES[rule](weights.tolist(), lengths.tolist()) * (1 + 1e-5) + 1e-30


def test_the_mean_of_lengths_does_not_bound_a_median() -> None:
    updates = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], np.float32)
    assert np.linalg.norm(median()(updates, np.ones(3))) > np.linalg.norm(updates, axis=1).mean()


def recorded(
    path: Path,
    rounds: list[dict],
    *,
    selection=None,
    between: float = 0.0,
    rule: str = "fedavg",
    aggregate=None,
) -> History:
    """These updates from a model of zeros; ``between`` is what somebody adds to the model before round 1."""
    aggregate = aggregate or fedavg()
    model = np.zeros(2, np.float32)
    settings = {"selection": selection or Selective(rounds=1.0, clients=1.0), "aggregation": rule, "seed": 0}
    with History.create(path, model, initial_loss=1.0, **settings) as history:
        for t, sent in enumerate(rounds):
            updates = Updates.of({c: (u, 1) for c, u in sent.items()})
            step = aggregate(updates.vectors, updates.weights)
            history.record(Round(t, model, updates, step, 0.9**t, 0.1))
            model = model + step + (between if t == 0 else 0)
    return History.open(path)


# s = ‖mean of all - mean of a, b‖: (1, 1) in the first round, (0, 2) in the second, nothing in the third
SENT = [
    {"a": [1, 0], "b": [1, 0], "m": [4, 3]},
    {"a": [0, 1], "b": [0, 1], "m": [0, 7]},
    {"a": [1, 1], "b": [1, 1], "m": [1, 1]},
]


def terms_of(history: History, expansion: float | None, **settings) -> dict[str, Term]:
    decided = plan(history, {"m"}, beta=1e9)
    return certify(decided, assumptions=Assumptions(expansion=expansion), **settings).terms


def test_poison_by_hand(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h", SENT)
    first, second = np.hypot(1, 1), 2.0
    for kappa in (0.0, 0.5, 1.0, 3.0):
        terms = terms_of(history, kappa)
        assert terms["poison.rollback"].value == pytest.approx(kappa * first + second, rel=1e-5)
        assert terms["poison.whole"].value == pytest.approx(
            kappa**2 * first + kappa * second, rel=1e-5, abs=1e-5
        )
        assert terms["poison.influence"].value == pytest.approx(first + second, rel=1e-5)
        assert terms["poison.rollback"].flag == SOUND


def test_nothing_is_claimed_without_grounds(tmp_path: Path) -> None:
    terms = terms_of(recorded(tmp_path / "h", SENT), None)
    assert {name for name, term in terms.items() if term.flag == SOUND} == set()
    assert terms["poison.influence"].flag == HEURISTIC
    assert terms["poison.rollback"].flag == UNPROVABLE


def slowly(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A server that goes half of the way."""
    return fedavg()(vectors, weights) / 2


@pytest.mark.parametrize(
    "change", [{"between": 0.5}, {"rule": "median"}, {"aggregate": median()}, {"aggregate": slowly}]
)
def test_poison_needs_means_and_an_unbroken_training(tmp_path: Path, change: dict) -> None:
    terms = terms_of(recorded(tmp_path / "h", SENT, **change), 1.0)
    assert terms["poison.rollback"].flag == terms["poison.whole"].flag == UNPROVABLE
    assert terms["retraining.ledger"].flag == UNPROVABLE


def test_the_first_model_has_no_poison_whatever_the_loss(tmp_path: Path) -> None:
    decided = plan(recorded(tmp_path / "h", SENT), {"m"}, beta=0.0)
    poison = certify(decided).terms["poison.rollback"]
    assert (decided.rollback_round, poison.value, poison.flag, poison.assumes) == (0, 0.0, SOUND, ())


def test_the_planned_path_holds_whoever_answers(tmp_path: Path) -> None:
    """Weights of clients that drop out fall to the others, so the longest length counts, not the mean."""
    sent = [{"a": [1, 0], "b": [9, 0], "m": [0, 1]}] * 3
    decided = plan(recorded(tmp_path / "h", sent), {"m"}, beta=0.0)

    class OnlyB:
        def train(self, model, clients, *, round, epochs=None):
            return Updates.of({"b": ([1, 0], 1)})

    steps = list(crab(decided, OnlyB(), **CRAB_PRESETS["paper"]))
    terms = certify(decided, steps[-1].model, steps, crab=CRAB_PRESETS["paper"]).terms
    assert terms["path.moved"].value == pytest.approx(27)
    assert terms["path.planned"].value >= 27
    assert terms["path.travelled"].value >= 27
    assert certify(decided, crab=CRAB_PRESETS["hardened"]).terms["path.planned"].flag == UNPROVABLE


def test_estimates_by_hand(tmp_path: Path) -> None:
    given_ = Assumptions(rate=0.5, fewest_steps=2, most_steps=2)
    decided = plan(recorded(tmp_path / "h", SENT, selection=Everything()), {"m"})
    found = certify(decided, assumptions=given_).estimates
    assert found["gradient"].value == pytest.approx(np.sqrt(2) / (0.5 * 2))
    # honest updates change by (-1, 1) and (1, 0) while the model moves by (2, 1) and (0, 3)
    assert found["smoothness"].value == pytest.approx(max(np.sqrt(2) / np.sqrt(5), 1 / 3))
    assert certify(decided, assumptions=given_, estimate=False).estimates == {}
    constants = certify(decided, assumptions=given_).terms["retraining.constants"]
    assert constants.flag == HEURISTIC
    means = certify(plan(recorded(tmp_path / "s", SENT), {"m"}), assumptions=given_).estimates["smoothness"]
    # means of all: (2, 1), (0, 3), (1, 1)
    assert means.value == pytest.approx(max(np.sqrt(8) / np.sqrt(5), np.sqrt(5) / 3))


@pytest.mark.parametrize(
    ("known", "factor"),
    [
        ({"convexity": 0.0, "smoothness": 4.0, "rate": 0.5}, 1.0),
        ({"convexity": 0.0, "smoothness": 4.0, "rate": 0.1}, 1.0),
        ({"convexity": 1.0, "smoothness": 4.0, "rate": 0.1}, 0.9**3),
        ({"convexity": 1.0, "smoothness": 4.0, "rate": 0.45}, 0.8**3),
        ({"convexity": 0.0, "smoothness": 4.0, "rate": 1.0}, 3.0**7),
        ({"smoothness": 4.0, "rate": 0.5}, 3.0**7),
        ({"convexity": -1.0, "smoothness": 4.0, "rate": 0.25}, 1.25**7),
        ({"convexity": 0.0, "rate": 0.5}, None),
        ({"smoothness": 4.0}, None),
        ({"expansion": 0.3, "smoothness": 4.0, "rate": 9.0}, 0.3),
    ],
)
def test_how_much_local_training_stretches(known: dict, factor: float | None) -> None:
    found = Assumptions(fewest_steps=3, most_steps=7, **known).local_expansion()
    assert found == (None if factor is None else pytest.approx(factor))


@pytest.mark.parametrize(
    "bad",
    [
        {"rate": 0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": True},
        {"rate": "fast"},
        {"rate": 10**400},
        {"smoothness": 0},
        {"most_steps": 1.5},
        {"most_steps": 0},
        {"fewest_steps": 3, "most_steps": 2},
        {"convexity": 2.0, "smoothness": 1.0},
        {"full_batch": 1},
        {"gradient": float("inf")},
    ],
)
def test_assumptions_that_cannot_be(bad: dict) -> None:
    with pytest.raises(ConfigError):
        Assumptions(**bad)


def test_what_is_above_every_number_is_not_claimed(tmp_path: Path) -> None:
    terms = terms_of(recorded(tmp_path / "h", SENT), 1e99)
    assert terms["poison.rollback"].flag == SOUND
    long = recorded(tmp_path / "long", SENT * 2)
    assert terms_of(long, 1e99)["poison.whole"].flag == UNPROVABLE


@given(st.floats(1e-300, 1e300))
def test_rounding_never_goes_below(value: float) -> None:
    assert value <= rounded_up(value) <= value * (1 + 1.1e-8)
    assert len(repr(rounded_up(value)).split("e")[0].replace(".", "").strip("0")) <= 9


def test_a_sum_is_as_good_as_its_worst_part() -> None:
    parts = [Term(1.0, SOUND, "", ("x",)), Term(2.0, HEURISTIC, "", ("x", "y"))]
    whole = total("both", *parts)
    assert (whole.value, whole.flag, whole.assumes) == (3.0, HEURISTIC, ("x", "y"))
    assert total("none", parts[0], Term(None, UNPROVABLE, "")).value is None
