"""Aggregation rules: from one round's updates to the step of the global model, one file a rule.

Each factory takes keyword-only hyper-parameters and gives an ``Aggregate``.
"""

from fedcrab.aggregate.krum import krum, multi_krum
from fedcrab.aggregate.mean import Aggregate, clipped_mean, fedavg
from fedcrab.aggregate.median import geometric_median, median, trimmed_mean

__all__ = [
    "Aggregate",
    "clipped_mean",
    "fedavg",
    "geometric_median",
    "krum",
    "median",
    "multi_krum",
    "trimmed_mean",
]
