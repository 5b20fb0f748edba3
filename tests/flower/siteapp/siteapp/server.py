"""The server app: records, or recovers where the run says so, or trains by Flower alone."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Strategy,
)

from fedcrab.flower import Recorder, patience_of, recover_if_asked
from siteapp import task

app = ServerApp()


def evaluated(_round: int, arrays: ArrayRecord) -> MetricRecord:
    x, y = task.examples("probe")
    model = {name: array.numpy() for name, array in arrays.items()}
    flat = task.probabilities(model, x).reshape(-1).tolist()
    return MetricRecord({"loss": task.loss(model, x, y), "probabilities": flat})


def strategy_of(name: str, sites: int) -> Strategy:
    everyone = {"fraction_evaluate": 0.0, "min_train_nodes": sites // 2, "min_available_nodes": sites}
    if name == "private":
        return DifferentialPrivacyServerSideFixedClipping(
            FedAvg(**everyone), noise_multiplier=0.05, clipping_norm=0.7, num_sampled_clients=sites
        )
    kinds = {"FedAvg": FedAvg, "FedAdam": FedAdam, "FedMedian": FedMedian}
    return kinds[name](**everyone, **({"eta": 0.05} if name == "FedAdam" else {}))


def initial(strategy: str) -> ArrayRecord:
    """The counter stays out of what Flower clips: that takes floating numbers only."""
    arrays = task.initial()
    names = ("weight", "bias") if strategy == "private" else arrays
    return ArrayRecord({name: Array(arrays[name]) for name in names})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, sites = context.run_config, int(context.run_config["sites"])
    name = str(config.get("strategy", "FedAvg"))
    strategy = strategy_of(name, sites)
    np.random.seed(1)  # noqa: NPY002 - what Flower draws its noise from
    if recover_if_asked(grid, context, strategy):
        return
    if config["mode"] == "alone":
        made = strategy.start(grid, initial(name), num_rounds=int(config["rounds"])).arrays
        np.savez(Path(config["recovered"]), **{key: array.numpy() for key, array in made.items()})
        return
    recorder = Recorder(strategy, config["history"], evaluate_fn=evaluated, patience=patience_of(config))
    recorder.start(grid, initial(name), num_rounds=int(config["rounds"]))
