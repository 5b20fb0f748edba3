"""Simulation in one machine: data sets, partitions, models, and a fleet that trains many clients fast."""

from typing import TYPE_CHECKING

from fedcrab.extras import on_first_use
from fedcrab.simulate.data import Dataset, from_arrays, hold_out, load_dataset
from fedcrab.simulate.hugging_face import from_partitions
from fedcrab.simulate.partition import counts, dirichlet, iid, limited, power_law, shards

if TYPE_CHECKING:
    from fedcrab.simulate.engines.plain import LocalTraining
    from fedcrab.simulate.fleet import SimulatedFleet
    from fedcrab.simulate.models import Architecture, initial_model, layout_of
    from fedcrab.simulate.predict import Predictor, Probe
else:  # these import torch
    __getattr__ = on_first_use(
        __name__,
        {
            "fedcrab.simulate.engines.plain": ("LocalTraining",),
            "fedcrab.simulate.fleet": ("SimulatedFleet",),
            "fedcrab.simulate.models": ("Architecture", "initial_model", "layout_of"),
            "fedcrab.simulate.predict": ("Predictor", "Probe"),
        },
    )

load = load_dataset  # its earlier name

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
    "from_partitions",
    "hold_out",
    "iid",
    "initial_model",
    "layout_of",
    "limited",
    "load",
    "load_dataset",
    "power_law",
    "shards",
]
