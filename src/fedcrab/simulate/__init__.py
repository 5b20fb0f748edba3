"""Every client in one machine: data sets, partitions, models, and a fleet that trains them fast."""

from fedcrab.simulate.bridge import initial_model, layout_of
from fedcrab.simulate.data import Dataset, from_arrays, hold_out, load
from fedcrab.simulate.fleet import SimulatedFleet
from fedcrab.simulate.local import LocalTraining
from fedcrab.simulate.models import Architecture
from fedcrab.simulate.partition import counts, dirichlet, iid, limited, power_law, shards
from fedcrab.simulate.predict import Predictor, Probe

__all__ = [
    "Architecture",
    "Dataset",
    "LocalTraining",
    "Predictor",
    "Probe",
    "SimulatedFleet",
    "counts",
    "dirichlet",
    "from_arrays",
    "hold_out",
    "iid",
    "initial_model",
    "layout_of",
    "limited",
    "load",
    "power_law",
    "shards",
]
