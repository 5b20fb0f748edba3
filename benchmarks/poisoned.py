"""The trainings under attack that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedcrab.attack import evade
from fedcrab.experiment.config import load_config
from fedcrab.experiment.setup import Setup, open_for_training, prepare, run
from fedcrab.history import History
from fedcrab.types import Fleet

ATTACKS: dict[str, list[str]] = {
    "backdoor": ["attack.name=backdoor", "attack.settings.boost=1.0"],
    "backdoor-x3": ["attack.name=backdoor", "attack.settings.boost=3.0"],
    "dba": ["attack.name=dba", "attack.settings.boost=1.0"],
    "noise-trim": ["attack.name=noise-trim", "attack.settings={scale=5.0}"],
    "fang-trim": ["attack.name=fang-trim", "attack.settings={}"],
    "fang-krum": ["attack.name=fang-krum", "attack.settings={}"],
    "lie": ["attack.name=lie", "attack.settings={}"],
    "min-max": ["attack.name=min-max", "attack.settings={}"],
    "min-sum": ["attack.name=min-sum", "attack.settings={}"],
    "label-flip": ["attack.name=label-flip", "attack.settings={}"],
    "sign-flip": ["attack.name=sign-flip", "attack.settings={}"],
    "ipm": ["attack.name=ipm", "attack.settings={}"],
    "evade": ["attack.name=backdoor", "attack.settings.boost=1.0"],  # a backdoor, made orthogonal below
}
DIRICHLET = "clients.partition={{name='dirichlet', settings={{concentration={}}}}}"
PARTITIONS: dict[str, list[str]] = {
    "iid": [],
    "dirichlet": [DIRICHLET.format(0.5)],
    "dirichlet-0.1": [DIRICHLET.format(0.1)],
    "shards": ["clients.partition={name='shards', settings={classes_each=2}}"],
    "half": [DIRICHLET.format(0.5), "clients.share=0.5"],
}
DATA: dict[str, list[str]] = {
    "digits": ["digits", "rounds=20"],
    "step": ["digits", "rounds=20", "local.epochs=1", "local.batch=2000", "local.learning_rate=0.5"],
    "mnist": [
        "paper-mnist",
        "rounds=20",
        "model=mlp",
        "data.examples_per_client=300",
        "local.learning_rate=0.05",
        "local.epochs=3",
        "history.settings={}",
    ],
}
FRACTIONS, SEEDS = (0.1, 0.25, 0.5), (0, 1, 2)


def attacked(
    attack: str, fraction: float, partition: str, seed: int, *, data: str = "digits", more: Sequence[str] = ()
) -> Setup:
    """Return a training in which a fraction of the clients attacks; ``none`` is a training without attack."""
    preset, *common = DATA[data]
    changes = [*common, f"seed={seed}", *PARTITIONS[partition], *ATTACKS.get(attack, [])]
    config = load_config(preset, [*changes, f"attack.fraction={fraction}", *more])
    if attack == "none":
        config = config.model_copy(update={"attack": None})
    setup = prepare(config, workers=0)
    return replace(setup, fleet=evade(setup.fleet, setup.attackers)) if attack == "evade" else setup


def recorded(setup: Setup, path: Path, around: Callable[[Fleet], Fleet] = lambda fleet: fleet) -> History:
    """Run the training and record it; ``around`` wraps the fleet during the training."""
    with open_for_training(setup, path, resume=False) as history:
        for _ in run(replace(setup, fleet=around(setup.fleet)), history):
            pass
    return History.open(path)
