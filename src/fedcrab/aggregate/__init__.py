"""Aggregation rules: from one round's updates to the step of the global model, one file per family.

Each factory takes keyword-only hyper-parameters and returns an ``Aggregate``: a function of a matrix with one
update per row, and of weights.
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
