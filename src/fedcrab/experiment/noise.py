"""Recovery from a noised rollback model: (ε, δ) of :mod:`fedcrab.certify.noise`, drawn once and kept.

OUT/METHOD/start.safetensors    the noised model; a recovery that was killed goes on from the same one
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from secrets import randbits

from fedcrab.certify import certify
from fedcrab.certify.folder import START, model_file
from fedcrab.certify.noise import noised
from fedcrab.errors import ConfigError
from fedcrab.experiment.declared import declared
from fedcrab.experiment.setup import Setup
from fedcrab.history.disk import explained, make_directory, sync_directory
from fedcrab.history.snapshots import write_model
from fedcrab.recover import Step
from fedcrab.recover.progress import REQUEST
from fedcrab.rollback import Plan


def noised_start(folder: Path, plan: Plan, setup: Setup, noise: Mapping[str, float]) -> Step:
    """The step that recovery goes on after: the noised model in the folder, or one drawn now.

    The seed is drawn from the system and forgotten, so that nobody can subtract the noise.
    """
    begun = (folder / REQUEST).exists()  # what a recovery of another kind left before it began is no start
    if not begun or not (folder / START).exists():
        drawn = noised(plan, _deviation(plan, setup, noise), randbits(256))
        with explained(f"{folder / START}: the noised model is not written"):
            make_directory(folder.absolute())
            write_model(folder / START, plan.history.charter.layout, drawn.model)
            sync_directory(folder)
    return Step(plan.rollback_round - 1, model_file(folder / START, plan.history))


def _deviation(plan: Plan, setup: Setup, noise: Mapping[str, float]) -> float:
    found = certify(plan, assumptions=declared(setup, plan), estimate=False, noise=noise)
    deviation = found.terms["noise.deviation"].value
    if deviation is None:
        raise ConfigError(
            "noise needs a bound of the poison left in the rollback model, and there is none here; leave out "
            "--epsilon and --delta, or roll back to the initial model with --set beta=0"
        )
    return deviation
