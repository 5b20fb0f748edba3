"""MISR: whether a model still tells that it was trained on the malicious clients' examples.

Shokri et al., "Membership Inference Attacks Against Machine Learning Models", S&P 2017, in the form that
FedEraser uses: an attack model is fitted to the sorted softmax outputs of a shadow model, trained like the
real one on other data, where membership is known. It is applied to the clean examples of the malicious
clients and to as many test examples. Only the same figures on a retrained model say what is normal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrab.errors import ConfigError
from fedcrab.evaluate.accuracy import Images, Predict
from fedcrab.seeds import rng_for
from fedcrab.types import Vector

AttackModel = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""Softmax outputs -> the probability that each example was a member."""


@dataclass(frozen=True, slots=True)
class Membership:
    """How well members are told from others."""

    recall: float  # of members: the figure that papers call MISR
    balanced_accuracy: float  # 0.5 is guessing
    auc: float  # 0.5 is guessing


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
    return Membership(recall, (recall + 1 - false_alarms) / 2, auc)
