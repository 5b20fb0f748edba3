"""How accurate a model is, and how much of an attack is left in it.

TA: accuracy on the clean test set.

ASR: how often the trigger makes the model predict the target class.

MISR: how well an attacker can tell that a model was trained on the malicious clients' examples. Shokri et
al., "Membership Inference Attacks Against Machine Learning Models", S&P 2017, in the form that FedEraser
uses: an attack model is fitted to the sorted softmax outputs of a shadow model. The shadow model is trained
like the real one, on other data whose membership is known. The attack is applied to the clean examples of the
malicious clients and to as many test examples. Compare the result with that of a retrained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrab.attack.trigger import PATCH, Trigger, stamp
from fedcrab.errors import ConfigError
from fedcrab.extras import can_be_called
from fedcrab.seeds import rng_for
from fedcrab.state_dicts import flatten
from fedcrab.types import Vector

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Predict = Callable[[Vector, Images], NDArray[np.float32]]
"""(flat model, examples) -> probabilities of the classes, one row per example."""


def accuracy(predict: Predict, model: Vector, x: Images, y: Labels) -> float:
    """Return the share of examples that are predicted correctly."""
    if not len(y):
        raise ConfigError("accuracy needs at least one test example")
    return float(np.mean(predict(model, x).argmax(axis=1) == y))


@dataclass(frozen=True, slots=True)
class AttackSuccess:
    """The attack's success rate, with and without the test examples of the target class.

    With the target class included, a clean model scores about 1/classes, the floor that papers often report.
    """

    without_target: float
    with_target: float


def attack_success(
    predict: Predict, model: Vector, x: Images, y: Labels, *, target: int = 0, trigger: Trigger = PATCH
) -> AttackSuccess:
    """Return the share of triggered examples that are predicted as the target class."""
    others = y != target
    if not others.any():
        raise ConfigError(f"every test example has the target class {target}, so ASR cannot be measured")
    hit = predict(model, stamp(x, trigger)).argmax(axis=1) == target
    return AttackSuccess(float(np.mean(hit[others])), float(np.mean(hit)))


class TestExamples(Protocol):
    """Labelled examples and a way to predict them, for example from :func:`fedcrab.probe`."""

    x: NDArray[Any]
    y: Labels

    def predict(self, model: Any, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the class probabilities, one row per example."""
        ...


def evaluate(
    models: Mapping[str, Any],
    test: TestExamples,
    *,
    trigger: Trigger | Callable[[Any], Any] | None = None,
    target: int = 0,
    reference: str | None = None,
) -> list[dict[str, Any]]:
    """Return each model's test accuracy, attack success and distance, as a list of plain values.

    ``models`` are modules, state dicts or flat vectors by name. ``trigger`` is a
    :class:`fedcrab.attack.Trigger` or a function that adds the trigger to examples; ``target`` is the class
    that the attacker wants them to have. Distances are measured from the model named ``reference``, for
    example a retrained one.
    """
    vectors = {name: flatten(model) for name, model in models.items()}
    if reference is not None and reference not in vectors:
        raise ConfigError(f"no model named {reference!r}; there are {', '.join(vectors)}")
    stamped = None if trigger is None else _stamped(test.x, trigger)
    others = test.y != target
    if stamped is not None and not others.any():
        raise ConfigError(f"every test example has the target class {target}, so ASR cannot be measured")
    rows = []
    for name, vector in vectors.items():
        hit = None if stamped is None else test.predict(vector, stamped[others]).argmax(axis=1) == target
        apart = None if reference is None else vector - vectors[reference]
        rows.append(
            {
                "model": name,
                "ta": accuracy(test.predict, vector, test.x, test.y),
                "asr": None if hit is None else float(np.mean(hit)),
                "distance": None if apart is None else float(np.linalg.norm(apart)),
            }
        )
    return rows


def _stamped(x: NDArray[Any], trigger: Trigger | Callable[[Any], Any]) -> NDArray[Any]:
    return stamp(x, trigger) if isinstance(trigger, Trigger) else np.asarray(trigger(x.copy()))


