"""Aggregation rules: from one round's updates to the step of the global model, one file a rule.

Each factory takes keyword-only hyper-parameters and gives an ``Aggregate``.
"""

from fedcrab.aggregate.clipped_mean import clipped_mean
from fedcrab.aggregate.fedavg import fedavg
from fedcrab.aggregate.geometric_median import geometric_median
from fedcrab.aggregate.krum import krum
from fedcrab.aggregate.median import median
from fedcrab.aggregate.multi_krum import multi_krum
from fedcrab.aggregate.rule import Aggregate
from fedcrab.aggregate.trimmed_mean import trimmed_mean

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
