"""How good a model is, and what is left of an attack in it.

TA: accuracy on the clean test set.

ASR: how often the trigger turns a test example into the target class.

MISR: how well one can tell that a model was trained on the malicious clients' examples. Shokri et al.,
"Membership Inference Attacks Against Machine Learning Models", S&P 2017, in the form that FedEraser uses: an
attack model is fitted to the sorted softmax outputs of a shadow model, trained like the real one on other
data, where membership is known. It is applied to the clean examples of the malicious clients and to as many
test examples. What is normal, only the same figure of a retrained model says.
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
    """The share of examples whose likeliest class is their label."""
    if not len(y):
        raise ConfigError("accuracy needs at least one test example")
    return float(np.mean(predict(model, x).argmax(axis=1) == y))


@dataclass(frozen=True, slots=True)
class AttackSuccess:
    """The attack's success rate over all test examples whose class is not the target, and over all.

    With the target class in, a clean model scores about 1/classes: the floor that papers often report.
    """

    without_target: float
    with_target: float


def attack_success(
    predict: Predict, model: Vector, x: Images, y: Labels, *, target: int = 0, trigger: Trigger = PATCH
) -> AttackSuccess:
    """The share of stamped examples that the model takes for the target class."""
    others = y != target
    if not others.any():
        raise ConfigError(f"every test example is of the target class {target}; ASR has no meaning")
    hit = predict(model, stamp(x, trigger)).argmax(axis=1) == target
    return AttackSuccess(float(np.mean(hit[others])), float(np.mean(hit)))


class TestExamples(Protocol):
    """Labelled examples and a way to predict them, such as :func:`fedcrab.probe` gives."""

    x: NDArray[Any]
    y: Labels

    def predict(self, model: Any, x: NDArray[Any]) -> NDArray[np.float32]:
        """The probabilities of the classes, one row per example."""
        ...


def evaluate(
    models: Mapping[str, Any],
    test: TestExamples,
    *,
    trigger: Trigger | Callable[[Any], Any] | None = None,
    target: int = 0,
    reference: str | None = None,
) -> list[dict[str, Any]]:
    """Each model's accuracy on test examples, attack success and distance, as a list of plain values.

    ``models`` are modules, state dicts or flat vectors by name. ``trigger`` stamps examples: a
    :class:`fedcrab.attack.Trigger`, or a function of the examples; ``target`` is the class that they should
    then be taken for. ``reference`` names the model that distances are measured from, such as a retrained
    one.
    """
    vectors = {name: flatten(model) for name, model in models.items()}
    if reference is not None and reference not in vectors:
        raise ConfigError(f"no model {reference!r} to measure from; there are {', '.join(vectors)}")
    stamped = None if trigger is None else _stamped(test.x, trigger)
    others = test.y != target
    if stamped is not None and not others.any():
        raise ConfigError(f"every test example is of the target class {target}; ASR has no meaning")
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
    """How well members are told from others."""

    recall: float  # of members: the figure that papers call MISR
    balanced_accuracy: float  # 0.5 is guessing
    auc: float  # 0.5 is guessing
    examples: int = 0  # members tried, and as many others

    @property
    def beyond_chance(self) -> bool:
        """Whether members are told better than by guessing: two standard errors above a half."""
        return above_chance(self.balanced_accuracy, self.examples)


def above_chance(balanced_accuracy: float, examples: int) -> bool:
    """Whether a balanced accuracy over this many members and as many others is more than guessing."""
    return balanced_accuracy > 0.5 + 1 / math.sqrt(2 * max(examples, 1))


def fit_attack_model(members: NDArray[np.float32], others: NDArray[np.float32]) -> AttackModel:
    """Fit the attack to a shadow model's softmax outputs on its own examples and on others."""
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
    """Softmax outputs, largest first, as logarithms: near 1 they differ in nothing else."""
    ordered = -np.sort(-outputs.astype(np.float64), axis=1)
    return np.log(np.maximum(ordered, 1e-12))


def membership(
    attack: AttackModel, predict: Predict, model: Vector, members: Images, others: Images, *, seed: int = 0
) -> Membership:
    """Apply the attack to members and as many others, drawn by the seed from the longer of the two."""
    from sklearn.metrics import roc_auc_score

    count = min(len(members), len(others))
    if not count:
        raise ConfigError("membership needs at least one member and one other example")
    scores = [
        attack(predict(model, examples[rng_for(seed, name).permutation(len(examples))[:count]]))
        for name, examples in (("members", members), ("others", others))
    ]
    recall, false_alarms = (float(np.mean(s > 0.5)) for s in scores)
    auc = float(roc_auc_score(np.repeat([1, 0], count), np.concatenate(scores)))
    return Membership(recall, (recall + 1 - false_alarms) / 2, auc, count)


SAME = 0.01  # attack success, or accuracy, that differs by less is the same: a few test examples
CLEAN = 0.15  # attack success above this, and above the retrained model's, is not clean


def best_recovery(rows: Sequence[Mapping[str, Any]], reference: str = "retrain") -> str | None:
    """The method whose model to deploy: of those with the least attack success, the most accurate.

    Each row has ``method``, ``ta`` and ``asr``, None where they were not measured. If the retrained model is
    within a point of the best, it is the one: nothing of the named clients is in it, whatever was measured.
    None if even the least attack success is above 15 % and above the retrained model's.
    """
    least = min((row["asr"] for row in rows if row["asr"] is not None), default=0.0)
    scratch = next((row["asr"] for row in rows if row["method"] == reference), None)
    if not rows or least > max(CLEAN, scratch or 0.0):
        return None
    clean = [row for row in rows if row["asr"] is None or row["asr"] <= least + SAME]
    most = max(_accuracy(row) for row in clean)
    good = [row for row in clean if _accuracy(row) >= most - SAME]
    chosen = max(good, key=lambda row: (row["method"] == reference, _accuracy(row)))
    return str(chosen["method"])


def why_best(method: str, rows: Sequence[Mapping[str, Any]], reference: str = "retrain") -> str:
    """Why :func:`best_recovery` chose this method, in words; nothing where there was no choice."""
    if len(rows) < 2:
        return ""
    if method == reference:
        return (
            "as good as the best, and nothing of the excluded clients is in it: it was trained from scratch"
        )
    return "of the models with the least attack success, the most accurate"


def _accuracy(row: Mapping[str, Any]) -> float:
    return -1.0 if row["ta"] is None else float(row["ta"])