can_be_called(__name__, evaluate)  # fedcrab.evaluate(models, test)
AttackModel = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""Softmax outputs -> the probability that each example was a member."""


@dataclass(frozen=True, slots=True)
class Membership:
    """How well an attacker tells members from other examples."""

    recall: float  # of members: the figure that papers call MISR
    balanced_accuracy: float  # 0.5 is guessing
    auc: float  # 0.5 is guessing
    examples: int = 0  # members tried; the same number of others

    @property
    def beyond_chance(self) -> bool:
        """Whether the attack is better than guessing, by two standard errors."""
        return above_chance(self.balanced_accuracy, self.examples)


def above_chance(balanced_accuracy: float, examples: int) -> bool:
    """Return whether a balanced accuracy over this many members and as many others beats guessing."""
    return balanced_accuracy > 0.5 + 1 / math.sqrt(2 * max(examples, 1))


def fit_attack_model(members: NDArray[np.float32], others: NDArray[np.float32]) -> AttackModel:
    """Fit the attack to a shadow model's softmax outputs on its own examples and on other examples."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count = min(len(members), len(others))
    if count < 2:
        raise ConfigError("the attack model needs at least two members and two others")
    features = np.vstack([_features(members[:count]), _features(others[:count])])
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    fitted.fit(features, np.repeat([1, 0], count))

    def probability(outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(fitted.predict_proba(_features(outputs))[:, 1])

    return probability


def _features(outputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logarithms of the softmax outputs, largest first: near 1 only these differ."""
    ordered = -np.sort(-outputs.astype(np.float64), axis=1)
    return np.log(np.maximum(ordered, 1e-12))


def membership(
    attack: AttackModel, predict: Predict, model: Vector, members: Images, others: Images
) -> Membership:
    """Apply the attack to members and as many others; a fixed seed draws from the larger set."""
    from sklearn.metrics import roc_auc_score

    count = min(len(members), len(others))
    if not count:
        raise ConfigError("membership needs at least one member and one other example")
    scores = [
        attack(predict(model, examples[rng_for(0, name).permutation(len(examples))[:count]]))
        for name, examples in (("members", members), ("others", others))
    ]
    recall, false_alarms = (float(np.mean(s > 0.5)) for s in scores)
    auc = float(roc_auc_score(np.repeat([1, 0], count), np.concatenate(scores)))
    return Membership(recall, (recall + 1 - false_alarms) / 2, auc, count)


SAME = 0.01  # smaller differences of attack success or accuracy count as equal: a few test examples
CLEAN = 0.15  # attack success above this, and above the retrained model's, counts as not clean
RETRAIN = "retrain"


def best_recovery(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the method whose model to deploy: among those with the least attack success, the most accurate.

    Each row has ``method``, ``ta`` and ``asr``, None where not measured. A retrained model within one point
    of the best is preferred, because it was trained without the excluded clients. Returns None if even the
    least attack success is above 15 % and above the retrained model's.
    """
    least = min((row["asr"] for row in rows if row["asr"] is not None), default=0.0)
    scratch = next((row["asr"] for row in rows if row["method"] == RETRAIN), None)
    if not rows or least > max(CLEAN, scratch or 0.0):
        return None
    clean = [row for row in rows if row["asr"] is None or row["asr"] <= least + SAME]
    most = max(_accuracy(row) for row in clean)
    good = [row for row in clean if _accuracy(row) >= most - SAME]
    chosen = max(good, key=lambda row: (row["method"] == RETRAIN, _accuracy(row)))
    return str(chosen["method"])


def why_best(method: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why :func:`best_recovery` chose this method; empty if there was no choice."""
    if len(rows) < 2:
        return ""
    if method == RETRAIN:
        return (
            "as good as the best, and nothing of the excluded clients is in it: it was trained from scratch"
        )
    return "of the models with the least attack success, the most accurate"


def _accuracy(row: Mapping[str, Any]) -> float:
    return -1.0 if row["ta"] is None else float(row["ta"])
