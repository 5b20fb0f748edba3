"""What a round costs besides local training: distributing, collecting, aggregating, probing, recording.

usage: python benchmarks/overhead.py [PRESET] [ROUNDS]     (default: paper-mnist and 2)
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedcrab.experiment.config import load_config
from fedcrab.experiment.names import RULES
from fedcrab.experiment.setup import open_for_training, prepare
from fedcrab.recover.cost import MeteredFleet
from fedcrab.train import train


def main() -> None:
    preset, rounds = [*sys.argv[1:], *["paper-mnist", "2"][len(sys.argv) - 1 :]]
    config = load_config(preset, ["attack.fraction=0"])
    setup = prepare(config)
    fleet = MeteredFleet(setup.honest, epochs=config.local.epochs)
    table = Table("round", "local training, s", "everything else, s", "share", title=f"{preset}")
    with tempfile.TemporaryDirectory(prefix=".work-", dir=".") as place:
        history = open_for_training(setup, Path(place) / "h", resume=False)
        setup.honest.train(history.final_model(), setup.honest.clients[:2], round=0, epochs=0)  # warm
        started, trained = time.perf_counter(), 0.0
        for step in train(
            fleet,
            setup.honest.clients,
            history,
            probe=setup.probe,
            aggregate=RULES["fedavg"](),
            rounds=int(rounds),
            seed=0,
        ):
            whole, asked = time.perf_counter() - started, fleet.cost.seconds - trained
            begun = time.perf_counter()
            setup.honest.train(step.model, setup.honest.clients, round=step.round, epochs=0)
            inside = asked - (time.perf_counter() - begun)  # without distributing and collecting
            rest = whole - inside
            table.add_row(str(step.round), f"{inside:.2f}", f"{rest:.3f}", f"{rest / inside:.2%}")
            started, trained = time.perf_counter(), fleet.cost.seconds
        history.close()
    setup.close()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
